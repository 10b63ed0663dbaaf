//! Networks that are let in or shut out before any limit is asked: [`AccessList`].

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prefix_trie::PrefixMap;

use crate::client::normalized;

/// What an [`AccessList`] says of an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Access {
    /// It is let in, whatever limits say: do not ask the limiter.
    Allowed,
    /// It is shut out: do not ask the limiter either.
    Denied,
    /// Nothing is said of it: ask the limiter.
    #[default]
    Limited,
}

/// Networks that are let in or shut out, to be asked before a limiter. Of several that an address lies in, the smallest
/// decides.
///
/// A look takes time in proportion to the length of the longest prefix, not to that of the list, and allocates nothing.
/// IPv4 addresses that are written as IPv6 are taken as what they are, as by
/// [`IpPrefix::client`](crate::IpPrefix::client).
///
/// ```
/// use tollgate::{Access, AccessList};
///
/// let list = AccessList::new()
///     .allow("10.0.0.0/8".parse()?)
///     .deny("10.6.6.0/24".parse()?)
///     .deny("2001:db8:bad::/48".parse()?);
/// assert_eq!(list.look("10.1.2.3".parse()?), Access::Allowed);
/// assert_eq!(list.look("10.6.6.6".parse()?), Access::Denied);
/// assert_eq!(list.look("192.0.2.1".parse()?), Access::Limited);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct AccessList {
    v4: PrefixMap<Ipv4Net, Access>,
    v6: PrefixMap<Ipv6Net, Access>,
}

impl AccessList {
    /// A list that says nothing of anybody.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets all of `network` in.
    #[must_use]
    pub fn allow(self, network: IpNet) -> Self {
        self.with(network, Access::Allowed)
    }

    /// Shuts all of `network` out.
    #[must_use]
    pub fn deny(self, network: IpNet) -> Self {
        self.with(network, Access::Denied)
    }

    fn with(mut self, network: IpNet, access: Access) -> Self {
        match normalized_network(network.trunc()) {
            IpNet::V4(network) => self.v4.insert(network, access),
            IpNet::V6(network) => self.v6.insert(network, access),
        };
        self
    }

    /// What is said of `address`.
    #[must_use]
    pub fn look(&self, address: IpAddr) -> Access {
        let found = match normalized(address) {
            IpAddr::V4(address) => self.v4.get_lpm(&address.into()).map(|(_, access)| *access),
            IpAddr::V6(address) => self.v6.get_lpm(&address.into()).map(|(_, access)| *access),
        };
        found.unwrap_or_default()
    }
}

/// A network of IPv4 addresses that is written as IPv6 as what it is.
fn normalized_network(network: IpNet) -> IpNet {
    match normalized(network.addr()) {
        IpAddr::V4(address) if network.max_prefix_len() == 128 => {
            let bits = network.prefix_len().checked_sub(96).and_then(|bits| Ipv4Net::new(address, bits).ok());
            bits.map_or(network, IpNet::V4)
        }
        _ => network,
    }
}
