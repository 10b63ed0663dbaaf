//! Every vector of `tests/vectors`, through the library: a keyed limiter, and one cell.
#![allow(clippy::unwrap_used)]

#[path = "support/vectors.rs"]
mod vectors;

use std::time::Duration;

use tollgate::{BuildError, Decision, GlobalLimiter, Limiter, ManualClock, Quota};
use vectors::{Case, cases};

fn quota(case: &Case) -> Quota {
    case.policy.quota().parse().unwrap()
}

fn nanos(duration: Duration) -> u64 {
    duration.as_nanos().try_into().unwrap()
}

fn horizon(case: &Case) -> Duration {
    let times = || case.steps.iter().map(|step| step.0);
    Duration::from_nanos(times().max().unwrap() - times().min().unwrap())
}

fn check(case: &Case, step: usize, result: Result<Decision, Decision>) {
    let (allowed, remaining, retry, reset, delay) = case.expect[step];
    let place = format!("{}, step {step} {:?}: {result:?}", case.name, case.steps[step]);
    assert_eq!(result.is_err(), retry.is_none(), "{place}: never, or not");
    let (Ok(decision) | Err(decision)) = result;
    assert_eq!(result.is_ok_and(|decision| decision.is_allowed()), allowed, "{place}");
    assert_eq!(decision.remaining(), remaining, "{place}: remaining {remaining}");
    assert!(retry.is_none_or(|retry| case.is_right(nanos(decision.retry_after()), retry)), "{place}: retry {retry:?}");
    assert!(case.is_right(nanos(decision.reset_after()), reset), "{place}: reset {reset}");
    assert!(case.is_right(nanos(decision.delay()), delay), "{place}: delay {delay}");
}

fn keyed(case: &Case) -> Result<(), BuildError> {
    let clock = ManualClock::at(case.steps.iter().map(|step| step.0).min().unwrap());
    let limiter =
        Limiter::<String>::builder(quota(case)).capacity(1_000).clock(clock.clone()).horizon(horizon(case)).build()?;
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
        let limiter = GlobalLimiter::with_horizon(quota(case), clock.clone(), horizon(case)).unwrap();
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
fn leaky_bucket() {
    run("leaky-bucket", 17);
}

#[test]
fn sliding_window_log() {
    run("sliding-window-log", 16);
}

#[test]
fn fixed_window() {
    run("fixed-window", 18);
}

#[test]
fn sliding_window_counter() {
    run("sliding-window-counter", 20);
}
