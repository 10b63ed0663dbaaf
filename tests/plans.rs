//! Quotas that differ from key to key.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use tollgate::{Algorithm, BuildError, CheckError, Decision, Limiter, ManualClock, Quota};

const SECOND: u64 = 1_000_000_000;
const MILLISECOND: u64 = 1_000_000;

fn told(decision: Decision) -> (bool, u64, u64) {
    (decision.is_allowed(), decision.remaining(), decision.retry_after().as_nanos().try_into().unwrap())
}

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
    let first = Quota::with_period(3, Duration::from_secs(60)).with_burst(30);
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
    assert_eq!(limiter.check_with("bob", &Quota::per_minute(100)).unwrap().remaining(), 94, "the first, as it stands");
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
