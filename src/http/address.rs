//! Whose address a request comes from, behind proxies too: [`ClientAddr`].

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use http::request::Parts;
use http::{Extensions, HeaderMap, HeaderName};
use ipnet::IpNet;

use super::forwarded::{Entry, address, forwarded, x_forwarded_for};
use super::key::Extract;
use crate::access::{Access, AccessList};
use crate::client::{ClientIp, IpPrefix, normalized};

/// The header in which proxies tell whom they forward for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientHeader {
    /// `X-Forwarded-For`, to which each proxy appends the address that it was called from.
    XForwardedFor,
    /// `Forwarded` (RFC 7239), to which each proxy appends an element with `for`.
    Forwarded,
    /// A header with one address, set anew by the proxy in front: `CF-Connecting-IP`, `X-Real-IP`, `Fly-Client-IP`,
    /// `True-Client-IP`. If it comes more than once, or is no address, it says nothing.
    ///
    /// Be sure that your proxy removes what a client has sent under this name.
    Single(HeaderName),
}

/// Which proxies are believed.
#[derive(Clone, Debug)]
enum Trust {
    Nobody,
    Networks(AccessList),
    Hops(usize),
}

type FindPeer = dyn Fn(&Extensions) -> Option<IpAddr> + Send + Sync;

/// Finds the address of the client that a request comes from.
///
/// That is the *peer*, at the other end of the connection, unless proxies are trusted: those in some
/// [networks](Self::behind), or a [number of hops](Self::behind_hops). What proxies say is read from the right, where they
/// append, and never from the left, where anybody can write what they like. Whatever does not fit (an entry that is no
/// address, obfuscated, `unknown`, or missing; a header that is too short, or in which everybody is trusted; a peer that is not
/// trusted) makes the client the peer: no request is an error, and nobody chooses the address that they are known by.
///
/// Addresses may come with ports, in brackets and in quotes, several headers of one name count as one in their order, and
/// IPv4 addresses in the clothes of IPv6 are IPv4 addresses, as by [`IpPrefix::client`].
///
/// ```
/// use std::net::{IpAddr, SocketAddr};
/// use tollgate::http::ClientAddr;
///
/// // With axum: ClientAddr::peer(|ConnectInfo(peer): &ConnectInfo<SocketAddr>| peer.ip())
/// let direct = ClientAddr::peer(|peer: &SocketAddr| peer.ip());
/// let proxied = direct.clone().behind(["10.0.0.0/8".parse()?]);
///
/// let request = http::Request::builder()
///     .extension(SocketAddr::from(([10, 0, 0, 1], 4711)))
///     .header("x-forwarded-for", "6.6.6.6, 203.0.113.7, 10.0.0.2")
///     .body(())?;
/// let (request, _) = request.into_parts();
/// assert_eq!(direct.find(&request), Some(IpAddr::from([10, 0, 0, 1])));
/// assert_eq!(proxied.find(&request), Some(IpAddr::from([203, 0, 113, 7])), "the first that is not ours");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ClientAddr {
    peer: Arc<FindPeer>,
    header: ClientHeader,
    trust: Trust,
    trusts_unaddressed: bool,
    prefix: IpPrefix,
}

impl ClientAddr {
    /// The peer, as told by the request extension of type `T`: with axum `ConnectInfo<SocketAddr>`. The function may return
    /// an address or an `Option` of one, for peers that have none.
    ///
    /// Where that extension is missing, the peer has no address. All clients without one are one client, `0.0.0.0`.
    #[must_use]
    pub fn peer<T, A>(address: impl Fn(&T) -> A + Send + Sync + 'static) -> Self
    where
        T: Clone + Send + Sync + 'static,
        A: Into<Option<IpAddr>>,
    {
        Self {
            peer: Arc::new(move |extensions| extensions.get().and_then(|peer| address(peer).into())),
            header: ClientHeader::XForwardedFor,
            trust: Trust::Nobody,
            trusts_unaddressed: false,
            prefix: IpPrefix::default(),
        }
    }

    /// Trusts proxies whose addresses are in `networks`. The client is the first that is not, from the peer leftwards.
    #[must_use]
    pub fn behind(self, networks: impl IntoIterator<Item = IpNet>) -> Self {
        let networks = networks.into_iter().fold(AccessList::new(), AccessList::allow);
        Self { trust: Trust::Networks(networks), ..self }
    }

    /// Trusts so many proxies, the peer being the first: the client is that entry from the right. For proxies whose
    /// addresses change; whoever can reach the server past them can make up any address.
    ///
    /// With a [`ClientHeader::Single`], any number but zero is as good as one.
    #[must_use]
    pub fn behind_hops(self, hops: usize) -> Self {
        Self { trust: if hops == 0 { Trust::Nobody } else { Trust::Hops(hops) }, ..self }
    }

    /// Reads this header instead of `X-Forwarded-For`. Only one is ever read, for a proxy that appends to one passes the
    /// other on as the client made it up.
    #[must_use]
    pub fn header(self, header: ClientHeader) -> Self {
        Self { header, ..self }
    }

    /// Trusts peers that have no address, such as a proxy at the other end of a Unix socket, beside those in the networks.
    #[must_use]
    pub fn trust_unaddressed(self) -> Self {
        Self { trusts_unaddressed: true, ..self }
    }

    /// How much of an address tells one client from another, where a [`ClientIp`] is asked for; all of an IPv4 address and
    /// the first 64 bits of an IPv6 address unless set.
    #[must_use]
    pub fn prefix(self, prefix: IpPrefix) -> Self {
        Self { prefix, ..self }
    }

    /// The address of the client; `None` if neither the peer nor a proxy that is trusted says one.
    ///
    /// Takes time in proportion to the length of the header.
    #[must_use]
    pub fn find(&self, request: &Parts) -> Option<IpAddr> {
        let peer = (self.peer)(&request.extensions).map(normalized);
        self.forwarded(peer, &request.headers).or(peer)
    }

    /// The client whose requests are counted together.
    #[must_use]
    pub fn client(&self, request: &Parts) -> ClientIp {
        self.prefix.client(Self::or_nobody(self.find(request)))
    }

    fn or_nobody(address: Option<IpAddr>) -> IpAddr {
        address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
    }

    /// What trusted proxies say of the client.
    fn forwarded(&self, peer: Option<IpAddr>, headers: &HeaderMap) -> Option<IpAddr> {
        let entries = |name| headers.get_all(name).iter().map(http::HeaderValue::as_bytes).rev();
        match &self.header {
            _ if !self.trusts_peer(peer) => None,
            ClientHeader::XForwardedFor => self.walk(entries("x-forwarded-for").flat_map(x_forwarded_for)),
            ClientHeader::Forwarded => {
                self.walk(entries("forwarded").map_while(forwarded).flat_map(|line| line.into_iter().rev()))
            }
            ClientHeader::Single(name) => {
                let mut values = headers.get_all(name).iter();
                let value = values.next().filter(|_| values.next().is_none())?;
                address(value.as_bytes().trim_ascii())
            }
        }
    }

    fn trusts_peer(&self, peer: Option<IpAddr>) -> bool {
        match (peer, &self.trust) {
            (None, _) => self.trusts_unaddressed,
            (Some(peer), Trust::Networks(networks)) => networks.look(peer) == Access::Allowed,
            (Some(_), Trust::Hops(_)) => true,
            (Some(_), Trust::Nobody) => false,
        }
    }

    /// The client, by the entries from the right.
    fn walk(&self, mut entries: impl Iterator<Item = Entry>) -> Option<IpAddr> {
        match &self.trust {
            Trust::Networks(networks) => {
                entries.find(|entry| entry.is_none_or(|address| networks.look(address) != Access::Allowed))?
            }
            Trust::Hops(hops) => entries.nth(hops - 1)?,
            // Behind a Unix socket there is one proxy.
            Trust::Nobody => entries.next()?,
        }
    }
}

/// Everybody's address, `0.0.0.0` for those that have none.
impl Extract<IpAddr> for ClientAddr {
    fn extract(&self, request: &Parts) -> IpAddr {
        Self::or_nobody(self.find(request))
    }
}

/// The client, see [`ClientAddr::client`].
impl Extract<ClientIp> for ClientAddr {
    fn extract(&self, request: &Parts) -> ClientIp {
        self.client(request)
    }
}

impl fmt::Debug for ClientAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientAddr")
            .field("header", &self.header)
            .field("trust", &self.trust)
            .field("trusts_unaddressed", &self.trusts_unaddressed)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}
