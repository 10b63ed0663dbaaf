//! What proxies say of those before them: the entries of `X-Forwarded-For`, and of `Forwarded` (RFC 7239).
//!
//! All of it can be made up by a client but for what proxies of one's own have added, which is always on the right. So an
//! entry that is no address is told apart from one that is, and nothing is skipped on the way.

use std::net::{IpAddr, SocketAddr};

use crate::client::normalized;

/// Who stood before a proxy; `None` if it does not say, or says nothing that is an address.
pub(super) type Entry = Option<IpAddr>;

/// The entries of a line of `X-Forwarded-For`, the last first. Empty ones are none (RFC 9110, section 5.6.1).
pub(super) fn x_forwarded_for(line: &[u8]) -> impl Iterator<Item = Entry> {
    line.rsplit(|&byte| byte == b',').map(<[u8]>::trim_ascii).filter(|entry| !entry.is_empty()).map(address)
}

/// The entries of a line of `Forwarded`, the first first. Of a line that is not well-formed (RFC 7239, section 4) nothing can
/// be told, nor of those to its left, as nobody knows how many entries it holds: it may be a client that has opened a quote, so
/// that what a proxy added looks like a part of it.
pub(super) fn forwarded(line: &[u8]) -> Option<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut rest = line;
    loop {
        let (entry, after) = element(rest)?;
        entries.extend(entry);
        match after.split_first() {
            None => return Some(entries),
            Some((_, after)) => rest = after,
        }
    }
}

/// One element up to a comma or the end, and what is left from there on; the entry of an empty one is none.
fn element(line: &[u8]) -> Option<(Option<Entry>, &[u8])> {
    let (mut rest, mut entry, mut is_empty) = (line.trim_ascii_start(), None, true);
    loop {
        match rest.first() {
            None | Some(b',') => return Some(((!is_empty).then_some(entry.flatten()), rest)),
            Some(b';') => rest = rest[1..].trim_ascii_start(),
            Some(_) => {
                let (name, after) = token(rest)?;
                let (value, after) = value(after.strip_prefix(b"=")?)?;
                if name.eq_ignore_ascii_case(b"for") {
                    // Each parameter comes at most once.
                    if entry.replace(node(&value)).is_some() {
                        return None;
                    }
                }
                is_empty = false;
                rest = after.trim_ascii_start();
                if !matches!(rest.first(), None | Some(b',' | b';')) {
                    return None;
                }
            }
        }
    }
}

/// A token (RFC 9110, section 5.6.2) and what comes after it.
fn token(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let end = text.iter().position(|byte| !is_token(byte)).unwrap_or(text.len());
    if end == 0 { None } else { Some(text.split_at(end)) }
}

/// A token or a quoted string (RFC 9110, section 5.6.4), without its quotes, and what comes after it.
fn value(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let Some(mut rest) = text.strip_prefix(b"\"") else {
        // Many write addresses with their ports and brackets without the quotes that they should be in.
        let is_bare = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:[]".contains(byte);
        let end = text.iter().position(|byte| !is_bare(byte)).unwrap_or(text.len());
        return (end > 0).then(|| (text[..end].to_vec(), &text[end..]));
    };
    let mut value = Vec::new();
    loop {
        match rest {
            [b'"', after @ ..] => return Some((value, after)),
            [b'\\', byte, after @ ..] | [byte, after @ ..] => {
                value.push(*byte);
                rest = after;
            }
            [] => return None,
        }
    }
}

/// The address of a node (RFC 7239, section 6), whose port may be an obfuscated one.
fn node(value: &[u8]) -> Entry {
    let obfuscated_port = value.iter().rposition(|&byte| byte == b':').filter(|&colon| {
        matches!(&value[colon + 1..], [b'_', port @ ..] if !port.is_empty()
            && port.iter().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(byte)))
    });
    match obfuscated_port {
        Some(colon) if value[..colon].ends_with(b"]") || !value[..colon].contains(&b':') => address(&value[..colon]),
        _ => address(value),
    }
}

/// An address as it stands in such headers: by itself or with a port, IPv6 with or without brackets, and all of it perhaps in
/// quotes.
pub(super) fn address(text: &[u8]) -> Entry {
    let text = match text {
        [b'"', quoted @ .., b'"'] => quoted.trim_ascii(),
        _ => text,
    };
    let text = std::str::from_utf8(text).ok()?;
    let address = text.parse().ok().or_else(|| text.parse().ok().map(|socket: SocketAddr| socket.ip()));
    let address = address.or_else(|| text.strip_prefix('[')?.strip_suffix(']')?.parse().ok().filter(IpAddr::is_ipv6));
    address.map(normalized).filter(|address| !address.is_unspecified())
}
