//! Whose address a request comes from. Cases I01 to I05 are reports by users of other limiters; forms of addresses are those
//! of RFC 7239 and of what proxies write.

use std::net::{IpAddr, SocketAddr};

use http::HeaderValue;
use proptest::prelude::*;
use tollgate::http::{ClientAddr, ClientHeader, Extract};
use tollgate::{ClientIp, IpPrefix};

use crate::support::{peer, request_from};

/// A proxy of our own.
const OURS: &str = "10.0.0.1:443";

fn by_network() -> ClientAddr {
    peer().behind(["10.0.0.0/8".parse().unwrap(), "2001:db8:aaaa::/48".parse().unwrap()])
}

fn find(client: &ClientAddr, peer: &str, headers: &[(&str, &str)]) -> String {
    let (head, _) = request_from(peer, headers).into_parts();
    client.find(&head).unwrap().to_string()
}

/// What is found behind our proxy in lines of X-Forwarded-For.
fn xff(client: &ClientAddr, lines: &[&str]) -> String {
    find(client, OURS, &lines.iter().map(|line| ("x-forwarded-for", *line)).collect::<Vec<_>>())
}

/// What is found behind our proxy in lines of Forwarded.
fn forwarded(lines: &[&str]) -> String {
    let client = by_network().header(ClientHeader::Forwarded);
    find(&client, OURS, &lines.iter().map(|line| ("forwarded", *line)).collect::<Vec<_>>())
}

#[test]
fn nobody_is_believed_unless_trusted() {
    let headers = [("x-forwarded-for", "6.6.6.6"), ("forwarded", "for=6.6.6.6"), ("x-real-ip", "6.6.6.6")];
    assert_eq!(find(&peer(), "192.0.2.1:1", &headers), "192.0.2.1");
    assert_eq!(find(&by_network(), "192.0.2.1:1", &headers), "192.0.2.1");
    let real_ip = by_network().header(ClientHeader::Single("x-real-ip".parse().unwrap()));
    assert_eq!(find(&real_ip, "192.0.2.1:1", &headers), "192.0.2.1");
    assert_eq!(find(&real_ip, OURS, &headers), "6.6.6.6");
    assert_eq!(find(&peer().behind_hops(0), OURS, &headers), "10.0.0.1");
}

#[test]
fn x_forwarded_for_is_read_from_the_right() {
    let one_hop = peer().behind_hops(1);
    for (client, lines, found) in [
        // Spoofed entries on the left.
        (&one_hop, &["1.1.1.1, 7.7.7.7"][..], "7.7.7.7"),
        (&one_hop, &["2.2.2.2, 7.7.7.7"], "7.7.7.7"),
        (&by_network(), &["1.1.1.1, 7.7.7.7"], "7.7.7.7"),
        // Several lines are one, in their order.
        (&by_network(), &["1.1.1.1", "7.7.7.7"], "7.7.7.7"),
        (&by_network(), &["1.1.1.1, 7.7.7.7", "10.1.1.1", "10.2.2.2, 10.3.3.3"], "7.7.7.7"),
        // A trusted chain of three.
        (&by_network(), &["6.6.6.6, 9.9.9.9, 10.0.0.3,10.0.0.2"], "9.9.9.9"),
        // All of them trusted: the peer.
        (&by_network(), &["10.0.0.3, 10.0.0.2"], "10.0.0.1"),
        // Garbage, wherever it is met before the client: the peer.
        (&by_network(), &["7.7.7.7, garbage"], "10.0.0.1"),
        (&by_network(), &["7.7.7.7, garbage, 10.0.0.2"], "10.0.0.1"),
        (&by_network(), &["garbage, 7.7.7.7"], "7.7.7.7"),
        (&by_network(), &["7.7.7.7, unknown"], "10.0.0.1"),
        (&by_network(), &["7.7.7.7, _hidden"], "10.0.0.1"),
        (&by_network(), &["7.7.7.7, 1.2.3"], "10.0.0.1"),
        (&by_network(), &["7.7.7.7, 1.2.3.4:99999"], "10.0.0.1"),
        (&by_network(), &["7.7.7.7, 0.0.0.0"], "10.0.0.1"),
        (&one_hop, &["7.7.7.7, garbage"], "10.0.0.1"),
        // Absent, empty and short ones: the peer.
        (&by_network(), &[], "10.0.0.1"),
        (&by_network(), &["", " , ,"], "10.0.0.1"),
        (&peer().behind_hops(2), &["7.7.7.7"], "10.0.0.1"),
        // Empty entries are none.
        (&by_network(), &["7.7.7.7,, 10.0.0.2 ,"], "7.7.7.7"),
        (&peer().behind_hops(2), &["6.6.6.6, 7.7.7.7,,10.0.0.2"], "7.7.7.7"),
        (&peer().behind_hops(3), &["6.6.6.6", "7.7.7.7", "8.8.8.8, 9.9.9.9"], "7.7.7.7"),
        // Ports, brackets, quotes, odd spellings, and IPv4 in the clothes of IPv6.
        (&by_network(), &["9.9.9.9, 10.0.0.1:4431"], "9.9.9.9"),
        (&by_network(), &["[2001:DB8:0::1]:80"], "2001:db8::1"),
        (&by_network(), &["[2001:DB8:0::1]"], "2001:db8::1"),
        (&by_network(), &["2001:0db8:0:0::1"], "2001:db8::1"),
        (&by_network(), &["\"[2001:db8::1]:80\", \"10.0.0.7\""], "2001:db8::1"),
        (&by_network(), &["9.9.9.9, 2001:DB8:AAAA::1"], "9.9.9.9"),
        (&by_network(), &["::ffff:9.9.9.9, ::ffff:10.0.0.2"], "9.9.9.9"),
        (&by_network(), &["[::ffff:9.9.9.9]:80"], "9.9.9.9"),
        (&by_network(), &["\t9.9.9.9\t"], "9.9.9.9"),
        (&by_network(), &["7.7.7.7, fe80::1%eth0"], "10.0.0.1"),
        (&by_network(), &["7.7.7.7, [9.9.9.9]"], "10.0.0.1"),
        (&by_network(), &["7.7.7.7, \"9.9.9.9"], "10.0.0.1"),
    ] {
        assert_eq!(xff(client, lines), found, "{lines:?} by {client:?}");
    }
    // A proxy that calls over IPv6 as an IPv4 address.
    assert_eq!(find(&by_network(), "[::ffff:10.0.0.1]:443", &[("x-forwarded-for", "9.9.9.9")]), "9.9.9.9");
}

#[test]
fn nothing_is_told_past_a_line_that_cannot_be_counted() {
    // A client opens a quote, in which the entries of both proxies are lost; before it stands what it made up.
    let headers = [("forwarded", "for=6.6.6.6"), ("forwarded", "for=\"x, for=7.7.7.7, for=10.0.0.2")];
    for client in [by_network(), peer().behind_hops(1), peer().behind_hops(2), peer().behind_hops(3)] {
        assert_eq!(find(&client.header(ClientHeader::Forwarded), OURS, &headers), "10.0.0.1");
    }
}

#[test]
fn forwarded_is_read_by_its_grammar() {
    for (lines, found) in [
        (&["for=192.0.2.60;proto=http;by=203.0.113.43"][..], "192.0.2.60"),
        (&["For=\"[2001:db8:cafe::17]:4711\""], "2001:db8:cafe::17"),
        (&["for=192.0.2.43, for=198.51.100.17"], "198.51.100.17"),
        (&["for=6.6.6.6", "for=7.7.7.7;by=10.0.0.2, for=10.0.0.2"], "7.7.7.7"),
        (&["for=7.7.7.7:80,for=\"10.0.0.2:_x\""], "7.7.7.7"),
        (&["for=\"7.7.7.7:_gazonk\""], "7.7.7.7"),
        (&["for=\"[2001:db8::1]:_o-k.\""], "2001:db8::1"),
        (&["FOR = 7.7.7.7"], "10.0.0.1"),
        (&["for=7.7.7.7 ; proto=https ,\tfor=10.0.0.9"], "7.7.7.7"),
        (&["for=7.7.7.7;", ",,"], "7.7.7.7"),
        // Without quotes, which many proxies forget.
        (&["for=[2001:db8::1]:80"], "2001:db8::1"),
        (&["for=\"7.7\\.7.7\""], "7.7.7.7"),
        // What tells nobody.
        (&["for=7.7.7.7, for=unknown"], "10.0.0.1"),
        (&["for=7.7.7.7, for=_SEVKISEK"], "10.0.0.1"),
        (&["for=7.7.7.7, by=10.0.0.2"], "10.0.0.1"),
        (&["for=unknown, for=7.7.7.7"], "7.7.7.7"),
        // What is not well-formed says nothing, but that a proxy's own line does.
        (&["for=7.7.7.7;for=8.8.8.8"], "10.0.0.1"),
        (&["for=\"7.7.7.7"], "10.0.0.1"),
        (&["for=7.7.7.7 8.8.8.8"], "10.0.0.1"),
        (&["for"], "10.0.0.1"),
        (&["=7.7.7.7"], "10.0.0.1"),
        (&["for=\"x", "for=7.7.7.7"], "7.7.7.7"),
        // A client's quote that swallows what the proxy says, and a host that looks like an entry.
        (&["for=\"6.6.6.6, for=7.7.7.7"], "10.0.0.1"),
        (&["for=7.7.7.7;host=\"a, for=6.6.6.6\""], "7.7.7.7"),
        (&["for=7.7.7.7;host=\"a\\\", for=6.6.6.6;x=\\\"\""], "7.7.7.7"),
    ] {
        assert_eq!(forwarded(lines), found, "{lines:?}");
    }
}

#[test]
fn headers_with_one_address_have_one() {
    let client = by_network().header(ClientHeader::Single("cf-connecting-ip".parse().unwrap()));
    let of = |values: &[&str]| {
        find(&client, OURS, &values.iter().map(|value| ("cf-connecting-ip", *value)).collect::<Vec<_>>())
    };
    assert_eq!(of(&["7.7.7.7"]), "7.7.7.7");
    assert_eq!(of(&[" 2001:db8::1 "]), "2001:db8::1");
    assert_eq!(of(&["7.7.7.7", "6.6.6.6"]), "10.0.0.1");
    assert_eq!(of(&["7.7.7.7, 6.6.6.6"]), "10.0.0.1");
    assert_eq!(of(&["garbage"]), "10.0.0.1");
    assert_eq!(of(&[]), "10.0.0.1");
    // Headers that were not asked for are not looked at.
    assert_eq!(find(&client, OURS, &[("x-forwarded-for", "6.6.6.6")]), "10.0.0.1");
}

#[test]
fn peers_without_an_address() {
    let unix = ClientAddr::peer(|peer: &Option<SocketAddr>| peer.map(|peer| peer.ip()));
    let find = |client: &ClientAddr, header: Option<&str>| {
        let mut request = http::Request::new(());
        request.extensions_mut().insert(None::<SocketAddr>);
        if let Some(header) = header {
            request.headers_mut().insert("x-forwarded-for", header.parse().unwrap());
        }
        client.find(&request.into_parts().0)
    };
    let seven = Some(IpAddr::from([7, 7, 7, 7]));
    assert_eq!(find(&unix, Some("7.7.7.7")), None);
    assert_eq!(find(&unix.clone().behind_hops(1), Some("7.7.7.7")), None);
    assert_eq!(find(&unix.clone().trust_unaddressed(), Some("6.6.6.6, 7.7.7.7")), seven);
    assert_eq!(find(&unix.clone().trust_unaddressed(), None), None);
    let networks = unix.clone().behind(["10.0.0.0/8".parse().unwrap()]).trust_unaddressed();
    assert_eq!(find(&networks, Some("6.6.6.6, 7.7.7.7, 10.0.0.2")), seven);

    // All of them are one client.
    let (head, ()) = http::Request::new(()).into_parts();
    let client: ClientIp = unix.extract(&head);
    assert_eq!(client.to_string(), "0.0.0.0");
    let address: IpAddr = unix.extract(&head);
    assert_eq!(address.to_string(), "0.0.0.0");
}

#[test]
fn a_client_is_a_64() {
    let client = |prefix, address: &str| {
        let (head, _) = request_from(OURS, &[("x-forwarded-for", address)]).into_parts();
        by_network().prefix(prefix).client(&head).to_string()
    };
    assert_eq!(client(IpPrefix::default(), "2001:db8::1"), "2001:db8::/64");
    assert_eq!(client(IpPrefix::default(), "::ffff:192.0.2.1"), "192.0.2.1");
    assert_eq!(client(IpPrefix::default(), "64:ff9b::808:808"), "8.8.8.8");
    assert_eq!(client(IpPrefix::new(24, 48), "2001:db8:1:2::1"), "2001:db8:1::/48");
}

proptest! {
    /// Whatever a client sends, our proxy appends who it is; so it is that, or not told.
    #[test]
    fn nobody_chooses_their_address(
        sent in prop::collection::vec(prop::collection::vec(prop_oneof![
            Just(b','), Just(b'"'), Just(b'\\'), Just(b';'), Just(b'='), Just(b':'), Just(b'['), Just(b' '), 0x20_u8..0x7f, 0x80_u8..,
        ], 0..30), 0..4),
        known in prop::sample::select(vec!["", "for=6.6.6.6", "6.6.6.6", "for=\"6.6.6.6\", ", "10.0.0.3, "]),
        real in prop::sample::select(vec!["7.7.7.7", "2001:db8::7"]),
        own_line in any::<bool>(),
        // Whether each further proxy on the way to us begins a line.
        further in prop::collection::vec(any::<bool>(), 0..3),
    ) {
        let real_ip: IpAddr = real.parse().unwrap();
        for (header, ours) in [
            ("x-forwarded-for", real.to_owned()),
            ("forwarded", if real_ip.is_ipv6() { format!("for=\"[{real}]\"") } else { format!("for={real}") }),
        ] {
            let mut lines = sent.clone();
            lines.push(known.into());
            if own_line {
                lines.push(ours.into());
            } else if let Some(line) = lines.last_mut() {
                line.extend(format!(", {ours}").bytes());
            }
            for (number, &own_line) in further.iter().enumerate() {
                let proxy = format!("{}10.0.0.{}", if header == "forwarded" { "for=" } else { "" }, number + 2);
                match lines.last_mut() {
                    Some(line) if !own_line => line.extend(format!(", {proxy}").bytes()),
                    _ => lines.push(proxy.into()),
                }
            }
            let mut request = request_from(OURS, &[]);
            for line in lines {
                if let Ok(value) = HeaderValue::from_bytes(&line) {
                    request.headers_mut().append(header, value);
                }
            }
            let (head, _) = request.into_parts();
            let by = |client: ClientAddr| client.header(if header == "forwarded" { ClientHeader::Forwarded } else { ClientHeader::XForwardedFor });
            for client in [by(by_network()), by(peer().behind_hops(1 + further.len()))] {
                let found = client.find(&head).unwrap();
                let is_told = found == real_ip;
                prop_assert!(is_told || found == IpAddr::from([10, 0, 0, 1]), "{found}");
                // The lists by commas alone, and lines of one's own, always tell.
                prop_assert!(is_told || (header == "forwarded" && !own_line), "{header}");
            }
        }
    }
}
