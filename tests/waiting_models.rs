//! Waiting in turn, against the definition of a bucket and the bounds of all algorithms.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

#[path = "support/turns.rs"]
mod turns;

use std::time::Duration;

use ahash::RandomState;
use proptest::prelude::*;
use tollgate::{Algorithm, Limiter, ManualClock, Quota, Reservation};
use turns::turns;

const MILLISECOND: u64 = 1_000_000;

fn limiter(quota: Quota) -> (Limiter<str, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    (Limiter::builder(quota).capacity(100).clock(clock.clone()).build().unwrap(), clock)
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Wait(u64),
    Reserve(u64),
    /// Gives up one of those whose time has not come, or has come just now.
    GiveUp(prop::sample::Index),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..3_000_u64).prop_map(Step::Wait),
        4 => (1..4_u64).prop_map(Step::Reserve),
        3 => any::<prop::sample::Index>().prop_map(Step::GiveUp),
    ]
}

fn times(quota: Quota, came: &[(u64, u64)]) -> (Vec<u64>, u64) {
    turns(u64::try_from(quota.emission_interval().as_nanos()).unwrap(), quota.burst(), came)
}

type Reserved<'a> = Reservation<'a, str, ManualClock, RandomState>;

/// The second quota, where there are two.
const WINDOW: Quota = Quota::with_period(8, Duration::from_secs(5)).with_algorithm(Algorithm::FixedWindow);

#[derive(Clone, Copy, Debug)]
enum Move {
    Wait(u64),
    /// Books a place and uses it as soon as its time comes.
    Use(u64),
    /// Books a place and gives it up at last, if at all.
    Sleep(u64),
    GiveUp(prop::sample::Index),
    Check(u64),
    Charge(u64),
}

fn any_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        4 => (0..2_500_u64).prop_map(Move::Wait),
        4 => (1..4_u64).prop_map(Move::Use),
        3 => (1..4_u64).prop_map(Move::Sleep),
        3 => any::<prop::sample::Index>().prop_map(Move::GiveUp),
        2 => (1..4_u64).prop_map(Move::Check),
        1 => (1..6_u64).prop_map(Move::Charge),
    ]
}

/// What else can happen to a key for which some wait.
#[derive(Clone, Copy, Debug)]
enum Turn {
    Wait(u64),
    Reserve(u64),
    Keep(prop::sample::Index),
    Cancel(prop::sample::Index),
    Check(u64),
    Charge(u64),
    Refund(u64),
    Reset,
    SetQuota(u64),
}

fn any_turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        4 => (0..2_500_u64).prop_map(Turn::Wait),
        6 => (0..5_u64).prop_map(Turn::Reserve),
        1 => any::<prop::sample::Index>().prop_map(Turn::Keep),
        2 => any::<prop::sample::Index>().prop_map(Turn::Cancel),
        2 => (1..4_u64).prop_map(Turn::Check),
        1 => (1..6_u64).prop_map(Turn::Charge),
        1 => (1..6_u64).prop_map(Turn::Refund),
        1 => Just(Turn::Reset),
        2 => (2..6_u64).prop_map(Turn::SetQuota),
    ]
}

/// Whether no span holds more than the definition of the algorithm gives.
fn conforms(quota: Quota, went: &[(u64, u64)]) -> bool {
    let (limit, period) = (quota.limit(), u64::try_from(quota.period().as_nanos()).unwrap());
    let sum =
        |from: u64, to: u64| went.iter().filter(|(at, _)| (from..=to).contains(at)).map(|(_, cost)| cost).sum::<u64>();
    let burst = quota.burst() + u64::from(quota.algorithm() == Algorithm::LeakyBucket);
    went.iter().all(|&(end, _)| match quota.algorithm() {
        Algorithm::FixedWindow => sum(end / period * period, end) <= limit,
        Algorithm::SlidingWindowLog => sum((end + 1).saturating_sub(period), end) <= limit,
        // At most the limit in a window of its own, and what its definition leaves of the one before.
        Algorithm::SlidingWindowCounter => {
            let (window, elapsed) = (end / period * period, end % period);
            let before = if window == 0 { 0 } else { sum(window - period, window - 1) };
            before * (period - elapsed) + sum(window, end) * period <= limit * period
        }
        _ => went
            .iter()
            .filter(|(begin, _)| *begin <= end)
            .all(|&(begin, _)| sum(begin, end) * period <= burst * period + (end - begin) * limit),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 500 } else { 3_000 }))]

    /// Whoever gives up before its time leaves everything as if it had never asked: the times of the others, and what is
    /// left.
    #[test]
    fn who_gives_up_leaves_no_trace(
        (limit, burst) in (prop::sample::select(vec![1_u64, 2, 4, 10]), 3..12_u64),
        steps in prop::collection::vec(any_step(), 1..50),
    ) {
        let quota = Quota::per_second(limit).with_burst(burst);
        let (limiter, clock) = limiter(quota);
        let (mut now, mut came, mut places) = (0, Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Wait(ms) => {
                    now += ms * 1_000_000;
                    clock.set(now);
                }
                Step::Reserve(cost) => {
                    places.push(limiter.reserve("key", cost).unwrap());
                    came.push((now, cost));
                }
                Step::GiveUp(which) => {
                    let (times, _) = times(quota, &came);
                    let open = (0..places.len()).filter(|&index| times[index] >= now).collect::<Vec<_>>();
                    if !open.is_empty() {
                        let index = open[which.index(open.len())];
                        places.remove(index).cancel();
                        came.remove(index);
                    }
                }
            }
            let (times, tat) = times(quota, &came);
            let waits = times.iter().map(|time| u128::from(time.saturating_sub(now)));
            prop_assert_eq!(places.iter().map(|place| place.wait().as_nanos()).collect::<Vec<_>>(), waits.collect::<Vec<_>>());
            prop_assert_eq!(limiter.peek("key").reset_after().as_nanos(), u128::from(tat.saturating_sub(now)));
        }
    }

    /// With any algorithm: once all have given up before their time, the limiter is as new; and those who stay go in the
    /// order in which they came, no more of them than the quota gives.
    #[test]
    fn all_who_give_up_leave_a_limiter_as_new(
        algorithm in prop::sample::select(Algorithm::ALL),
        limit in 1..6_u64,
        give_up in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        late in 0..1_500_u64,
    ) {
        let quota = Quota::per_second(limit).with_algorithm(algorithm);
        let (limiter, clock) = limiter(quota);
        clock.set(late * 1_000_000);
        while limiter.check("key").is_allowed() {}
        let fresh = limiter.peek("key");
        let mut places = (0..12).filter_map(|_| limiter.reserve("key", 1).ok().filter(|place| !place.wait().is_zero())).collect::<Vec<_>>();
        let before = places.iter().map(Reservation::wait).collect::<Vec<_>>();
        prop_assert!(before.is_sorted(), "{algorithm}: {before:?}");
        for which in give_up {
            if !places.is_empty() {
                places.remove(which.index(places.len())).cancel();
            }
            let waits = places.iter().map(Reservation::wait).collect::<Vec<_>>();
            prop_assert_eq!(&waits, &before[..waits.len()], "{}: as if they had never asked", algorithm);
        }
        drop(places);
        let after = limiter.peek("key");
        prop_assert_eq!(after.remaining(), fresh.remaining());
        prop_assert_eq!(after.retry_after(), fresh.retry_after(), "{}", algorithm);
        prop_assert_eq!(limiter.waiting(), 0);
    }

    /// However places are given up, before or after their time: those who use theirs as soon as it comes, and the checks
    /// that are admitted meanwhile, are never more than the quotas give, told by the moments at which they go.
    #[test]
    fn no_more_go_than_the_quotas_give(
        (algorithm, second) in (prop::sample::select(Algorithm::ALL), any::<bool>()),
        steps in prop::collection::vec(any_move(), 1..60),
    ) {
        // A unit is a whole number of nanoseconds, so that nobody goes at a moment that was rounded.
        let quotas = [Quota::per_second(4).with_algorithm(algorithm), WINDOW];
        let clock = ManualClock::new();
        let builder = Limiter::<str>::builder(quotas[0]).clock(clock.clone());
        let builder = if second { builder.and(quotas[1]) } else { builder };
        let limiter = builder.build().unwrap();
        let (mut now, mut users, mut sleepers, mut went) = (0, Vec::new(), Vec::new(), Vec::new());
        for step in steps {
            match step {
                Move::Wait(ms) => {
                    let end = now + ms * MILLISECOND;
                    // Each goes at the very moment at which it can.
                    while now < end {
                        let next = users.iter().map(|place: &Reserved<'_>| place.wait()).min().unwrap_or(Duration::MAX);
                        now = end.min(now.saturating_add(u64::try_from(next.as_nanos()).unwrap_or(u64::MAX)));
                        clock.set(now);
                        users.retain(|place| {
                            let goes = place.wait().is_zero();
                            if goes {
                                went.push((now, place.cost()));
                            }
                            !goes
                        });
                    }
                }
                Move::Use(cost) => {
                    // A log keeps no places that are more than eight periods away.
                    let Ok(place) = limiter.reserve("key", cost) else { continue };
                    if place.wait().is_zero() { went.push((now, cost)) } else { users.push(place) }
                }
                Move::Sleep(cost) => sleepers.extend(limiter.reserve("key", cost).ok()),
                Move::GiveUp(which) if !sleepers.is_empty() => {
                    let index = which.index(sleepers.len());
                    sleepers.remove(index).cancel();
                    users.retain(|place| {
                        let goes = place.wait().is_zero();
                        if goes {
                            went.push((now, place.cost()));
                        }
                        !goes
                    });
                }
                Move::GiveUp(_) => (),
                Move::Charge(units) => limiter.charge("key", units),
                Move::Check(cost) => went.extend(limiter.check_n("key", cost).unwrap().is_allowed().then_some((now, cost))),
            }
        }
        for quota in &quotas[..=usize::from(second)] {
            prop_assert!(conforms(*quota, &went), "{quota}: {went:?}");
        }
    }

    /// Whatever happens to their key: those who wait go in the order in which they came, unless the quota has no room for
    /// one at all; who may go may go for good; and everybody goes at last. As long as nothing is forgotten or given back,
    /// never more go than the largest of the quotas gives.
    #[test]
    fn those_who_wait_keep_their_order_whatever_happens(
        (algorithm, second) in (prop::sample::select(Algorithm::ALL), any::<bool>()),
        turns in prop::collection::vec(any_turn(), 1..60),
    ) {
        let quota = |limit| Quota::per_second(limit).with_algorithm(algorithm);
        let clock = ManualClock::new();
        let builder = Limiter::<str>::builder(quota(4)).clock(clock.clone());
        let builder = if second { builder.and(WINDOW) } else { builder };
        let limiter = builder.build().unwrap();
        let is_exact = !turns.iter().any(|turn| matches!(turn, Turn::Reset | Turn::Refund(_) | Turn::Keep(_)));
        let (mut now, mut places, mut went) = (0, Vec::<Reserved<'_>>::new(), Vec::new());
        for turn in turns.into_iter().chain([Turn::SetQuota(5), Turn::Wait(100_000)]) {
            match turn {
                Turn::Wait(ms) => {
                    let end = now + ms * MILLISECOND;
                    loop {
                        places.retain(|place| {
                            let goes = place.wait().is_zero();
                            if goes {
                                went.push((now, place.cost()));
                            }
                            !goes
                        });
                        if now == end {
                            break;
                        }
                        let next = places.iter().map(Reservation::wait).min().unwrap_or(Duration::MAX);
                        now = end.min(now.saturating_add(u64::try_from(next.as_nanos()).unwrap_or(u64::MAX)));
                        clock.set(now);
                    }
                }
                Turn::Reserve(cost) => places.extend(limiter.reserve("key", cost).ok()),
                Turn::Keep(which) if !places.is_empty() => places.remove(which.index(places.len())).keep(),
                Turn::Cancel(which) if !places.is_empty() => places.remove(which.index(places.len())).cancel(),
                Turn::Keep(_) | Turn::Cancel(_) => (),
                Turn::Check(cost) => {
                    let decision = limiter.check_n("key", cost);
                    went.extend(decision.is_ok_and(|decision| decision.is_allowed()).then_some((now, cost)));
                }
                Turn::Charge(units) => limiter.charge("key", units),
                Turn::Refund(units) => limiter.refund("key", units),
                Turn::Reset => limiter.reset("key"),
                Turn::SetQuota(limit) => {
                    // Of several quotas none becomes impossible here.
                    let limit = if second { limit.max(4) } else { limit };
                    let is_set = limiter.set_quota(&quota(limit)).is_ok();
                    prop_assert_eq!(is_set, algorithm != Algorithm::SlidingWindowLog);
                }
            }
            // One for whose cost there is no room has lost its turn.
            places.sort_by_key(|place| place.wait() == Duration::MAX);
            let waits = places.iter().map(Reservation::wait).collect::<Vec<_>>();
            let later = waits.iter().filter(|wait| !wait.is_zero());
            prop_assert!(later.is_sorted(), "{algorithm} {turn:?}: {waits:?}");
            for (place, _) in places.iter().zip(&waits).filter(|(_, wait)| wait.is_zero()) {
                prop_assert_eq!(place.wait(), Duration::ZERO);
            }
        }
        prop_assert!(places.is_empty(), "{algorithm}: {places:?}");
        prop_assert_eq!(limiter.waiting(), 0);
        if is_exact {
            prop_assert!(conforms(quota(5), &went), "{algorithm}: {went:?}");
            prop_assert!(!second || conforms(WINDOW, &went), "{went:?}");
        }
    }
}
