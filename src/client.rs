//! Clients as told by their addresses: [`ClientIp`], [`IpPrefix`].

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// How much of an address tells one client from another.
///
/// An IPv4 address is usually one client, but whoever has an IPv6 address has at least a /64 of them (RFC 6177), so that
/// limits for whole IPv6 addresses limit nobody. The default is all 32 bits of IPv4 and 64 of IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpPrefix {
    v4: u8,
    v6: u8,
}

impl IpPrefix {
    /// The first `v4` bits of an IPv4 address and the first `v6` of an IPv6 address; no more than there are.
    #[must_use]
    pub const fn new(v4: u8, v6: u8) -> Self {
        Self { v4: if v4 > 32 { 32 } else { v4 }, v6: if v6 > 128 { 128 } else { v6 } }
    }

    /// The client that has `address`.
    ///
    /// IPv4 addresses in the clothes of IPv6 are IPv4 addresses: mapped ones (`::ffff:0:0/96`, RFC 4291) and those behind
    /// a NAT64 (`64:ff9b::/96`, RFC 6052). Otherwise all of the world's IPv4 clients would be one.
    ///
    /// ```
    /// use tollgate::IpPrefix;
    ///
    /// let prefix = IpPrefix::default();
    /// assert_eq!(prefix.client("2001:db8::1".parse()?), prefix.client("2001:db8::ffff".parse()?));
    /// assert_eq!(prefix.client("::ffff:192.0.2.1".parse()?), prefix.client("192.0.2.1".parse()?));
    /// assert_ne!(prefix.client("64:ff9b::192.0.2.1".parse()?), prefix.client("64:ff9b::192.0.2.2".parse()?));
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    #[must_use]
    pub fn client(self, address: IpAddr) -> ClientIp {
        match normalized(address) {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.v4)).unwrap_or(0);
                ClientIp { network: Ipv4Addr::from_bits(address.to_bits() & mask).into(), bits: self.v4 }
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.v6)).unwrap_or(0);
                ClientIp { network: Ipv6Addr::from_bits(address.to_bits() & mask).into(), bits: self.v6 }
            }
        }
    }
}

impl Default for IpPrefix {
    fn default() -> Self {
        Self::new(32, 64)
    }
}

/// A client as told by its address: the network that counts as one. A key for a [`Limiter`](crate::Limiter).
///
/// [`From`] an address it takes the default [`IpPrefix`]; [`IpPrefix::client`] takes any other.
///
/// ```
/// use std::net::IpAddr;
/// use tollgate::{ClientIp, Limiter, Quota};
///
/// let limiter = Limiter::<ClientIp>::builder(Quota::per_minute(1)).build()?;
/// let check = |address: &str| Ok::<_, std::net::AddrParseError>(limiter.check(&ClientIp::from(address.parse::<IpAddr>()?)));
/// assert!(check("2001:db8::1")?.is_allowed());
/// assert!(!check("2001:db8::2")?.is_allowed(), "the same client");
/// assert!(check("2001:db8:0:1::1")?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientIp {
    network: IpAddr,
    bits: u8,
}

impl ClientIp {
    /// The first address of the network.
    #[must_use]
    pub const fn network(&self) -> IpAddr {
        self.network
    }

    /// The length of the network's prefix.
    #[must_use]
    pub const fn prefix_len(&self) -> u8 {
        self.bits
    }
}

impl From<IpAddr> for ClientIp {
    fn from(address: IpAddr) -> Self {
        IpPrefix::default().client(address)
    }
}

impl From<Ipv4Addr> for ClientIp {
    fn from(address: Ipv4Addr) -> Self {
        IpAddr::from(address).into()
    }
}

impl From<Ipv6Addr> for ClientIp {
    fn from(address: Ipv6Addr) -> Self {
        IpAddr::from(address).into()
    }
}

/// As an address if it is one, else as a network: `192.0.2.1`, `2001:db8::/64`.
impl fmt::Display for ClientIp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = if self.network.is_ipv4() { 32 } else { 128 };
        if self.bits == whole { write!(f, "{}", self.network) } else { write!(f, "{}/{}", self.network, self.bits) }
    }
}

impl fmt::Debug for ClientIp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The well-known prefix of NAT64, whose last 32 bits are an IPv4 address (RFC 6052, section 2.1).
const NAT64: [u16; 6] = [0x64, 0xff9b, 0, 0, 0, 0];

/// An IPv4 address that is written as IPv6 as what it is.
pub(crate) fn normalized(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) if v6.segments().starts_with(&NAT64) => {
            let [.., a, b, c, d] = v6.octets();
            Ipv4Addr::new(a, b, c, d).into()
        }
        canonical => canonical,
    }
}
