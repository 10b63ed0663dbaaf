//! Who sent a request: a client's address, cut down to what one customer has, numbered in order of appearance.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

use ahash::RandomState;
use tollgate::ClientIp;

/// What requests are counted by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Client {
    /// One IPv4 address, or an IPv6 /64: one customer has at least that much, and may use a new address every time.
    Network(ClientIp),
    /// Anything else that stood in the address's place, as it stood there.
    Name(Box<[u8]>),
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(client) => write!(f, "{client}"),
            // Escaped, since a log is no place from which to send codes to a terminal.
            Self::Name(name) => write!(f, "{}", name.escape_ascii()),
        }
    }
}

/// All clients of a log.
#[derive(Debug, Default)]
pub struct Clients {
    by_network: HashMap<ClientIp, u32, RandomState>,
    by_name: HashMap<Box<[u8]>, u32, RandomState>,
    all: Vec<Client>,
}

impl Clients {
    /// The number of the client in a log line's first field; `None` if there are more than a `u32` can number.
    pub fn number(&mut self, field: &[u8]) -> Option<u32> {
        let next = u32::try_from(self.all.len()).ok()?;
        let number = match parse_address(field).map(ClientIp::from) {
            Some(network) => *self.by_network.entry(network).or_insert_with(|| {
                self.all.push(Client::Network(network));
                next
            }),
            None => self.number_of_name(field, next),
        };
        Some(number)
    }

    fn number_of_name(&mut self, name: &[u8], next: u32) -> u32 {
        if let Some(&number) = self.by_name.get(name) {
            return number;
        }
        self.by_name.insert(name.into(), next);
        self.all.push(Client::Name(name.into()));
        next
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// The clients in the order of their numbers.
    pub fn in_order(&self) -> impl Iterator<Item = &Client> {
        self.all.iter()
    }
}

fn parse_address(field: &[u8]) -> Option<IpAddr> {
    std::str::from_utf8(field).ok()?.parse().ok()
}
