//! Properties of the cells that no limiter shows by itself: refunds, and what idle means.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use proptest::prelude::*;

use super::{Cell, NEW, Policy, STATE_BITS, ask};
use crate::error::BuildError;
use crate::quota::{Algorithm, Quota};
use crate::timeline::Timeline;

fn policies() -> impl Strategy<Value = Policy> {
    let cells = Algorithm::ALL.iter().copied().filter(|&algorithm| algorithm != Algorithm::SlidingWindowLog);
    let algorithm = prop::sample::select(cells.collect::<Vec<_>>());
    (1_u64..1_000, 1_000_u64..1_000_000, algorithm).prop_map(|(limit, period, algorithm)| {
        let quota = Quota::with_period(limit, Duration::from_nanos(period)).with_algorithm(algorithm);
        Policy::new(&quota, &Timeline::new(1 << 40, Duration::from_secs(3_600)), STATE_BITS).unwrap()
    })
}

/// A state, and the moment at which it was last asked.
fn state_after(policy: &Policy, steps: &[(u64, u64)]) -> (u64, u64) {
    let mut now = 1_000_000;
    let mut state = NEW;
    for &(step, cost) in steps {
        now += step;
        state = policy.charge(state, now, cost % policy.limit() + 1).unwrap_or(state);
    }
    (state, now)
}

fn steps() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((0_u64..300_000, any::<u64>()), 0..20)
}

/// Whether both decide alike at `now` and later, about any cost.
fn same(policy: &Policy, left: u64, right: u64, now: u64) -> bool {
    let costs = [1, policy.limit().div_ceil(2), policy.limit()];
    [0, 1, 999, 123_456, 2_000_000].into_iter().map(|later| now + later).all(|at| {
        let after = |state, cost| policy.charge(state, at, cost).map(|state| policy.remaining(state, at));
        policy.remaining(left, at) == policy.remaining(right, at)
            && costs.iter().all(|&cost| after(left, cost) == after(right, cost))
    })
}

proptest! {
    #[test]
    fn a_refund_undoes_a_charge(policy in policies(), steps in steps(), cost in any::<u64>()) {
        let (state, now) = state_after(&policy, &steps);
        let cost = cost % policy.limit() + 1;
        if let Some(charged) = policy.charge(state, now, cost) {
            let restored = ask!(&policy, cell => cell.refund(charged, now, cost));
            prop_assert!(same(&policy, state, restored, now), "{policy:?}: {state} and {restored} at {now}");
        }
    }

    #[test]
    fn a_refund_never_fills_above_full(policy in policies(), steps in steps(), cost in any::<u64>()) {
        let (state, now) = state_after(&policy, &steps);
        let refunded = ask!(&policy, cell => cell.refund(state, now, cost));
        prop_assert!(policy.remaining(refunded, now) <= policy.limit());
        prop_assert!(policy.remaining(refunded, now) >= policy.remaining(state, now));
    }

    /// Idle means the same as never seen, from then on; and the moment of becoming idle is told exactly.
    #[test]
    fn idle_is_new(policy in policies(), steps in steps()) {
        let (state, now) = state_after(&policy, &steps);
        let is_idle = |at| ask!(&policy, cell => cell.is_idle(state, at));
        let wait = policy.reset_after(state, now);
        prop_assert!(is_idle(now + wait));
        prop_assert!(same(&policy, state, NEW, now + wait));
        prop_assert!(wait == 0 || !is_idle(now + wait - 1));
        prop_assert_eq!(ask!(&policy, cell => cell.debt(state, now)) == 0, is_idle(now));
    }
}

proptest! {
    /// At the end of the longest timeline that a quota can have, the state of a whole burst still fits its bits.
    #[test]
    fn states_fit_their_bits(
        limit in 1_u64..1 << 40,
        period_bits in 0_u32..61,
        period in any::<u64>(),
        burst_bits in 0_u32..40,
        burst in any::<u64>(),
        bits in prop_oneof![Just(STATE_BITS), Just(39)],
        clock in any::<u64>(),
    ) {
        let quota = Quota::with_period(limit, Duration::from_nanos(period % (1 << period_bits) + limit))
            .with_burst(burst % (1 << burst_bits) + 1);
        prop_assume!(quota.validate().is_ok());
        // The longest possible horizon and burst, or shorter ones that are said to be possible.
        let (horizon, quota) = match Policy::new(&quota, &Timeline::new(clock, Duration::MAX), bits) {
            Ok(_) => (Duration::MAX, quota),
            Err(BuildError::HorizonTooLong { longest }) => (longest, quota),
            Err(BuildError::BurstTooLong { largest, .. }) => (Duration::ZERO, quota.with_burst(largest)),
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        };
        let timeline = Timeline::new(clock, horizon);
        let policy = match Policy::new(&quota, &timeline, bits) {
            Ok(policy) => policy,
            Err(error) => return Err(TestCaseError::fail(format!("{quota} for {horizon:?}: {error}"))),
        };
        let state = policy.charge(NEW, timeline.end(), quota.burst());
        prop_assert!(state.is_some_and(|state| state < 1 << bits), "{policy:?}: {state:?}");
    }
}

/// The largest limits that are documented are the largest that fit.
#[test]
fn the_largest_limits() {
    let nine_years = Timeline::new(0, crate::timeline::DEFAULT_HORIZON);
    let counter = |limit, period| {
        let quota =
            Quota::with_period(limit, Duration::from_nanos(period)).with_algorithm(Algorithm::SlidingWindowCounter);
        Policy::new(&quota, &nine_years, STATE_BITS)
    };
    let second = 1_000_000_000;
    assert!(counter((1 << 20) - 1, second).is_ok());
    assert!(counter(1 << 20, second).is_err());
    assert!(counter((1 << 25) - 1, 86_400 * second).is_ok());
    assert!(counter(1 << 25, 86_400 * second).is_err());
    // Whatever the horizon, two counts of 32 bits do not fit.
    let quota = Quota::with_period(1 << 32, Duration::from_secs(4_295)).with_algorithm(Algorithm::SlidingWindowCounter);
    assert!(Policy::new(&quota, &Timeline::new(0, Duration::from_secs(1)), STATE_BITS).is_err());
    let fixed =
        |limit, period| Quota::with_period(limit, Duration::from_nanos(period)).with_algorithm(Algorithm::FixedWindow);
    // Any fixed window that is valid fits.
    for (limit, period) in [(1, 1), (13, 13), (second, second), (1 << 61, 1 << 61)] {
        assert!(Policy::new(&fixed(limit, period), &nine_years, STATE_BITS).is_ok(), "{limit}/{period}ns");
    }
}

/// Window numbers that have gone round once and more are still told apart.
#[test]
fn window_numbers_go_round() {
    let quota = Quota::per_second(1_000_000).with_algorithm(Algorithm::SlidingWindowCounter);
    let policy = Policy::new(&quota, &Timeline::new(0, crate::timeline::DEFAULT_HORIZON), STATE_BITS).unwrap();
    let second = 1_000_000_000;
    for round in 0..5 {
        // 2^22 windows are a round; begin shortly before its end.
        let now = ((round + 1) << 22) * second - second / 2;
        let state = policy.charge(NEW, now, 1_000_000).unwrap();
        assert_eq!(policy.charge(state, now, 1), None);
        assert_eq!(policy.remaining(state, now + second), 500_000, "half of the window before");
        assert_eq!(policy.reset_after(state, now), second + second / 2);
        assert_eq!(policy.remaining(state, now + 2 * second), 1_000_000);
        assert_eq!(policy.remaining(state, now + (second << 21)), 1_000_000);
        assert_eq!(policy.remaining(state, now - 10 * second), 0, "the clock has stepped back");
    }
}
