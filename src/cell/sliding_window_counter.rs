//! Sliding-window counter: the units of this window, and those of the window before, weighted by the part of it that
//! a window ending now would still cover.
//!
//! Admitted when `previous * (W - e) / W + current + cost <= L`, with `W` the period and `e` the time into the current
//! window, in exact integers. The state is the number of the current window and the two counts.
//!
//! Two counts leave few bits for the number. Where the numbers of all windows of the timeline do not fit they go round:
//! a state is then taken for one of a later window once it is older than three quarters of the round, so a round must
//! be long enough that any sweep comes first. See [`ROUND_BITS`].

use crate::error::BuildError;
use crate::quota::Quota;
use crate::timeline::Timeline;

use super::{Cell, STATE_BITS, Windows, bits_for};

/// The fewest bits for a number that goes round: with a period of a second, a round of 48 days. It leaves room for
/// limits of up to 2^20 - 1.
const ROUND_BITS: u32 = 22;

#[derive(Clone, Copy, Debug)]
pub(crate) struct SlidingWindowCounter {
    limit: u64,
    windows: Windows,
    count_bits: u32,
    /// Whether window numbers go round.
    round: bool,
}

/// A state as it stands at some moment.
struct View {
    index: u64,
    /// Time into the window; 0 if the state is ahead of the clock.
    elapsed: u64,
    previous: u64,
    current: u64,
}

impl SlidingWindowCounter {
    pub(crate) fn new(quota: &Quota, timeline: &Timeline) -> Result<Self, BuildError> {
        let windows = Windows::new(quota.period_ns(), timeline);
        let needed_bits = bits_for(windows.locate(timeline.end()).0);
        let count_bits = bits_for(quota.limit());
        let enough_bits = needed_bits.min(ROUND_BITS);
        if 2 * count_bits + enough_bits > STATE_BITS {
            let largest = (1 << ((STATE_BITS - enough_bits) / 2)) - 1;
            return Err(BuildError::limit_too_large(quota, largest));
        }
        let round = 2 * count_bits + needed_bits > STATE_BITS;
        Ok(Self { limit: quota.limit(), windows, count_bits, round })
    }

    #[inline]
    fn index_mask(&self) -> u64 {
        (1 << (STATE_BITS - 2 * self.count_bits)) - 1
    }

    #[inline]
    fn pack(&self, index: u64, previous: u64, current: u64) -> u64 {
        ((index & self.index_mask()) << (2 * self.count_bits)) | (previous << self.count_bits) | current
    }

    /// The window number, the count of the window before, and the count.
    #[inline]
    fn unpack(&self, state: u64) -> (u64, u64, u64) {
        let mask = (1 << self.count_bits) - 1;
        (state >> (2 * self.count_bits), (state >> self.count_bits) & mask, state & mask)
    }

    /// How many windows the window numbered `index` lies before the window `here`; negative if it lies ahead.
    #[inline]
    fn age(&self, index: u64, here: u64) -> i64 {
        if !self.round {
            return here.wrapping_sub(index).cast_signed();
        }
        let mask = self.index_mask();
        let age = here.wrapping_sub(index) & mask;
        let ahead = if age > mask - mask / 4 { mask + 1 } else { 0 };
        age.wrapping_sub(ahead).cast_signed()
    }

    #[inline]
    fn view(&self, state: u64, now: u64) -> View {
        let (here, elapsed) = self.windows.locate(now);
        let (index, previous, current) = self.unpack(state);
        let age = self.age(index, here);
        if age < 0 && previous | current != 0 {
            return View { index: here.wrapping_sub(age.cast_unsigned()), elapsed: 0, previous, current };
        }
        let (previous, current) = match age {
            0 => (previous, current),
            1 => (current, 0),
            _ => (0, 0),
        };
        View { index: here, elapsed, previous, current }
    }

    /// `previous * (W - e)`: the weighted count of the window before, times the period.
    #[inline]
    fn weighted(&self, view: &View) -> u128 {
        u128::from(view.previous) * u128::from(self.windows.period - view.elapsed)
    }

    /// The first moment into a window at which `previous` weighs so little that `free` units are enough.
    fn light_enough(&self, previous: u64, free: u64) -> u64 {
        if previous == 0 {
            return 0;
        }
        let tail = u128::from(free) * u128::from(self.windows.period) / u128::from(previous);
        u64::try_from(tail).map_or(0, |tail| self.windows.period.saturating_sub(tail))
    }
}

impl Cell for SlidingWindowCounter {
    #[inline]
    fn limit(&self) -> u64 {
        self.limit
    }

    #[inline]
    fn charge(&self, state: u64, now: u64, cost: u64) -> Option<u64> {
        let view = self.view(state, now);
        let free = self.limit.checked_sub(view.current + cost)?;
        let fits = self.weighted(&view) <= u128::from(free) * u128::from(self.windows.period);
        fits.then(|| self.pack(view.index, view.previous, view.current + cost))
    }

    #[inline]
    fn refund(&self, state: u64, cost: u64) -> u64 {
        let (_, _, current) = self.unpack(state);
        state - current.min(cost)
    }

    #[inline]
    fn is_idle(&self, state: u64, now: u64) -> bool {
        let view = self.view(state, now);
        view.previous | view.current == 0
    }

    fn debt(&self, state: u64, now: u64) -> u64 {
        let view = self.view(state, now);
        // At most the count of the window before.
        view.current + self.weighted(&view).div_ceil(u128::from(self.windows.period)) as u64
    }

    fn remaining(&self, state: u64, now: u64) -> u64 {
        self.limit.saturating_sub(self.debt(state, now))
    }

    fn admitted_at(&self, state: u64, now: u64, cost: u64) -> u64 {
        let view = self.view(state, now);
        if let Some(free) = self.limit.checked_sub(view.current + cost) {
            let elapsed = self.light_enough(view.previous, free).max(view.elapsed);
            if elapsed < self.windows.period {
                return self.windows.moment(view.index, elapsed);
            }
        }
        // In the next window what is current weighs as the window before, in the one after that not at all.
        let elapsed = self.light_enough(view.current, self.limit - cost);
        self.windows.moment(view.index + 1, elapsed)
    }

    /// The end of the last window in which the state still counts, taking `now` into account only to tell which round
    /// the window number is of.
    fn idle_at(&self, state: u64, now: u64) -> u64 {
        let view = self.view(state, now);
        match (view.previous, view.current) {
            (0, 0) => 0,
            (_, 0) => self.windows.moment(view.index + 1, 0),
            _ => self.windows.moment(view.index + 2, 0),
        }
    }
}
