//! Fixed window: a count that starts again at each multiple of the period on the limiter's clock.
//!
//! The state is the number of a window, and in the lowest bits the units admitted in it.

use crate::error::BuildError;
use crate::quota::Quota;
use crate::timeline::Timeline;

use super::{Cell, STATE_BITS, Windows, bits_for};

#[derive(Clone, Copy, Debug)]
pub(crate) struct FixedWindow {
    limit: u64,
    windows: Windows,
    count_bits: u32,
}

impl FixedWindow {
    pub(crate) fn new(quota: &Quota, timeline: &Timeline) -> Result<Self, BuildError> {
        let windows = Windows::new(quota.period_ns(), timeline);
        let index_bits = bits_for(windows.locate(timeline.end()).0);
        let count_bits = bits_for(quota.limit());
        if index_bits + count_bits > STATE_BITS {
            let largest = (1 << STATE_BITS.saturating_sub(index_bits)) - 1;
            return Err(BuildError::limit_too_large(quota, largest));
        }
        Ok(Self { limit: quota.limit(), windows, count_bits })
    }

    #[inline]
    fn unpack(&self, state: u64) -> (u64, u64) {
        (state >> self.count_bits, state & ((1 << self.count_bits) - 1))
    }

    /// The window that counts at `now` and what was admitted in it. A state from a later window counts on: the clock
    /// has stepped back.
    #[inline]
    fn current(&self, state: u64, now: u64) -> (u64, u64) {
        let (index, count) = self.unpack(state);
        let (here, _) = self.windows.locate(now);
        if index < here { (here, 0) } else { (index, count) }
    }
}

impl Cell for FixedWindow {
    #[inline]
    fn limit(&self) -> u64 {
        self.limit
    }

    #[inline]
    fn charge(&self, state: u64, now: u64, cost: u64) -> Option<u64> {
        let (index, count) = self.current(state, now);
        (count + cost <= self.limit).then_some((index << self.count_bits) | (count + cost))
    }

    #[inline]
    fn refund(&self, state: u64, cost: u64) -> u64 {
        let (_, count) = self.unpack(state);
        state - count.min(cost)
    }

    #[inline]
    fn is_idle(&self, state: u64, now: u64) -> bool {
        self.debt(state, now) == 0
    }

    #[inline]
    fn debt(&self, state: u64, now: u64) -> u64 {
        self.current(state, now).1
    }

    fn remaining(&self, state: u64, now: u64) -> u64 {
        self.limit.saturating_sub(self.debt(state, now))
    }

    /// When a refused cost is admitted: when the window is over.
    fn admitted_at(&self, state: u64, now: u64, _cost: u64) -> u64 {
        self.windows.moment(self.current(state, now).0 + 1, 0)
    }

    fn idle_at(&self, state: u64, _now: u64) -> u64 {
        match self.unpack(state) {
            (_, 0) => 0,
            (index, _) => self.windows.moment(index + 1, 0),
        }
    }
}
