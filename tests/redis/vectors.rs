//! The vectors of `tests/vectors`, with a microsecond for each nanosecond, so that every number can be exact.

use std::time::Duration;

use tollgate::redis::{RedisLimiter, SharedDecision, Source};
use tollgate::{ManualClock, Quota};

use crate::process::Redis;
use crate::vectors::{Case, cases};

/// Times that the script's numbers keep exactly, with room for a burst.
const LONGEST: u64 = 1 << 52;

/// How the times of a case become those of a server that knows microseconds.
struct Scale {
    /// The nanoseconds of the case before its times; whole periods, so that windows begin as they do.
    begin: u64,
}

/// A microsecond, for a nanosecond.
const FACTOR: u64 = 1_000;

impl Scale {
    /// `None` for quotas of a year, which in microseconds for nanoseconds is too long for anybody.
    fn of(case: &Case) -> Option<Self> {
        let times = || case.steps.iter().map(|step| step.0);
        let (first, last) = (times().min().unwrap(), times().max().unwrap());
        let begin = if last < LONGEST { 0 } else { first - first % case.policy.period_ns };
        let reach = (last - begin).max(case.policy.period_ns);
        (reach < 2 * LONGEST).then_some(Self { begin })
    }

    fn quota(case: &Case) -> Quota {
        let quota: Quota = case.policy.quota().parse().unwrap();
        let scaled = Quota::with_period(quota.limit(), quota.period() * u32::try_from(FACTOR).unwrap());
        let scaled = scaled.with_algorithm(quota.algorithm());
        if quota.algorithm().takes_burst() { scaled.with_burst(quota.burst()) } else { scaled }
    }

    fn time(&self, at: u64) -> u64 {
        (at - self.begin) * FACTOR
    }
}

/// Without what is remembered of refusals, or with that, which changes no decision but where the clock goes back.
async fn run(case: &Case, redis: &Redis, remembers: bool) {
    let Some(scale) = Scale::of(case) else {
        assert_eq!(case.policy.period_ns, 365 * 86_400 * 1_000_000_000);
        return;
    };
    let clock = ManualClock::new();
    let prefix = format!("{}-{remembers}", case.name);
    let builder = RedisLimiter::builder(Scale::quota(case)).prefix(prefix).clock(clock.clone()).remember(remembers);
    let limiter = builder.deadline(Duration::from_secs(60)).build(&redis.url()).unwrap();
    for (step, (&(at, ref key, cost), expected)) in case.steps.iter().zip(&case.expect).enumerate() {
        clock.set(scale.time(at));
        let checked = limiter.check_n(key, cost).await;
        let source = checked.as_ref().map(SharedDecision::source);
        let answer = match &checked {
            Ok(answer) => Ok(answer.decision()),
            Err(_) => Err(limiter.peek(key).await.decision()),
        };
        let &(allowed, remaining, retry, reset, delay) = expected;
        let place = format!("{}, step {step} {:?}: {answer:?}", case.name, case.steps[step]);
        assert_eq!(answer.is_err(), retry.is_none(), "{place}: never, or not");
        let (Ok(decision) | Err(decision)) = answer;
        assert_eq!(answer.is_ok_and(|decision| decision.is_allowed()), allowed, "{place}");
        // What is remembered of a refusal does not tell what windows and logs had left, nor when they are full again.
        let is_known = case.policy.algorithm.ends_with("-bucket") || source != Ok(Source::Remembered);
        assert!(!is_known || decision.remaining() == remaining, "{place}: remaining {remaining}");
        let is_right = |got: Duration, want| case.is_right(u64::try_from(got.as_nanos()).unwrap() / FACTOR, want);
        assert!(retry.is_none_or(|retry| is_right(decision.retry_after(), retry)), "{place}: retry {retry:?}");
        assert!(is_right(decision.delay(), delay), "{place}: delay {delay}");
        assert!(!is_known || is_right(decision.reset_after(), reset), "{place}: reset {reset}");
    }
    assert_eq!(limiter.stats().alone, 0, "{}", case.name);
}

async fn run_all(algorithm: &str, at_least: usize) {
    let redis = Redis::start();
    let cases = cases(algorithm);
    assert!(cases.len() >= at_least);
    for case in cases {
        run(&case, &redis, false).await;
        if case.steps.is_sorted_by_key(|step| step.0) {
            run(&case, &redis, true).await;
        }
    }
    assert!(redis.keys().iter().all(|(_, ttl)| *ttl >= 0), "a key is there for ever");
}

#[tokio::test]
async fn token_bucket() {
    run_all("token-bucket", 30).await;
}

#[tokio::test]
async fn leaky_bucket() {
    run_all("leaky-bucket", 17).await;
}

#[tokio::test]
async fn fixed_window() {
    run_all("fixed-window", 18).await;
}

#[tokio::test]
async fn sliding_window_counter() {
    run_all("sliding-window-counter", 20).await;
}

#[tokio::test]
async fn sliding_window_log() {
    run_all("sliding-window-log", 16).await;
}
