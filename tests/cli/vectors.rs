//! The vectors, which an independent model worked out in exact rational arithmetic, through `simulate`.

use std::fmt::Write;

use serde::Deserialize;

use super::{failure, output, project_file};

#[derive(Deserialize)]
struct Case {
    name: String,
    policy: Policy,
    /// Whether every number must be exact, for the emission interval is a whole number of nanoseconds.
    exact: bool,
    steps: Vec<(u64, String, u64)>,
    /// allowed, remaining, retry after (none, where no wait helps), reset after and delay.
    expect: Vec<(bool, u64, Option<u64>, u64, u64)>,
}

#[derive(Deserialize)]
struct Policy {
    algorithm: String,
    limit: u64,
    period_ns: u64,
    burst: u64,
}

impl Policy {
    fn quota(&self) -> String {
        let Self { algorithm, limit, period_ns, burst } = self;
        let burst = if algorithm == "token-bucket" { format!(" burst={burst}") } else { String::new() };
        format!("{limit}/{period_ns}ns{burst} algorithm={algorithm}")
    }
}

fn cases(algorithm: &str) -> Vec<Case> {
    let file = project_file(&format!("tests/vectors/{algorithm}.json"));
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

impl Case {
    fn input(&self) -> String {
        let mut csv = "t_ns,key,cost\n".to_owned();
        for (time, key, cost) in &self.steps {
            writeln!(csv, "{time},{key},{cost}").unwrap();
        }
        csv
    }

    fn check(&self) {
        let text = output(&["simulate", "--quota", &self.policy.quota(), "-"], self.input());
        let rows: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!((rows.len(), self.steps.len()), (self.expect.len(), self.expect.len()), "{}", self.name);
        for (index, row) in rows.into_iter().enumerate() {
            self.check_row(index, row);
        }
    }

    fn check_row(&self, index: usize, row: &str) {
        let (time, key, cost) = &self.steps[index];
        let (allowed, remaining, retry_after, reset_after, delay) = self.expect[index];
        let context = format!("{}, row {index}: {row} instead of {:?}", self.name, self.expect[index]);
        let fields: Vec<&str> = row.split(',').collect();
        let expected = [time.to_string(), key.clone(), cost.to_string(), allowed.to_string(), remaining.to_string()];
        assert_eq!((fields.len(), &fields[..5]), (8, &expected.each_ref().map(String::as_str)[..]), "{context}");
        match retry_after {
            None => assert_eq!(fields[5], "never", "{context}"),
            Some(nanos) => self.check_time(fields[5], nanos, &context),
        }
        self.check_time(fields[6], reset_after, &context);
        self.check_time(fields[7], delay, &context);
    }

    fn check_time(&self, actual: &str, expected: u64, context: &str) {
        let actual: u64 = actual.parse().unwrap_or_else(|_| panic!("{context}: {actual:?} is no time"));
        let tolerance = if self.exact { 0 } else { expected / 1_000_000 + 2 };
        assert!(actual.abs_diff(expected) <= tolerance, "{context}: {actual} instead of {expected}");
    }
}

#[test]
fn token_bucket() {
    let cases = cases("token-bucket");
    assert_eq!(cases.len(), 30);
    cases.iter().for_each(Case::check);
}

#[test]
fn fixed_window() {
    let cases = cases("fixed-window");
    assert_eq!(cases.len(), 18);
    cases.iter().for_each(Case::check);
}

#[test]
fn sliding_window_counter() {
    let (too_large, cases): (Vec<_>, Vec<_>) =
        cases("sliding-window-counter").into_iter().partition(|case| case.policy.limit == 1 << 31);
    assert_eq!((too_large.len(), cases.len()), (1, 19));
    cases.iter().for_each(Case::check);
    // Two counts of 31 bits and the number of a window do not fit into a cell; that must be said, not got wrong.
    for case in too_large {
        let message = failure(&["simulate", "--quota", &case.policy.quota(), "-"], case.input());
        assert!(message.contains("too large"), "{message}");
    }
}
