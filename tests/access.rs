//! Networks that are let in or shut out.
#![cfg(feature = "net")]
#![allow(clippy::unwrap_used)]

use std::net::IpAddr;

use proptest::prelude::*;
use tollgate::{Access, AccessList};

fn list(allowed: &[&str], denied: &[&str]) -> AccessList {
    let list = allowed.iter().fold(AccessList::new(), |list, network| list.allow(network.parse().unwrap()));
    denied.iter().fold(list, |list, network| list.deny(network.parse().unwrap()))
}

fn look(list: &AccessList, address: &str) -> Access {
    list.look(address.parse().unwrap())
}

#[test]
fn the_smallest_network_decides() {
    let list = list(&["10.0.0.0/8", "10.1.1.7/32", "::/0"], &["10.1.0.0/16", "2001:db8::/32"]);
    assert_eq!(look(&list, "10.2.0.1"), Access::Allowed);
    assert_eq!(look(&list, "10.1.0.1"), Access::Denied);
    assert_eq!(look(&list, "10.1.1.7"), Access::Allowed);
    assert_eq!(look(&list, "11.0.0.1"), Access::Limited);
    assert_eq!(look(&list, "2001:db8::1"), Access::Denied);
    assert_eq!(look(&list, "2001:db9::1"), Access::Allowed);
}

#[test]
fn addresses_are_taken_as_what_they_are() {
    let list = list(&["192.0.2.0/24"], &["::/0", "::ffff:10.0.0.0/104", "64:ff9b::172.16.0.0/108"]);
    for address in ["192.0.2.1", "::ffff:192.0.2.1", "64:ff9b::192.0.2.1"] {
        assert_eq!(look(&list, address), Access::Allowed, "{address}");
    }
    for address in ["10.1.2.3", "::ffff:10.1.2.3", "172.31.0.1", "64:ff9b::172.31.0.1", "2001:db8::1"] {
        assert_eq!(look(&list, address), Access::Denied, "{address}");
    }
    assert_eq!(look(&list, "::ffff:198.51.100.1"), Access::Limited, "no IPv6 address, whatever it is written as");
}

#[test]
fn bits_beyond_the_prefix_do_not_matter_and_the_last_word_on_a_network_counts() {
    let list = list(&["192.0.2.77/24"], &[]).deny("192.0.2.1/24".parse().unwrap());
    assert_eq!(look(&list, "192.0.2.200"), Access::Denied);
    assert_eq!(look(&AccessList::new(), "192.0.2.200"), Access::Limited);
}

proptest! {
    /// The longest of the prefixes that an address has, found by looking at all of them.
    #[test]
    fn looks_like_a_search_of_the_whole_list(
        networks in prop::collection::vec((0_u32..64, 20_u8..=32, any::<bool>()), 0..40),
        address in 0_u32..64,
    ) {
        let mut list = AccessList::new();
        let mut all: Vec<(ipnet::Ipv4Net, Access)> = Vec::new();
        for (bits, length, allowed) in networks {
            let network = ipnet::Ipv4Net::new((bits << 8).into(), length).unwrap().trunc();
            let access = if allowed { Access::Allowed } else { Access::Denied };
            list = if allowed { list.allow(network.into()) } else { list.deny(network.into()) };
            all.retain(|(other, _)| *other != network);
            all.push((network, access));
        }
        let address = std::net::Ipv4Addr::from(address << 8);
        let holds = all.iter().filter(|(network, _)| network.contains(&address));
        let expected = holds.max_by_key(|(network, _)| network.prefix_len()).map_or(Access::Limited, |(_, access)| *access);
        prop_assert_eq!(list.look(IpAddr::V4(address)), expected);
    }
}
