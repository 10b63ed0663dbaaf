//! Quotas that differ from key to key, and quotas that change while a limiter runs: the cases of the field, and two models
//! in whole numbers.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use tollgate::{
    Algorithm, BuildError, CheckError, Decision, GlobalLimiter, IpLimiter, Limiter, ManualClock, Memory, Quota, Request,
};

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

mod per_key {
    use super::*;

    const FREE: Quota = Quota::per_minute(10);
    const PRO: Quota = Quota::per_minute(1_000);

    fn limiter() -> (Limiter<str, ManualClock>, ManualClock) {
        let clock = ManualClock::new();
        (Limiter::builder(FREE).capacity(100).other_quotas(3).clock(clock.clone()).build().unwrap(), clock)
    }

    #[test]
    fn a_key_that_changes_its_plan_takes_its_debt_along() {
        let (limiter, clock) = limiter();
        for _ in 0..10 {
            assert!(limiter.check("alice").is_allowed());
        }
        assert_eq!(told(limiter.check("alice")), (false, 0, 6 * SECOND));
        assert_eq!(limiter.peek_with("alice", &PRO).unwrap().remaining(), 990);
        assert_eq!(told(limiter.check_with("alice", &PRO).unwrap()), (true, 989, 0));
        clock.set(60 * MILLISECOND);
        assert_eq!(limiter.peek_with("alice", &PRO).unwrap().remaining(), 990);
        // Back again: 10 are owed of 10.
        assert_eq!(told(limiter.check("alice")), (false, 0, 6 * SECOND));
    }

    /// However fast a quota is, what is owed by it is told finely enough to lose next to nothing on the way.
    #[test]
    fn a_debt_goes_over_in_parts_of_units() {
        let clock = ManualClock::new();
        let first = per_seconds(3, 60, 30);
        let builder = Limiter::<str>::builder(first).other_quotas(2).horizon(Duration::from_secs(86_400));
        let limiter = builder.clock(clock.clone()).build().unwrap();
        assert_eq!(limiter.check_n("alice", 2).unwrap().remaining(), 28);
        clock.set(10 * SECOND);
        let fast = Quota::per_second(1_000_000_000).with_burst(10);
        assert_eq!(limiter.check_with("alice", &fast).unwrap().remaining(), 7);
        // 1.5 and 1 units, at 20 s each.
        let reset = limiter.peek("alice").reset_after();
        assert!((50.0..50.01).contains(&reset.as_secs_f64()), "{reset:?}");
    }

    #[test]
    fn keys_of_different_plans_do_not_meet() {
        let (limiter, _) = limiter();
        assert_eq!(limiter.check_n_with("alice", 700, &PRO).unwrap().remaining(), 300);
        assert_eq!(limiter.check("bob").remaining(), 9);
        assert_eq!(told(limiter.check_n_with("alice", 301, &PRO).unwrap()), (false, 300, 60 * MILLISECOND));
    }

    #[test]
    fn units_are_charged_and_given_back_by_the_plan_of_the_key() {
        let (limiter, clock) = limiter();
        assert_eq!(limiter.check_with("alice", &PRO).unwrap().remaining(), 999);
        limiter.charge("alice", 1_999);
        assert_eq!(told(limiter.check_with("alice", &PRO).unwrap()), (false, 0, 1_001 * 60 * MILLISECOND));
        limiter.refund("alice", 1_990);
        clock.set(300 * MILLISECOND);
        assert_eq!(limiter.peek_with("alice", &PRO).unwrap().remaining(), 995);
        limiter.reset("alice");
        assert_eq!(limiter.peek("alice").remaining(), 10);
    }

    #[test]
    fn entries_are_swept_when_their_own_plan_says_so() {
        let (limiter, clock) = limiter();
        assert!(limiter.check("alice").is_allowed());
        assert!(limiter.check_with("bob", &PRO).unwrap().is_allowed());
        clock.set(60 * MILLISECOND - 1);
        assert_eq!(limiter.sweep(), 0);
        clock.set(60 * MILLISECOND);
        assert_eq!(limiter.sweep(), 1);
        clock.set(6 * SECOND);
        assert_eq!((limiter.sweep(), limiter.len()), (1, 0));
    }

    #[test]
    fn algorithms_mix() {
        let (limiter, clock) = limiter();
        let window = Quota::per_minute(20).with_algorithm(Algorithm::FixedWindow);
        let counter = Quota::per_minute(20).with_algorithm(Algorithm::SlidingWindowCounter);
        assert_eq!(limiter.check_n("alice", 4).unwrap().remaining(), 6);
        assert_eq!(limiter.check_with("alice", &window).unwrap().remaining(), 15);
        assert_eq!(limiter.check_with("alice", &counter).unwrap().remaining(), 14);
        assert_eq!(limiter.check("alice").remaining(), 3);
        clock.set(6 * SECOND);
        assert_eq!(limiter.peek("alice").remaining(), 4);
    }

    #[test]
    fn what_cannot_be_is_said_and_takes_nothing() {
        let (limiter, _) = limiter();
        let impossible = Quota::per_second(0);
        assert!(matches!(limiter.check_with("alice", &impossible), Err(CheckError::Quota(BuildError::Quota(_)))));
        let log = Quota::per_minute(3).with_algorithm(Algorithm::SlidingWindowLog);
        assert!(matches!(
            limiter.check_with("alice", &log),
            Err(CheckError::Quota(BuildError::OtherAlgorithm { algorithm: Algorithm::SlidingWindowLog }))
        ));
        assert!(matches!(limiter.check_n_with("alice", 1_001, &PRO), Err(CheckError::Cost(_))));
        for limit in [1_000, 20, 30] {
            assert!(limiter.peek_with("alice", &Quota::per_minute(limit)).is_ok());
        }
        let error = limiter.check_with("alice", &Quota::per_minute(40)).unwrap_err();
        assert_eq!(error, CheckError::TooManyQuotas { quota: Quota::per_minute(40) });
        assert!(error.to_string().contains("other_quotas"));
        assert!(limiter.check_with("alice", &FREE).unwrap().is_allowed(), "its own quota takes no room");
        assert_eq!(limiter.peek("alice").remaining(), 9);
    }

    #[test]
    fn without_room_for_others_a_limiter_knows_its_own() {
        for algorithm in Algorithm::ALL {
            let quota = Quota::per_minute(2).with_algorithm(*algorithm);
            let limiter = Limiter::<str>::builder(quota).capacity(10).build().unwrap();
            assert!(limiter.check_with("alice", &quota).unwrap().is_allowed());
            assert!(matches!(limiter.check_with("alice", &PRO), Err(CheckError::TooManyQuotas { .. })));
        }
    }

    #[test]
    fn the_first_quota_is_changed_beside_others() {
        let (limiter, _) = limiter();
        assert_eq!(limiter.check_n("alice", 4).unwrap().remaining(), 6);
        assert_eq!(limiter.check_n_with("bob", 4, &PRO).unwrap().remaining(), 996);
        limiter.set_quota(&Quota::per_minute(100)).unwrap();
        assert_eq!(limiter.check("alice").remaining(), 95);
        assert_eq!(limiter.check("bob").remaining(), 95);
        assert_eq!(
            limiter.check_with("bob", &Quota::per_minute(100)).unwrap().remaining(),
            94,
            "the first, as it stands"
        );
    }

    #[test]
    fn blocked_keys_are_blocked_by_every_quota_and_all_others_hold() {
        let clock = ManualClock::new();
        let builder = Limiter::<str>::builder(FREE).and(Quota::per_hour(3)).other_quotas(1).clock(clock);
        let limiter = builder.build().unwrap();
        assert_eq!(limiter.check_with("alice", &PRO).unwrap().quota_index(), 1);
        assert!(matches!(limiter.check_n_with("alice", 4, &PRO), Err(CheckError::Cost(error)) if error.limit == 3));
        limiter.block("alice", Duration::from_secs(1));
        assert!(limiter.check_with("alice", &PRO).unwrap().is_blocked());
    }
}

/// Units in parts, of which every quota of the story gives a whole number back in a millisecond.
const PARTS: i128 = 7 * 60 * 1_000;

/// What a key owes, by the definition of a bucket: it falls at the rate of the quota, and never below nothing.
#[derive(Clone, Copy, Default)]
struct Debt {
    parts: i128,
    at_ms: u64,
}

impl Debt {
    fn pay(&mut self, quota: Quota, now_ms: u64) {
        let per_ms = i128::from(quota.limit()) * PARTS / i128::try_from(quota.period().as_millis()).unwrap();
        self.parts = (self.parts - per_ms * i128::from(now_ms - self.at_ms)).max(0);
        self.at_ms = now_ms;
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Wait(u64),
    /// By the quota of this number, this cost.
    Check(usize, u64),
    Charge(u64),
    Refund(u64),
    Set(Quota),
}

fn any_quota() -> impl Strategy<Value = Quota> {
    let limit = prop::sample::select(vec![1, 2, 3, 5, 10, 60, 100, 1_000]);
    (limit, prop::sample::select(vec![1, 7, 20, 60]), 1..30_u64)
        .prop_map(|(limit, seconds, burst)| per_seconds(limit, seconds, burst))
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..9_000_u64).prop_map(Step::Wait),
        8 => (0..3_usize, 1..6_u64).prop_map(|(number, cost)| Step::Check(number, cost)),
        1 => (1..40_u64).prop_map(Step::Charge),
        1 => (1..10_u64).prop_map(Step::Refund),
        2 => any_quota().prop_map(Step::Set),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// One key, checked by three quotas of which the first changes, owes what the definition says: to a millionth of a
    /// unit for each time that it went over to another quota.
    #[test]
    fn a_key_owes_the_same_units_whatever_its_quota(
        quotas in prop::array::uniform3(any_quota()),
        steps in prop::collection::vec(any_step(), 1..60),
    ) {
        let clock = ManualClock::new();
        let others = 2;
        let limiter = Limiter::<str>::builder(quotas[0])
            .capacity(4)
            .other_quotas(others)
            .clock(clock.clone())
            .build()
            .unwrap();
        let (mut quotas, mut last, mut debt, mut now_ms) = (quotas, 0, Debt::default(), 0);
        // Late by this much at most, in parts of a unit.
        let mut late = 1;
        for step in steps {
            match step {
                Step::Wait(ms) => {
                    now_ms += ms;
                    clock.set(now_ms * MILLISECOND);
                }
                Step::Check(number, cost) => {
                    let quota = quotas[number];
                    debt.pay(quotas[last], now_ms);
                    let Ok(decision) = limiter.check_n_with("key", cost, &quota) else {
                        prop_assert!(cost > quota.burst());
                        continue;
                    };
                    let room = i128::from(quota.burst()) * PARTS - debt.parts;
                    let fits = room - i128::from(cost) * PARTS;
                    prop_assert!(decision.is_allowed() == (fits >= 0) || (0..late).contains(&fits), "{step:?} {fits}");
                    if decision.is_allowed() {
                        debt.parts += i128::from(cost) * PARTS;
                        // The same quota may stand under several numbers.
                        last = quotas.iter().position(|&other| other == quota).unwrap();
                    }
                    late += 1;
                    let room = i128::from(quota.burst()) * PARTS - debt.parts;
                    let remaining = i128::from(decision.remaining());
                    prop_assert!(remaining <= room.max(0) / PARTS && remaining >= (room - late).max(0) / PARTS);
                    let wait = i128::try_from(decision.retry_after().as_nanos()).unwrap();
                    let parts_per_period = i128::from(quota.limit()) * PARTS;
                    let period = i128::try_from(quota.period().as_nanos()).unwrap();
                    if !decision.is_allowed() {
                        let missing = (i128::from(cost) * PARTS - room).max(0);
                        let least = missing * period / parts_per_period;
                        let most = (missing + late) * period / parts_per_period + 2;
                        prop_assert!((least..=most).contains(&wait), "{step:?}: {least} <= {wait} <= {most}");
                    }
                }
                Step::Charge(units) => {
                    debt.pay(quotas[last], now_ms);
                    // A key that owes nothing, not even what came late, has no quota but the first.
                    if debt.parts == 0 && limiter.peek("key").reset_after().is_zero() {
                        last = 0;
                    }
                    limiter.charge("key", units);
                    debt.parts += i128::from(units) * PARTS;
                }
                Step::Refund(units) => {
                    debt.pay(quotas[last], now_ms);
                    limiter.refund("key", units);
                    debt.parts = (debt.parts - i128::from(units) * PARTS).max(0);
                }
                Step::Set(quota) => {
                    debt.pay(quotas[last], now_ms);
                    late += 1;
                    // From 1 an hour or so on, a thousandfold is never too far.
                    limiter.set_quota(&quota).unwrap();
                    quotas[0] = quota;
                }
            }
        }
    }

    /// A batch with costs and quotas of its own decides what single checks at one moment do, keys that come again included.
    #[test]
    fn a_batch_decides_what_single_checks_do(
        algorithm in prop::sample::select(Algorithm::ALL),
        requests in prop::collection::vec((0..8_u64, 0..6_u64, prop::option::of(0..3_usize)), 0..150),
        room in 0..150_usize,
        two in any::<bool>(),
    ) {
        let own = Quota::per_minute(5).with_algorithm(algorithm);
        // A log shares its table with no other quota.
        let others = u8::from(algorithm != Algorithm::SlidingWindowLog);
        let quotas = [own, Quota::per_hour(12), Quota::per_second(3)];
        let build = || {
            let mut builder = Limiter::<u64>::builder(own).capacity(100).other_quotas(others).clock(ManualClock::new());
            if two {
                builder = builder.and(Quota::per_day(20));
            }
            builder.build().unwrap()
        };
        let (batch, single) = (build(), build());
        let asked = requests.iter().map(|(key, cost, quota)| {
            let request = Request::new(key).cost(*cost);
            quota.map_or(request, |number| request.quota(quotas[number]))
        });
        let mut results = (0..room).map(|_| Ok(Decision::default())).collect::<Vec<_>>();
        let checked = batch.check_requests(asked, &mut results);
        prop_assert_eq!(checked, room.min(requests.len()));
        for ((key, cost, quota), result) in requests.iter().zip(&results) {
            let expected = match quota {
                Some(number) => single.check_n_with(key, *cost, &quotas[*number]),
                None => single.check_n(key, *cost).map_err(CheckError::from),
            };
            prop_assert_eq!(format!("{result:?}"), format!("{expected:?}"));
        }
        prop_assert_eq!(batch.stats(), single.stats());
    }

    /// A fixed window counts on when its quota changes, and what is above the limit counts in the windows after it.
    #[test]
    fn a_window_keeps_its_count_whatever_its_quota(
        steps in prop::collection::vec(any_step(), 1..60),
    ) {
        let window = |quota: Quota| Quota::with_period(quota.limit(), quota.period()).with_algorithm(Algorithm::FixedWindow);
        let mut quota = window(per_seconds(10, 60, 10));
        let (limiter, clock) = limiter(quota);
        let (mut count, mut index, mut now_ms) = (0_u64, 0, 0);
        let place = |quota: Quota, now_ms: u64| now_ms / u64::try_from(quota.period().as_millis()).unwrap();
        for step in steps {
            let here = place(quota, now_ms);
            count = count.saturating_sub((here - index) * quota.limit());
            index = here;
            match step {
                Step::Wait(ms) => {
                    now_ms += ms;
                    clock.set(now_ms * MILLISECOND);
                }
                Step::Check(_, cost) => {
                    let Ok(decision) = limiter.check_n("key", cost) else {
                        prop_assert!(cost > quota.limit());
                        continue;
                    };
                    let fits = count + cost <= quota.limit();
                    prop_assert_eq!(decision.is_allowed(), fits);
                    count += if fits { cost } else { 0 };
                    prop_assert_eq!(decision.remaining(), quota.limit().saturating_sub(count));
                }
                Step::Charge(units) => {
                    limiter.charge("key", units);
                    count += units;
                }
                Step::Refund(units) => {
                    limiter.refund("key", units);
                    count = count.saturating_sub(units);
                }
                Step::Set(new) => {
                    // The entry is touched between any two changes: of a debt that is older, more may be forgiven.
                    limiter.refund("key", 0);
                    limiter.set_quota(&window(new)).unwrap();
                    quota = window(new);
                    index = place(quota, now_ms);
                }
            }
        }
    }
}
