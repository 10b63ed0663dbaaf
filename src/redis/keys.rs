//! What the keys in Redis are called.

use std::fmt::{self, Write as _};

use super::builder::RedisBuildError;
use crate::quota::{Algorithm, Quota};

/// The hash slots of a Redis cluster.
const SLOTS: u16 = 16_384;

/// Names the keys of clients: `prefix:{client}:quota`. What is in braces alone makes the hash slot, so all keys of a client
/// lie on one node.
#[derive(Debug)]
pub(super) struct Keys {
    prefix: String,
    /// What tells the quotas of a client apart: the algorithm and the period, but not the limit, so that a limit may change
    /// while what clients owe goes on.
    quotas: Vec<String>,
}

/// A client as it is called in keys: without braces, and never empty.
#[derive(Clone, Debug)]
pub(super) struct Tag(String);

impl Tag {
    pub(super) fn new(client: &impl fmt::Display) -> Self {
        let mut escaped = Escaped(String::new());
        // Only if the client cannot be displayed at all; what came before that counts.
        let _ = write!(escaped, "{client}");
        if escaped.0.is_empty() {
            escaped.0.push('%');
        }
        Self(escaped.0)
    }

    /// One of our own for a part of the hash slots. No client has it: a percent sign of theirs is followed by digits.
    pub(super) fn own(part: usize, parts: usize) -> Self {
        let mut tags = (0_u16..SLOTS).map(|number| Self(format!("%up{number}")));
        tags.find(|tag| tag.part(parts) == part).unwrap_or_else(|| Self("%up".to_owned()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// The hash slot of its keys.
    pub(super) fn slot(&self) -> u16 {
        crc16::State::<crc16::XMODEM>::calculate(self.0.as_bytes()) % SLOTS
    }

    /// Which of some equal parts of all hash slots its keys are in.
    pub(super) fn part(&self, parts: usize) -> usize {
        usize::from(self.slot()) * parts / usize::from(SLOTS)
    }
}

struct Escaped(String);

impl fmt::Write for Escaped {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match character {
                '{' => self.0.push_str("%7B"),
                '}' => self.0.push_str("%7D"),
                '%' => self.0.push_str("%25"),
                other => self.0.push(other),
            }
        }
        Ok(())
    }
}

impl Keys {
    pub(super) fn new(prefix: &str, quotas: &[Quota]) -> Result<Self, RedisBuildError> {
        if prefix.is_empty() || prefix.contains(['{', '}']) {
            return Err(RedisBuildError::Prefix { prefix: prefix.to_owned() });
        }
        let mut names = Vec::new();
        for quota in quotas {
            let name = name(quota);
            let numbered = (2_u64..).map(|number| format!("{name}-{number}"));
            names.extend(std::iter::once(name.clone()).chain(numbered).find(|name| !names.contains(name)));
        }
        Ok(Self { prefix: prefix.to_owned(), quotas: names })
    }

    pub(super) fn of(&self, tag: &Tag) -> impl Iterator<Item = String> {
        self.quotas.iter().map(move |quota| format!("{}:{{{}}}:{quota}", self.prefix, tag.0))
    }
}

/// What a quota is called.
fn name(quota: &Quota) -> String {
    let algorithm = match quota.algorithm() {
        Algorithm::TokenBucket => "tb",
        Algorithm::LeakyBucket => "lb",
        Algorithm::FixedWindow => "fw",
        Algorithm::SlidingWindowCounter => "sc",
        Algorithm::SlidingWindowLog => "sl",
    };
    let text = quota.to_string();
    let period = text.split(['/', ' ']).nth(1).unwrap_or_default();
    format!("{algorithm}-{period}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_never_taken_for_each_other() {
        let tag = |client: &str| Tag::new(&client).0;
        assert_eq!(tag("2001:db8::/64"), "2001:db8::/64");
        assert_eq!(tag("{a}%7B"), "%7Ba%7D%257B");
        assert_eq!(tag(""), "%");
        assert_ne!(tag("%"), tag(""));
        assert_ne!(tag("%up0"), Tag::own(0, 1).0);
    }

    #[test]
    fn each_part_has_a_tag() {
        assert!((0..16).all(|part| Tag::own(part, 16).part(16) == part));
    }

    /// The values are those that `CLUSTER KEYSLOT` gives.
    #[test]
    fn slots_are_those_of_a_cluster() {
        assert_eq!(Tag::new(&"123456789").slot(), 12_739);
        assert_eq!(Tag::new(&"foo").slot(), 12_182);
        assert_eq!((Tag::new(&"foo").part(1), Tag::new(&"foo").part(16)), (0, 11));
    }

    #[test]
    fn quotas_have_names_of_their_own() {
        let quotas = [Quota::per_minute(5), Quota::per_minute(100), Quota::per_day(7)];
        let keys = Keys::new("tollgate", &quotas).map(|keys| keys.of(&Tag::new(&7)).collect::<Vec<_>>());
        assert_eq!(keys.ok(), Some(["min", "min-2", "d"].map(|name| format!("tollgate:{{7}}:tb-{name}")).to_vec()));
        assert!(Keys::new("a{b}", &quotas).is_err());
    }
}
