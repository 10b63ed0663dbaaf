//! The vectors of `tests/vectors`: decisions that an independent model worked out in exact rational arithmetic.

use serde::Deserialize;

#[derive(Deserialize)]
pub struct Case {
    pub name: String,
    pub policy: Policy,
    /// Whether every number must be exact, for the emission interval is a whole number of nanoseconds.
    pub exact: bool,
    /// Time in nanoseconds, key, cost.
    pub steps: Vec<(u64, String, u64)>,
    pub expect: Vec<Expected>,
}

/// allowed, remaining, retry after (none, where no wait helps), reset after and delay, in nanoseconds.
pub type Expected = (bool, u64, Option<u64>, u64, u64);

#[derive(Deserialize)]
pub struct Policy {
    pub algorithm: String,
    pub limit: u64,
    pub period_ns: u64,
    pub burst: u64,
}

impl Policy {
    /// The text form of the quota.
    pub fn quota(&self) -> String {
        let Self { algorithm, limit, period_ns, burst } = self;
        let burst = if algorithm.ends_with("-bucket") { format!(" burst={burst}") } else { String::new() };
        format!("{limit}/{period_ns}ns{burst} algorithm={algorithm}")
    }
}

impl Case {
    /// Whether a time is right: exactly where the case is exact, else to one part in a million plus 2 ns.
    pub fn is_right(&self, got: u64, want: u64) -> bool {
        got.abs_diff(want) <= if self.exact { 0 } else { want / 1_000_000 + 2 }
    }
}

pub fn cases(algorithm: &str) -> Vec<Case> {
    let path = format!("{}/tests/vectors/{algorithm}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}
