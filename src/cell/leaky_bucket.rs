//! Leaky bucket as a queue: units leave it one emission interval apart, and at most `burst` of them wait.
//!
//! Admitted when the wait `max(TAT, now) - now + (cost - 1) * T` is at most `burst * T`; that wait is the delay. So it
//! admits what a token bucket with one more unit of burst does, and differs from it in that what is admitted is held
//! back.

use crate::error::BuildError;
use crate::quota::Quota;
use crate::timeline::Timeline;

use super::Cell;
use super::token_bucket::TokenBucket;

#[derive(Clone, Copy, Debug)]
pub(crate) struct LeakyBucket(TokenBucket);

impl LeakyBucket {
    /// A bucket whose states have at most `bits` bits, no more than [`STATE_BITS`](super::STATE_BITS).
    pub(crate) fn new(quota: &Quota, timeline: &Timeline, bits: u32) -> Result<Self, BuildError> {
        // One unit leaves at once, the others wait.
        TokenBucket::new(&quota.with_burst(quota.burst() + 1), timeline, bits).map(Self)
    }
}

impl Cell for LeakyBucket {
    #[inline]
    fn limit(&self) -> u64 {
        self.0.limit()
    }

    #[inline]
    fn charge(&self, state: u64, now: u64, cost: u64) -> Option<u64> {
        self.0.charge(state, now, cost)
    }

    fn force(&self, state: u64, now: u64, cost: u64) -> u64 {
        self.0.force(state, now, cost)
    }

    fn refund(&self, state: u64, now: u64, cost: u64) -> u64 {
        self.0.refund(state, now, cost)
    }

    fn undo(&self, state: u64, now: u64, charged: u64, cost: u64) -> u64 {
        self.0.undo(state, now, charged, cost)
    }

    #[inline]
    fn is_idle(&self, state: u64, now: u64) -> bool {
        self.0.is_idle(state, now)
    }

    fn debt(&self, state: u64, now: u64) -> u64 {
        self.0.debt(state, now)
    }

    fn remaining(&self, state: u64, now: u64) -> u64 {
        self.0.remaining(state, now)
    }

    fn admitted_at(&self, state: u64, now: u64, cost: u64) -> u64 {
        self.0.admitted_at(state, now, cost)
    }

    fn idle_at(&self, state: u64, now: u64) -> u64 {
        self.0.idle_at(state, now)
    }

    fn delay(&self, state: u64, now: u64, cost: u64) -> u64 {
        self.0.queued(state, now, cost)
    }
}
