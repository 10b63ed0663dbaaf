//! The vectors, which an independent model worked out in exact rational arithmetic, through `simulate`.

use std::fmt::Write;

use super::support::{Case, cases};
use super::{failure, output};

fn input(case: &Case) -> String {
    let mut csv = "t_ns,key,cost\n".to_owned();
    for (time, key, cost) in &case.steps {
        writeln!(csv, "{time},{key},{cost}").unwrap();
    }
    csv
}

fn check(case: &Case) {
    let text = output(&["simulate", "--quota", &case.policy.quota(), "-"], input(case));
    let rows: Vec<&str> = text.lines().skip(1).collect();
    assert_eq!((rows.len(), case.steps.len()), (case.expect.len(), case.expect.len()), "{}", case.name);
    for (index, row) in rows.into_iter().enumerate() {
        check_row(case, index, row);
    }
}

fn check_row(case: &Case, index: usize, row: &str) {
    let (time, key, cost) = &case.steps[index];
    let (allowed, remaining, retry_after, reset_after, delay) = case.expect[index];
    let context = format!("{}, row {index}: {row} instead of {:?}", case.name, case.expect[index]);
    let fields: Vec<&str> = row.split(',').collect();
    let expected = [time.to_string(), key.clone(), cost.to_string(), allowed.to_string(), remaining.to_string()];
    assert_eq!((fields.len(), &fields[..5]), (8, &expected.each_ref().map(String::as_str)[..]), "{context}");
    match retry_after {
        None => assert_eq!(fields[5], "never", "{context}"),
        Some(nanos) => check_time(case, fields[5], nanos, &context),
    }
    check_time(case, fields[6], reset_after, &context);
    check_time(case, fields[7], delay, &context);
}

fn check_time(case: &Case, actual: &str, expected: u64, context: &str) {
    let actual: u64 = actual.parse().unwrap_or_else(|_| panic!("{context}: {actual:?} is no time"));
    assert!(case.is_right(actual, expected), "{context}: {actual} instead of {expected}");
}

#[test]
fn token_bucket() {
    let cases = cases("token-bucket");
    assert_eq!(cases.len(), 30);
    cases.iter().for_each(check);
}

#[test]
fn leaky_bucket() {
    let cases = cases("leaky-bucket");
    assert_eq!(cases.len(), 17);
    cases.iter().for_each(check);
}

#[test]
fn sliding_window_log() {
    let cases = cases("sliding-window-log");
    assert_eq!(cases.len(), 16);
    cases.iter().for_each(check);
}

#[test]
fn fixed_window() {
    let cases = cases("fixed-window");
    assert_eq!(cases.len(), 18);
    cases.iter().for_each(check);
}

#[test]
fn sliding_window_counter() {
    let (too_large, cases): (Vec<_>, Vec<_>) =
        cases("sliding-window-counter").into_iter().partition(|case| case.policy.limit == 1 << 31);
    assert_eq!((too_large.len(), cases.len()), (1, 19));
    cases.iter().for_each(check);
    // Two counts of 31 bits and the number of a window do not fit into a cell; that must be said, not got wrong.
    for case in too_large {
        let message = failure(&["simulate", "--quota", &case.policy.quota(), "-"], input(&case));
        assert!(message.contains("too large"), "{message}");
    }
}
