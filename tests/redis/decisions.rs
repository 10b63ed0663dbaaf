//! Decisions are those of the limiter in process, whatever is asked, and whatever is found in Redis.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use tokio::runtime::Runtime;
use tollgate::redis::{RedisLimiter, Source};
use tollgate::{Algorithm, Decision, Limiter, ManualClock, Quota};

use crate::process::{Redis, eventually};

/// Where nothing takes so long that a deadline matters.
const PATIENT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
enum Step {
    Check(u64),
    Charge(u64),
    Refund(u64),
    Reset,
    /// In microseconds.
    Wait(u64),
}

/// Periods from 10 us to a day, with limits that do and do not divide them.
fn quotas() -> impl Strategy<Value = Quota> {
    let period = prop_oneof![10_u64..100_000, Just(60_000_000), Just(86_400_000_000), 1_000_000_u64..10_000_000_000];
    (prop::sample::select(Algorithm::ALL), 1_u64..20, period, 1_u64..30).prop_map(
        |(algorithm, limit, period, burst)| {
            let quota = Quota::with_period(limit, Duration::from_micros(period)).with_algorithm(algorithm);
            if algorithm.takes_burst() { quota.with_burst(burst) } else { quota }
        },
    )
}

/// Waits are measured by the period, in 100ths.
fn steps(period: u64) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0_u64..6).prop_map(Step::Check),
        1 => (0_u64..40).prop_map(Step::Charge),
        1 => (0_u64..10).prop_map(Step::Refund),
        1 => Just(Step::Reset),
        4 => (0..=period / 20).prop_map(Step::Wait),
        1 => (0..=3 * period).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..40)
}

fn histories() -> impl Strategy<Value = (Quota, Vec<Step>)> {
    quotas().prop_flat_map(|quota| (Just(quota), steps(u64::try_from(quota.period().as_micros()).unwrap())))
}

/// Times to whole microseconds, rounded up, as Redis knows nothing finer.
fn summary(decision: &Decision) -> (bool, u64, u64, [u128; 5]) {
    let micros = |duration: Duration| duration.as_nanos().div_ceil(1_000);
    let times = [decision.retry_after(), decision.available_after(), decision.more_after(), decision.reset_after()];
    let [retry, available, more, reset] = times.map(micros);
    (
        decision.is_allowed(),
        decision.limit(),
        decision.remaining(),
        [retry, available, more, reset, micros(decision.delay())],
    )
}

/// A server for all cases of a property, each with a prefix of its own.
static SERVER: LazyLock<Redis> = LazyLock::new(Redis::start);

async fn agree(quota: Quota, steps: &[Step], prefix: String) {
    let clock = ManualClock::at(1_000_000_000);
    // So short a horizon that the ticks in process are exact, too.
    let horizon = 130 * quota.period() + 130 * quota.emission_interval() * u32::try_from(quota.burst()).unwrap();
    let builder = Limiter::<str>::builder(quota).capacity(100).clock(clock.clone()).horizon(horizon);
    let Ok(here) = builder.build() else { return };
    let builder = RedisLimiter::builder(quota).prefix(prefix).clock(clock.clone()).deadline(PATIENT).remember(false);
    let there = builder.build(&SERVER.url()).unwrap();
    for (place, step) in steps.iter().enumerate() {
        match *step {
            Step::Check(cost) => {
                let (here, there) = (here.check_n("a", cost), there.check_n("a", cost).await);
                assert_eq!(here.is_err(), there.is_err());
                if let (Ok(here), Ok(there)) = (here, there) {
                    assert_eq!(summary(&here), summary(&there.decision()), "{quota}, step {place} of {steps:?}");
                }
            }
            Step::Charge(units) => {
                // Beyond that the two cut debts short in different places.
                let units = units.min(3 * quota.limit());
                if here.peek("a").reset_after() < 3 * quota.period() {
                    here.charge("a", units);
                    assert!(there.charge("a", units).await);
                }
            }
            Step::Refund(units) => {
                here.refund("a", units);
                assert!(there.refund("a", units).await);
            }
            Step::Reset => {
                here.reset("a");
                assert!(there.reset("a").await);
            }
            Step::Wait(micros) => clock.advance(Duration::from_micros(micros)),
        }
        let (here, there) = (here.peek("a"), there.peek("a").await);
        assert_eq!(summary(&here), summary(&there.decision()), "{quota}, after step {place} of {steps:?}");
    }
    assert_eq!(there.stats().alone, 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn decisions_are_those_of_the_limiter_in_process((quota, steps) in histories()) {
        static CASES: AtomicU64 = AtomicU64::new(0);
        let prefix = format!("case{}", CASES.fetch_add(1, Ordering::Relaxed));
        Runtime::new().unwrap().block_on(agree(quota, &steps, prefix));
    }
}

fn limiter(redis: &Redis, quota: &str) -> RedisLimiter {
    RedisLimiter::builder(quota.parse().unwrap()).deadline(PATIENT).build(&redis.url()).unwrap()
}

#[tokio::test]
async fn several_quotas_are_one_decision() {
    let redis = Redis::start();
    let clock = ManualClock::at(86_400_000_000_000);
    for algorithm in Algorithm::ALL {
        let builder = RedisLimiter::builder(Quota::per_minute(5)).prefix(algorithm.name()).deadline(PATIENT);
        let builder = builder.and(Quota::per_hour(3).with_algorithm(*algorithm)).and(Quota::per_minute(9));
        let limiter = builder.clock(clock.clone()).remember(false).build(&redis.url()).unwrap();
        let limits = limiter.peek("a").await.each().iter().map(Decision::limit).collect::<Vec<_>>();
        let hourly = limits[1];
        assert_eq!((limits[0], limits[2]), (5, 9));
        for left in (0..hourly).rev() {
            let answer = limiter.check("a").await;
            assert!(answer.is_allowed());
            assert_eq!(answer.each()[1].remaining(), left);
            assert_eq!(answer.source(), Source::Redis);
        }
        let refused = limiter.check("a").await;
        assert_eq!((refused.is_allowed(), refused.decision().quota_index()), (false, 1), "{algorithm}");
        assert_eq!(refused.each().iter().map(Decision::is_allowed).collect::<Vec<_>>(), [true, false, true]);
        assert_eq!(refused.each()[0].remaining(), 5 - hourly, "what one refuses is not charged to the others");
        let error = limiter.check_n("a", 5).await.map(|_| ()).unwrap_err();
        assert_eq!((error.cost, error.limit), (5, hourly));
    }
    assert!(redis.keys().iter().all(|(_, ttl)| *ttl >= 0));
}

/// A case of the field: a counter that never expires shuts a client out for ever.
#[tokio::test]
async fn a_key_that_never_expires_is_mended() {
    let redis = Redis::start();
    for algorithm in Algorithm::ALL {
        let quota = Quota::with_period(3, Duration::from_millis(100)).with_algorithm(*algorithm);
        let builder = RedisLimiter::builder(quota).prefix(algorithm.name()).deadline(PATIENT);
        let limiter = builder.remember(false).build(&redis.url()).unwrap();
        let key = &limiter.keys_of("a")[0];
        // Someone's INCR, above the limit.
        redis.command(&["SET", key, "7"]);
        let refused = limiter.check("a").await;
        assert!(!refused.is_allowed(), "{algorithm}: what was counted counts");
        let ttl = redis.keys().iter().find(|(found, _)| found == key).unwrap().1;
        assert!(ttl > 0 && ttl <= 300, "{algorithm}: {ttl}");
        assert!(refused.decision().retry_after() <= Duration::from_millis(200), "{algorithm}");

        // One of ours, that has lost its time to live.
        redis.command(&["DEL", key]);
        assert!(limiter.check_n("a", 3).await.unwrap().is_allowed());
        for look in [true, false] {
            redis.command(&["PERSIST", key]);
            let _ = if look { limiter.peek("a").await } else { limiter.check_n("a", 3).await.unwrap() };
            assert!(redis.keys().iter().all(|(_, ttl)| *ttl >= 0), "{algorithm}");
        }

        // What is none of ours makes room.
        for other in [vec!["SET", key, "nonsense"], vec!["LPUSH", key, "1"], vec!["ZADD", key, "-5", "x"]] {
            redis.command(&["DEL", key]);
            redis.command(&other);
            assert!(limiter.check("a").await.is_allowed(), "{algorithm} {other:?}");
            assert!(redis.keys().iter().all(|(_, ttl)| *ttl >= 0), "{algorithm}");
        }
    }
    eventually("all keys expire", || redis.keys().is_empty());
}

/// A case of the field: a state that lives for less than a millisecond has to live that long.
#[tokio::test]
async fn high_rates_are_limited() {
    let redis = Redis::start();
    let clock = ManualClock::at(1);
    for (quota, left) in [("6000/s", [5_999, 5_998, 5_997]), ("1000/min", [999, 998, 997])] {
        let builder = RedisLimiter::builder(quota.parse().unwrap()).prefix(quota.replace('/', ":"));
        let limiter = builder.clock(clock.clone()).deadline(PATIENT).build(&redis.url()).unwrap();
        for expected in left {
            assert_eq!(limiter.check("a").await.decision().remaining(), expected);
        }
    }
    // By the server's time: two units, of which each takes 20 us to come back, so that the key expires within a millisecond.
    let limiter = limiter(&redis, "50000/s burst=2");
    let mut refused = 0;
    for _ in 0..200 {
        refused += u32::from(!limiter.check_n("b", 2).await.unwrap().is_allowed());
    }
    assert!(refused < 200, "nobody comes back");
}

#[tokio::test]
async fn limits_as_large_as_they_can_be_are_exact() {
    let redis = Redis::start();
    let clock = ManualClock::at(1_800_000_000_000_000_000);
    let largest = 1 << 52;
    let day = Duration::from_secs(86_400);
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindowCounter] {
        // Not one a nanosecond more than a clock tells.
        let limit = largest.min(u64::try_from(day.as_nanos()).unwrap() * 50);
        let quota = Quota::with_period(limit, 100 * day).with_algorithm(algorithm);
        let builder = RedisLimiter::builder(quota).clock(clock.clone()).deadline(PATIENT);
        let limiter = builder.build(&redis.url()).unwrap();
        assert!(limiter.check_n("a", limit - 1).await.unwrap().is_allowed());
        assert_eq!(limiter.check("a").await.decision().remaining(), 0);
        assert!(!limiter.check("a").await.is_allowed());
    }
    // Half a window later half of what the window before had still counts, to the unit, though the product has 100 bits.
    let limit = (1 << 51) + 1;
    let quota = Quota::with_period(limit, 100 * day).with_algorithm(Algorithm::SlidingWindowCounter);
    let period = u64::try_from(quota.period().as_nanos()).unwrap();
    clock.set(1_000 * period);
    let builder = RedisLimiter::builder(quota).prefix("half").clock(clock.clone()).deadline(PATIENT);
    let limiter = builder.build(&redis.url()).unwrap();
    assert!(limiter.check_n("a", limit).await.unwrap().is_allowed());
    clock.set(1_001 * period + period / 2);
    assert_eq!(limiter.peek("a").await.decision().remaining(), limit - limit.div_ceil(2));
}

#[tokio::test]
async fn what_cannot_be_kept_is_told_when_it_is_built() {
    let build = |quota: &str| {
        RedisLimiter::builder(quota.parse().unwrap()).build("redis://localhost/").map(|_| ()).unwrap_err().to_string()
    };
    assert!(build("5/1500ns algorithm=fixed-window").contains("whole number of microseconds"));
    assert!(build("100001/min algorithm=sliding-window-log").contains("at most 100000"));
    assert!(build("4500000000000001/31536000000000007ns").contains("too odd"));
    let with =
        |builder: tollgate::redis::RedisBuilder, url: &str| builder.build(url).map(|_| ()).unwrap_err().to_string();
    let builder = || RedisLimiter::builder(Quota::per_second(1));
    assert!(with(builder(), "http://localhost/").contains("redis://"));
    assert!(with(builder().prefix("a{b}"), "redis://localhost/").contains("braces"));
    assert!(with(builder().capacity(0), "redis://localhost/").contains("capacity"));
    assert!(with(RedisLimiter::builder(Quota::per_second(0)), "redis://localhost/").contains("limit is 0"));
}

/// The time is that of the Redis server.
#[tokio::test(flavor = "multi_thread")]
async fn who_comes_back_in_time_is_admitted() {
    let redis = Redis::start();
    let limiter = limiter(&redis, "1/50ms");
    assert!(limiter.check("a").await.is_allowed());
    let mut refused = 0;
    while !limiter.check("a").await.is_allowed() {
        refused += 1;
    }
    let stats = limiter.stats();
    assert_eq!((stats.shared, stats.remembered + 1), (3, refused), "one refusal comes from Redis");
}
