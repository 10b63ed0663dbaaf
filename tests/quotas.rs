//! Quotas that change while a limiter runs: the cases of the field.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::{Algorithm, BuildError, Decision, GlobalLimiter, IpLimiter, Limiter, ManualClock, Memory, Quota};

const SECOND: u64 = 1_000_000_000;
const MILLISECOND: u64 = 1_000_000;

fn per_seconds(limit: u64, seconds: u64, burst: u64) -> Quota {
    Quota::with_period(limit, Duration::from_secs(seconds)).with_burst(burst)
}

fn limiter(quota: Quota) -> (Limiter<str, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    (Limiter::builder(quota).capacity(100).clock(clock.clone()).build().unwrap(), clock)
}

fn told(decision: Decision) -> (bool, u64, u64) {
    (decision.is_allowed(), decision.remaining(), decision.retry_after().as_nanos().try_into().unwrap())
}

/// K01: what is owed stays owed in units when the rate is raised, and comes back at the new rate at once.
#[test]
fn a_raised_rate_is_felt_at_once_and_forgives_nothing() {
    let (limiter, clock) = limiter(per_seconds(10, 20, 16));
    assert_eq!(limiter.check_n("key", 3).unwrap().remaining(), 13);
    limiter.set_quota(&per_seconds(1_000, 20, 16)).unwrap();
    assert_eq!(told(limiter.peek("key")), (true, 13, 0));
    assert_eq!(told(limiter.check("key")), (true, 12, 0));
    assert_eq!(limiter.peek("key").reset_after(), Duration::from_millis(80));
    clock.set(20 * MILLISECOND);
    assert_eq!(limiter.peek("key").remaining(), 13);
    assert_eq!(limiter.quotas(), [per_seconds(1_000, 20, 16)]);
}

/// K02: a larger burst is there at once, and the debt is kept.
#[test]
fn a_larger_burst_is_there_at_once() {
    let (limiter, _) = limiter(per_seconds(1, 60, 10));
    assert_eq!(limiter.check_n("key", 10).unwrap().remaining(), 0);
    limiter.set_quota(&per_seconds(1, 60, 20)).unwrap();
    for left in (0..10).rev() {
        assert_eq!(told(limiter.check("key")), (true, left, 0));
    }
    assert_eq!(told(limiter.check("key")), (false, 0, 60 * SECOND));
}

/// K03: an entry holds what was used, and nothing of the quota by which it was used.
#[test]
fn a_lowered_limit_keeps_the_debt() {
    for (used, then) in [(5, (true, 5, 0)), (18, (false, 0, 54 * SECOND))] {
        let (limiter, clock) = limiter(per_seconds(20, 60, 20));
        assert_eq!(limiter.check_n("key", used).unwrap().remaining(), 20 - used);
        limiter.set_quota(&per_seconds(10, 60, 10)).unwrap();
        assert_eq!(told(limiter.peek("key")), then);
        if used == 5 {
            assert_eq!(told(limiter.check_n("key", 6).unwrap()), (false, 5, 6 * SECOND));
            assert_eq!(told(limiter.check_n("key", 5).unwrap()), (true, 0, 0));
        } else {
            clock.set(54 * SECOND - 1);
            assert_eq!(told(limiter.check("key")), (false, 0, 1));
            clock.set(54 * SECOND);
            assert!(limiter.check("key").is_allowed());
        }
    }
}

/// K04: changing to an equal quota, or there and back, changes nothing.
#[test]
fn an_equal_quota_gives_nothing_away() {
    for memory in [Memory::Exact, Memory::Compact] {
        let quota = Quota::per_minute(5);
        let horizon = Duration::from_secs(86_400);
        let clock = ManualClock::new();
        let builder = Limiter::<str>::builder(quota).memory(memory).horizon(horizon).clock(clock.clone());
        let limiter = builder.build().unwrap();
        assert_eq!(limiter.check_n("key", 5).unwrap().remaining(), 0);
        limiter.set_quota(&quota).unwrap();
        assert!(!limiter.check("key").is_allowed());
        limiter.set_quota(&Quota::per_minute(50)).unwrap();
        limiter.set_quota(&quota).unwrap();
        assert!(!limiter.check("key").is_allowed());
        clock.set(11_999 * MILLISECOND);
        assert!(!limiter.check("key").is_allowed());
        clock.set(12_001 * MILLISECOND);
        assert!(limiter.check("key").is_allowed());
    }
}

#[test]
fn token_and_leaky_bucket_change_into_each_other() {
    let (limiter, _) = limiter(Quota::per_second(4));
    assert_eq!(limiter.check_n("key", 4).unwrap().remaining(), 0);
    limiter.set_quota(&Quota::per_second(2).with_algorithm(Algorithm::LeakyBucket).with_burst(4)).unwrap();
    let decision = limiter.check("key");
    assert_eq!((decision.is_allowed(), decision.delay()), (true, Duration::from_secs(2)));
    assert_eq!(told(limiter.check("key")), (false, 0, SECOND / 2));
}

#[test]
fn the_window_of_the_change_goes_on_with_its_count() {
    let quota =
        |limit, seconds| Quota::with_period(limit, Duration::from_secs(seconds)).with_algorithm(Algorithm::FixedWindow);
    let (limiter, clock) = limiter(quota(10, 60));
    clock.set(70 * SECOND);
    assert_eq!(limiter.check_n("key", 3).unwrap().remaining(), 7);
    limiter.set_quota(&quota(5, 60)).unwrap();
    assert_eq!(told(limiter.peek("key")), (true, 2, 0));
    limiter.set_quota(&quota(2, 30)).unwrap();
    // The window is now the one from 60 to 90 s. Of 3 units, 2 are of this window and 1 of the next.
    assert_eq!(told(limiter.peek("key")), (false, 0, 20 * SECOND));
    clock.set(90 * SECOND);
    assert_eq!(limiter.peek("key").remaining(), 1);
    limiter.set_quota(&quota(10, 3_600)).unwrap();
    assert_eq!(limiter.check_n("key", 9).unwrap().reset_after(), Duration::from_secs(3_510));
    clock.set(3_600 * SECOND);
    assert_eq!(limiter.peek("key").remaining(), 10);
}

#[test]
fn what_a_window_has_paid_off_a_lower_limit_does_not_bring_back() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindowCounter] {
        let (limiter, clock) = limiter(Quota::per_minute(10).with_algorithm(algorithm));
        assert_eq!(limiter.check_n("key", 10).unwrap().remaining(), 0);
        clock.set(125 * SECOND);
        limiter.set_quota(&Quota::per_minute(2).with_algorithm(algorithm)).unwrap();
        assert_eq!(told(limiter.peek("key")), (true, 2, 0), "{algorithm}");
    }
}

#[test]
fn a_counter_keeps_both_its_counts() {
    let quota = |limit| Quota::per_minute(limit).with_algorithm(Algorithm::SlidingWindowCounter);
    let (limiter, clock) = limiter(quota(10));
    assert_eq!(limiter.check_n("key", 10).unwrap().remaining(), 0);
    clock.set(90 * SECOND);
    // A half of the 10 units of the window before.
    assert_eq!(limiter.peek("key").remaining(), 5);
    limiter.set_quota(&quota(100)).unwrap();
    assert_eq!(limiter.peek("key").remaining(), 95);
    limiter.set_quota(&quota(4)).unwrap();
    // 10 * (60 - e) / 60 is 3 from 42 s on.
    assert_eq!(told(limiter.peek("key")), (false, 0, 12 * SECOND));
}

#[test]
fn what_cannot_be_changed_is_said_and_changes_nothing() {
    let log = Quota::per_minute(2).with_algorithm(Algorithm::SlidingWindowLog);
    let window = Quota::per_minute(2).with_algorithm(Algorithm::FixedWindow);
    let bucket = Quota::per_minute(2);
    let other = |quota: Quota| BuildError::OtherAlgorithm { algorithm: quota.algorithm() };
    let far = |quota: Quota| BuildError::OutOfReach { quota };
    for (from, to, error) in [
        (log, Quota::per_minute(3).with_algorithm(Algorithm::SlidingWindowLog), other(log)),
        (bucket, window, other(window)),
        (window, bucket, other(bucket)),
        (bucket, Quota::per_second(1_000_000_000), far(Quota::per_second(1_000_000_000))),
        (bucket, bucket.with_burst(1 << 25), far(bucket.with_burst(1 << 25))),
        (bucket, Quota::per_minute(0), tollgate::QuotaError::ZeroLimit.into()),
    ] {
        let (limiter, _) = limiter(from);
        assert_eq!(limiter.check("key").remaining(), 1);
        assert_eq!(limiter.set_quota(&to), Err(error.clone()), "{from} to {to}");
        assert_eq!(limiter.quotas(), [from]);
        assert_eq!(told(limiter.check("key")), (true, 0, 0));
        let global = GlobalLimiter::with_clock(from, ManualClock::new()).unwrap();
        assert_eq!(global.set_quota(&to), Err(error));
        assert_eq!(global.quota(), from);
    }
    let (limiter, _) = limiter(bucket);
    assert_eq!(limiter.set_quota_at(1, &bucket), Err(BuildError::NoSuchQuota { index: 1, count: 1 }));
}

#[test]
fn one_of_several_quotas_is_changed() {
    let (clock, seconds) = (ManualClock::new(), Quota::per_second(5));
    let builder = Limiter::<str>::builder(seconds).and(Quota::per_hour(10)).clock(clock.clone());
    let limiter = builder.build().unwrap();
    assert_eq!(limiter.check_n("key", 5).unwrap().quota_index(), 0);
    limiter.set_quota_at(1, &Quota::per_hour(4)).unwrap();
    let refused = limiter.check("key");
    // 5 are owed of 4 an hour: two must come back.
    assert_eq!((refused.quota_index(), refused.retry_after()), (1, Duration::from_secs(1_800)));
    assert_eq!(limiter.quotas(), [seconds, Quota::per_hour(4)]);
}

#[test]
fn the_quota_of_a_tier_is_changed() {
    let address = "192.0.2.1".parse().unwrap();
    let builder = IpLimiter::builder(Quota::per_minute(2)).clock(ManualClock::new());
    let limiter = builder.build().unwrap();
    assert_eq!(limiter.check(address).remaining(), 1);
    limiter.set_quota_at(0, &Quota::per_minute(20)).unwrap();
    assert_eq!(limiter.peek(address).remaining(), 19);
    assert_eq!(limiter.tiers().next().unwrap().1, Quota::per_minute(20));
    assert!(limiter.set_quota_at(1, &Quota::per_minute(20)).is_err());
}

#[test]
fn a_global_quota_is_changed() {
    let clock = ManualClock::new();
    let limiter = GlobalLimiter::with_clock(per_seconds(10, 20, 16), clock.clone()).unwrap();
    assert_eq!(limiter.check_n(3).unwrap().remaining(), 13);
    limiter.set_quota(&per_seconds(1_000, 20, 16)).unwrap();
    assert_eq!(told(limiter.check()), (true, 12, 0));
    limiter.charge(100);
    limiter.refund(100);
    assert_eq!(limiter.peek().reset_after(), Duration::from_millis(80));
}

/// Under a clock that stands still every unit is there to be counted, however often the quota changes meanwhile.
#[test]
fn no_unit_is_lost_while_threads_check_and_change() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindowCounter] {
        let quota = |limit| Quota::per_minute(limit).with_algorithm(algorithm);
        let builder = Limiter::<u64>::builder(quota(100)).capacity(64).other_quotas(2).clock(ManualClock::new());
        let limiter = builder.build().unwrap();
        let plans = [quota(150), quota(120)];
        let granted = [(); 8].map(|()| AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..2_u64 {
                let (limiter, granted, plans) = (&limiter, &granted, &plans);
                scope.spawn(move || {
                    for round in 0..4_000 {
                        let key = (round + thread) % 8;
                        let decision = match round % 3 {
                            0 => limiter.check(&key),
                            plan => limiter.check_with(&key, &plans[plan as usize - 1]).unwrap(),
                        };
                        granted[key as usize].fetch_add(decision.granted(), Ordering::Relaxed);
                    }
                });
                scope.spawn(move || {
                    for round in 0..4_000 {
                        limiter.set_quota(&quota(100 + (round + thread) % 7 * 10)).unwrap();
                    }
                });
            }
        });
        limiter.set_quota(&quota(1_000)).unwrap();
        for (key, granted) in granted.iter().enumerate() {
            let granted = granted.load(Ordering::Relaxed);
            assert!((100..=160).contains(&granted), "{algorithm}: {granted}");
            // Where a debt went over from one quota to another it may have been rounded up by a tick.
            let remaining = limiter.peek(&(key as u64)).remaining();
            let exact = 1_000 - granted;
            assert!(remaining == exact || algorithm == Algorithm::TokenBucket && remaining + 1 == exact);
        }
    }
}

/// The clock of a bucket goes round when its rate is raised far; no round is noticed by keys that are in use.
#[test]
fn a_bucket_goes_on_for_many_rounds() {
    let (limiter, clock) = limiter(Quota::per_hour(1));
    let quota = Quota::per_second(200);
    limiter.set_quota(&quota).unwrap();
    for hour in 0..100 {
        clock.set(hour * 3_600 * SECOND);
        assert_eq!(told(limiter.check_n("key", 200).unwrap()), (true, 0, 0), "hour {hour}");
        assert_eq!(told(limiter.check("key")), (false, 0, 5 * MILLISECOND));
        limiter.sweep();
        assert_eq!(limiter.len(), 1);
    }
}

/// What is owed stays owed however far away it is: the states of a bucket may be ahead of its clock by nearly all of it.
#[test]
fn no_debt_is_forgiven() {
    let day = Duration::from_secs(86_400);
    for (quota, memory, debt) in [
        (Quota::per_hour(1), Memory::Compact, 12),
        (Quota::per_hour(99_991).with_burst(1_000), Memory::Exact, 400_000),
        (Quota::per_second(13), Memory::Exact, u64::MAX),
    ] {
        let builder = Limiter::<str>::builder(quota).memory(memory).horizon(day).clock(ManualClock::new());
        let limiter = builder.build().unwrap();
        limiter.charge("key", debt);
        let before = limiter.peek("key").retry_after().as_secs_f64();
        limiter.set_quota(&quota).unwrap();
        let after = limiter.peek("key").retry_after().as_secs_f64();
        assert!((before * 0.999_999..before * 1.001).contains(&after), "{quota}: {before} {after}");
    }
}

/// A clock that steps back, or two threads of which one has read it a little earlier: windows keep their numbers.
#[test]
fn a_change_before_the_last_gives_nothing_back() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindowCounter] {
        for back in [1, SECOND, 10 * SECOND] {
            let quota = Quota::per_second(10).with_algorithm(algorithm);
            let (limiter, clock) = limiter(quota);
            clock.set(100 * SECOND);
            limiter.set_quota(&quota).unwrap();
            assert!(limiter.check_n("key", 10).unwrap().is_allowed());
            clock.set(100 * SECOND - back);
            limiter.set_quota(&quota).unwrap();
            clock.set(100 * SECOND);
            assert!(!limiter.check("key").is_allowed(), "{algorithm}, {back} ns");
        }
    }
}

/// However often the quota is set, parts of a tick are not lost.
#[test]
fn a_quota_that_is_set_all_the_time_gives_its_units() {
    for (quota, other) in [(10, 10), (10, 7)] {
        let (quota, other) = (Quota::per_second(quota), Quota::per_second(other).with_burst(10));
        let clock = ManualClock::new();
        let builder = Limiter::<str>::builder(quota).memory(Memory::Compact).clock(clock.clone());
        let limiter = builder.build().unwrap();
        assert!(limiter.check_n("key", 10).unwrap().is_allowed());
        for step in 1..=10_000 {
            clock.set(step * SECOND / 10_000);
            limiter.set_quota(if step % 2 == 0 { &quota } else { &other }).unwrap();
        }
        // 10, or half of the time 7, have come back in a second; at most one tick is late.
        assert!(limiter.peek("key").remaining() >= quota.limit().midpoint(other.limit()) - 1, "{other}");
    }
}
