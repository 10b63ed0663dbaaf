//! Fixed window: a count that starts again at each multiple of the period on the limiter's clock.
//!
//! The state is the number of a window, and in the lowest bits the units charged in it. Units charged beyond the limit
//! after the fact count in the windows that follow.
//!
//! Of the bits that neither the limit nor the numbers of all windows need, half are the count's, for debts and larger
//! limits, and half the number's, for shorter windows.

use crate::error::BuildError;
use crate::quota::Quota;
use crate::timeline::Timeline;

use super::{Cell, Windows, Words, bits_for};

#[derive(Clone, Copy, Debug)]
pub(crate) struct FixedWindow {
    limit: u64,
    /// The limit of the windows before the quota was changed.
    before: u64,
    windows: Windows,
    count_bits: u8,
    index_bits: u8,
}

impl FixedWindow {
    /// Windows whose states have at most `bits` bits.
    pub(crate) fn new(quota: &Quota, timeline: &Timeline, bits: u32) -> Result<Self, BuildError> {
        let windows = Windows::new(quota.period_ns(), timeline);
        let left = bits.saturating_sub(bits_for(windows.locate(timeline.end()).0));
        let Some(spare) = left.checked_sub(bits_for(quota.limit())) else {
            return Err(BuildError::limit_too_large(quota, (1 << left) - 1));
        };
        let count_bits = left - spare / 2;
        let (count_bits, index_bits) = (count_bits as u8, (bits - count_bits) as u8);
        Ok(Self { limit: quota.limit(), before: quota.limit(), windows, count_bits, index_bits })
    }

    /// The windows of another quota from `now` on, for the same states.
    pub(super) fn changed(&self, quota: &Quota, timeline: &Timeline, now: u64) -> Result<Self, BuildError> {
        let windows = self.windows.changed(quota, timeline, now);
        let fits = bits_for(quota.limit()) <= self.count_bits.into()
            && bits_for(windows.locate(timeline.end()).0) <= self.index_bits.into();
        let changed = Self { limit: quota.limit(), before: self.limit.max(self.before), windows, ..*self };
        if fits { Ok(changed) } else { Err(BuildError::OutOfReach { quota: *quota }) }
    }

    pub(super) fn to_words(self, tag: u64) -> Words {
        let [period, phase, place, turn] = self.windows.to_words();
        let rest = tag | u64::from(self.count_bits) << 8 | u64::from(self.index_bits) << 16;
        [rest, self.limit, self.before, period, phase, place, turn]
    }

    pub(super) fn from_words([rest, limit, before, windows @ ..]: Words) -> Self {
        let (count_bits, index_bits) = ((rest >> 8) as u8, (rest >> 16) as u8);
        Self { limit, before, windows: Windows::from_words(windows), count_bits, index_bits }
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
        let (before, after) = self.windows.parted(here.saturating_sub(index), here);
        let paid = before.saturating_mul(self.before).saturating_add(after.saturating_mul(self.limit));
        (here, count.saturating_sub(paid))
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

    /// What does not fit into the last window that is filled so far goes into the next.
    fn book(&self, state: u64, now: u64, cost: u64) -> Option<u64> {
        let (index, count) = self.current(state, now);
        // In the last of the windows that the count fills.
        let held = if count == 0 { 0 } else { (count - 1) % self.limit + 1 };
        let unused = if held + cost > self.limit { self.limit - held } else { 0 };
        let count = count + unused + cost;
        (bits_for(count) <= self.count_bits.into()).then(|| self.pack(index, count))
    }

    /// What was charged in windows that are over counts no more.
    fn undo(&self, state: u64, now: u64, charged: u64, cost: u64) -> u64 {
        self.refund(state, now, cost.min(self.current(charged, now).1))
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

    fn idle_at(&self, state: u64, now: u64) -> u64 {
        match self.current(state, now) {
            (_, 0) => 0,
            (index, count) => self.windows.moment(index + count.div_ceil(self.limit), 0),
        }
    }
}
