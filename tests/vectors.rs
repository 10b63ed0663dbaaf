//! Every vector of `tests/vectors`, through the library: a keyed limiter, and one cell.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use serde::Deserialize;
use tollgate::{BuildError, Decision, GlobalLimiter, Limiter, ManualClock, Quota};

#[derive(Deserialize)]
struct Case {
    name: String,
    policy: Policy,
    exact: bool,
    steps: Vec<(u64, String, u64)>,
    expect: Vec<Expected>,
}

#[derive(Deserialize)]
struct Policy {
    algorithm: String,
    limit: u64,
    period_ns: u64,
    burst: u64,
}

/// allowed, remaining, `retry_after`, `reset_after`, delay, in nanoseconds.
type Expected = (bool, u64, Option<u64>, u64, u64);

fn cases(algorithm: &str) -> Vec<Case> {
    let path = format!("{}/tests/vectors/{algorithm}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn quota(policy: &Policy) -> Quota {
    let text = format!("{}/{}ns algorithm={}", policy.limit, policy.period_ns, policy.algorithm);
    let quota: Quota = text.parse().unwrap();
    if quota.algorithm().takes_burst() { quota.with_burst(policy.burst) } else { quota }
}

fn horizon(case: &Case) -> Duration {
    let times = || case.steps.iter().map(|step| step.0);
    Duration::from_nanos(times().max().unwrap() - times().min().unwrap())
}

/// Times: exact where the case is, else to one part in a million plus 2 ns.
fn close(exact: bool, got: Duration, want: u64) -> bool {
    let got = u64::try_from(got.as_nanos()).unwrap();
    got.abs_diff(want) <= if exact { 0 } else { want / 1_000_000 + 2 }
}

fn check(case: &Case, step: usize, result: Result<Decision, Decision>) {
    let (allowed, remaining, retry, reset, delay) = case.expect[step];
    let place = format!("{}, step {step} {:?}: {result:?}", case.name, case.steps[step]);
    assert_eq!(result.is_err(), retry.is_none(), "{place}: never, or not");
    let (Ok(decision) | Err(decision)) = result;
    assert_eq!(result.is_ok_and(|decision| decision.is_allowed()), allowed, "{place}");
    assert_eq!(decision.remaining(), remaining, "{place}: remaining {remaining}");
    assert!(retry.is_none_or(|retry| close(case.exact, decision.retry_after(), retry)), "{place}: retry {retry:?}");
    assert!(close(case.exact, decision.reset_after(), reset), "{place}: reset {reset}");
    assert!(close(case.exact, decision.delay(), delay), "{place}: delay {delay}");
}

fn keyed(case: &Case) -> Result<(), BuildError> {
    let clock = ManualClock::at(case.steps.iter().map(|step| step.0).min().unwrap());
    let limiter = Limiter::<String>::builder(quota(&case.policy))
        .capacity(1_000)
        .clock(clock.clone())
        .horizon(horizon(case))
        .build()?;
    for (index, (at, key, cost)) in case.steps.iter().enumerate() {
        clock.set(*at);
        check(case, index, limiter.check_n(key, *cost).map_err(|_| limiter.peek(key)));
    }
    assert_eq!(limiter.stats().displaced, 0);
    Ok(())
}

/// The same for each key by itself, in a limiter that has none.
fn single(case: &Case) {
    for key in ["a", "k", "k0", "k1", "k2"] {
        let clock = ManualClock::at(case.steps.iter().map(|step| step.0).min().unwrap());
        let limiter = GlobalLimiter::with_horizon(quota(&case.policy), clock.clone(), horizon(case)).unwrap();
        for (index, (at, _, cost)) in case.steps.iter().enumerate().filter(|(_, step)| step.1 == key) {
            clock.set(*at);
            check(case, index, limiter.check_n(*cost).map_err(|_| limiter.peek()));
        }
    }
}

fn run(algorithm: &str, at_least: usize) {
    let cases = cases(algorithm);
    assert!(cases.len() >= at_least);
    for case in cases {
        assert_eq!(case.steps.len(), case.expect.len());
        match keyed(&case) {
            Ok(()) => single(&case),
            // Two counts of 32 bits do not fit into a cell.
            Err(error) => {
                assert_eq!((algorithm, case.policy.limit), ("sliding-window-counter", 1 << 31), "{error}");
                assert!(matches!(error, BuildError::LimitTooLarge { limit: 2_147_483_648, .. }), "{error}");
            }
        }
    }
}

#[test]
fn token_bucket() {
    run("token-bucket", 30);
}

#[test]
fn fixed_window() {
    run("fixed-window", 18);
}

#[test]
fn sliding_window_counter() {
    run("sliding-window-counter", 20);
}
