//! Fixed window: a count that starts again at each multiple of the period on the limiter's clock.
//!
//! The state is the number of a window, and in the lowest bits the units charged in it. Units charged beyond the limit
//! after the fact count in the windows that follow.

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
        // All that the number of a window leaves.
        let count_bits = STATE_BITS.saturating_sub(index_bits);
        if bits_for(quota.limit()) > count_bits {
            let largest = (1 << STATE_BITS.saturating_sub(index_bits)) - 1;
            return Err(BuildError::limit_too_large(quota, largest));
        }
        Ok(Self { limit: quota.limit(), windows, count_bits })
    }

    #[inline]
    fn unpack(&self, state: u64) -> (u64, u64) {
        (state >> self.count_bits, state & ((1 << self.count_bits) - 1))
    }

    fn pack(&self, index: u64, count: u64) -> u64 {
        (index << self.count_bits) | count.min((1 << self.count_bits) - 1)
    }

    /// The window that counts at `now` and what counts in it. A state from a later window counts on: the clock has
    /// stepped back.
    #[inline]
    fn current(&self, state: u64, now: u64) -> (u64, u64) {
        let (index, count) = self.unpack(state);
        let (here, _) = self.windows.locate(now);
        if index >= here && count > 0 {
            return (index, count);
        }
        (here, count.saturating_sub(here.saturating_sub(index).saturating_mul(self.limit)))
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

    fn force(&self, state: u64, now: u64, cost: u64) -> u64 {
        let (index, count) = self.current(state, now);
        self.pack(index, count.saturating_add(cost))
    }

    fn refund(&self, state: u64, now: u64, cost: u64) -> u64 {
        let (index, count) = self.current(state, now);
        self.pack(index, count.saturating_sub(cost))
    }

    /// What was charged in a window that is over counts no more.
    fn undo(&self, state: u64, _now: u64, charged: u64, cost: u64) -> u64 {
        let (index, count) = self.unpack(state);
        if index == self.unpack(charged).0 { self.pack(index, count.saturating_sub(cost)) } else { state }
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

    /// When a refused cost is admitted: when the window is over, or those that the debt fills too.
    fn admitted_at(&self, state: u64, now: u64, cost: u64) -> u64 {
        let (index, count) = self.current(state, now);
        let excess = (count + cost).saturating_sub(self.limit);
        self.windows.moment(index + excess.div_ceil(self.limit), 0)
    }

    fn idle_at(&self, state: u64, _now: u64) -> u64 {
        match self.unpack(state) {
            (_, 0) => 0,
            (index, count) => self.windows.moment(index + count.div_ceil(self.limit), 0),
        }
    }
}
