//! Sliding-window counter: the units of this window, and those of the window before, weighted by the part of it that
//! a window ending now would still cover.
//!
//! Admitted when `previous * (W - e) / W + current + cost <= L`, with `W` the period and `e` the time into the current
//! window, in exact integers. The state is the number of the current window and the two counts. Units charged beyond the
//! limit after the fact count in the windows that follow, as far as the current count has room for them. Units that are
//! booked for a later window count in that window, so the state is that of then, with a bit that says so, where there is one.
//!
//! Two counts leave few bits for the number. Where the numbers of all windows of the timeline do not fit they go round:
//! a state is then taken for one of a later window once it is older than three quarters of the round, so a round must
//! be long enough that any sweep comes first. See [`ROUND_BITS`]. Where bits are left over, a half of them are for larger
//! current counts, a quarter for larger limits and a quarter for shorter windows.

use crate::error::BuildError;
use crate::quota::Quota;
use crate::timeline::Timeline;

use super::{Cell, STATE_BITS, Windows, Words, bits_for};

/// The fewest bits for a number that goes round: with a period of a second, a round of 48 days. It leaves room for
/// limits of up to 2^20 - 1.
const ROUND_BITS: u32 = 22;

#[derive(Clone, Copy, Debug)]
pub(crate) struct SlidingWindowCounter {
    limit: u64,
    /// The limit of the windows before the quota was changed.
    before: u64,
    windows: Windows,
    /// The bit of a state that says that units were booked ahead: where there is one to spare, the highest of the current
    /// count, else none.
    booked_bit: u64,
    /// Of the count of the window before, which is never above the limit.
    previous_bits: u8,
    current_bits: u8,
    index_bits: u8,
    /// Whether window numbers go round.
    round: bool,
}

/// A state as it stands at some moment.
#[derive(Clone, Copy)]
struct View {
    index: u64,
    /// Time into the window; 0 if the state is ahead of the clock.
    elapsed: u64,
    previous: u64,
    current: u64,
    /// The windows from now on to one for which units were booked ahead; nothing is admitted before that.
    ahead: u64,
}

impl SlidingWindowCounter {
    /// A counter whose states have at most `bits` bits.
    pub(crate) fn new(quota: &Quota, timeline: &Timeline, bits: u32) -> Result<Self, BuildError> {
        let windows = Windows::new(quota.period_ns(), timeline);
        let needed_bits = bits_for(windows.locate(timeline.end()).0);
        let count_bits = bits_for(quota.limit());
        let enough_bits = needed_bits.min(ROUND_BITS);
        if 2 * count_bits + enough_bits > bits {
            let largest = (1 << (bits.saturating_sub(enough_bits) / 2)) - 1;
            return Err(BuildError::limit_too_large(quota, largest));
        }
        let spare = bits.checked_sub(2 * count_bits + needed_bits);
        let quarter = spare.unwrap_or(0) / 4;
        let (previous_bits, index_bits) = (count_bits + quarter, needed_bits + quarter);
        let current_bits = if spare.is_some() { bits - previous_bits - index_bits } else { count_bits };
        Ok(Self {
            limit: quota.limit(),
            before: quota.limit(),
            windows,
            booked_bit: Self::booked_bit(previous_bits, current_bits),
            previous_bits: previous_bits as u8,
            current_bits: current_bits as u8,
            index_bits: (bits - previous_bits - current_bits) as u8,
            round: spare.is_none(),
        })
    }

    /// The counter of another quota from `now` on, for the same states.
    pub(super) fn changed(&self, quota: &Quota, timeline: &Timeline, now: u64) -> Result<Self, BuildError> {
        let windows = self.windows.changed(quota, timeline, now);
        let index_fits = bits_for(windows.locate(timeline.end()).0) <= self.index_bits.into()
            || self.round && quota.period_ns() >= self.windows.period;
        let fits = index_fits && bits_for(quota.limit()) <= self.previous_bits.into();
        let changed = Self { limit: quota.limit(), before: self.limit.max(self.before), windows, ..*self };
        if fits { Ok(changed) } else { Err(BuildError::OutOfReach { quota: *quota }) }
    }

    pub(super) fn to_words(self, tag: u64) -> Words {
        let [period, phase, place, turn] = self.windows.to_words();
        let bits = [self.previous_bits, self.current_bits, self.index_bits, self.round.into()];
        let rest = tag | u64::from(u32::from_le_bytes(bits)) << 8;
        [rest, self.limit, self.before, period, phase, place, turn]
    }

    pub(super) fn from_words([rest, limit, before, windows @ ..]: Words) -> Self {
        let [previous_bits, current_bits, index_bits, round] = ((rest >> 8) as u32).to_le_bytes();
        let (windows, round) = (Windows::from_words(windows), round != 0);
        let booked_bit = Self::booked_bit(previous_bits.into(), current_bits.into());
        Self { limit, before, windows, booked_bit, previous_bits, current_bits, index_bits, round }
    }

    #[inline]
    fn index_mask(&self) -> u64 {
        (1 << self.index_bits) - 1
    }

    fn booked_bit(previous_bits: u32, current_bits: u32) -> u64 {
        if current_bits > previous_bits { 1 << (current_bits - 1) } else { 0 }
    }

    /// All the bits of the current count.
    #[inline]
    fn current_mask(&self) -> u64 {
        (1 << self.current_bits) - 1
    }

    #[inline]
    fn pack(&self, view: &View, current: u64) -> u64 {
        let booked = if view.ahead > 0 { self.booked_bit } else { 0 };
        let most = self.current_mask() ^ self.booked_bit;
        self.join(view, current.min(most) | booked)
    }

    /// The state of a view with another current count, which has to fit.
    #[inline]
    fn join(&self, view: &View, current: u64) -> u64 {
        let index = view.index & self.index_mask();
        (((index << self.previous_bits) | view.previous) << self.current_bits) | current
    }

    /// The window number, the count of the window before, and the count with the bit that says that it was booked ahead.
    #[inline]
    fn unpack(&self, state: u64) -> (u64, u64, u64) {
        let rest = state >> self.current_bits;
        (rest >> self.previous_bits, rest & ((1 << self.previous_bits) - 1), state & self.current_mask())
    }

    /// The two counts `windows` later: of more than the limit, what is above it goes on to the next window.
    #[inline]
    fn later(limit: u64, (previous, current): (u64, u64), windows: u64) -> (u64, u64) {
        if windows == 0 {
            return (previous, current);
        }
        let owed = current.saturating_sub((windows - 1).saturating_mul(limit));
        let previous = owed.min(limit);
        (previous, owed - previous)
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
        let (index, previous, marked) = self.unpack(state);
        let current = marked & !self.booked_bit;
        let age = self.age(index, here);
        if age == 0 {
            return View { index: here, elapsed, previous, current, ahead: 0 };
        }
        if age < 0 && previous | marked != 0 {
            let ahead = if marked == current { 0 } else { age.unsigned_abs() };
            return View { index: here.wrapping_sub(age.cast_unsigned()), elapsed: 0, previous, current, ahead };
        }
        let (before, after) = self.windows.parted(age.max(0).cast_unsigned(), here);
        let at_the_turn = Self::later(self.before, (previous, current), before);
        let (previous, current) = Self::later(self.limit, at_the_turn, after);
        View { index: here, elapsed, previous, current, ahead: 0 }
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
        (fits && view.ahead == 0).then(|| self.join(&view, view.current + cost))
    }

    fn force(&self, state: u64, now: u64, cost: u64) -> u64 {
        let view = self.view(state, now);
        self.pack(&view, view.current.saturating_add(cost))
    }

    /// Counts in the window in which it is admitted. Until then the state is that of then, and says so.
    fn book(&self, state: u64, now: u64, cost: u64) -> Option<u64> {
        if let Some(charged) = self.charge(state, now, cost) {
            return Some(charged);
        }
        // Beyond that no timeline reaches.
        let at = Some(self.admitted_at(state, now, cost)).filter(|&at| at < 1 << STATE_BITS)?;
        let (view, (here, _)) = (self.view(state, at), self.windows.locate(now));
        let view = View { ahead: view.index.saturating_sub(here), ..view };
        let current = view.current + cost;
        let is_kept = (view.ahead == 0 || self.booked_bit != 0)
            && current <= self.limit
            && (self.round || bits_for(view.index) <= self.index_bits.into());
        is_kept.then(|| self.pack(&view, current))
    }

    /// From this window's count, and what that has not from the count of the window before.
    fn refund(&self, state: u64, now: u64, cost: u64) -> u64 {
        let view = self.view(state, now);
        let previous = view.previous.saturating_sub(cost.saturating_sub(view.current));
        self.pack(&View { previous, ..view }, view.current.saturating_sub(cost))
    }

    /// What still counts of the charge: in this window, and in the one before.
    fn undo(&self, state: u64, now: u64, charged: u64, cost: u64) -> u64 {
        let (then, view) = (self.view(charged, now), self.view(state, now));
        let of_current = cost.min(then.current);
        let of_previous = (cost - of_current).min(then.previous);
        let previous = view.previous.saturating_sub(of_previous);
        self.pack(&View { previous, ..view }, view.current.saturating_sub(of_current))
    }

    #[inline]
    fn is_idle(&self, state: u64, now: u64) -> bool {
        let view = self.view(state, now);
        view.previous | view.current | view.ahead == 0
    }

    fn debt(&self, state: u64, now: u64) -> u64 {
        let view = self.view(state, now);
        // At most the count of the window before.
        let weighted = self.weighted(&view).div_ceil(u128::from(self.windows.period)) as u64;
        (view.current + weighted).saturating_add(view.ahead.saturating_mul(self.limit))
    }

    fn remaining(&self, state: u64, now: u64) -> u64 {
        self.limit.saturating_sub(self.debt(state, now))
    }

    fn admitted_at(&self, state: u64, now: u64, cost: u64) -> u64 {
        let view = self.view(state, now);
        // The first window in which its own count leaves room, or the one after, in which that weighs less.
        let first = (view.current + cost).saturating_sub(self.limit).div_ceil(self.limit);
        for windows in [first, first + 1] {
            let (previous, current) = Self::later(self.limit, (view.previous, view.current), windows);
            let elapsed = if windows == 0 { view.elapsed } else { 0 };
            let elapsed = self.light_enough(previous, self.limit.saturating_sub(current + cost)).max(elapsed);
            if elapsed < self.windows.period {
                return self.windows.moment(view.index + windows, elapsed);
            }
        }
        self.windows.moment(view.index + first + 2, 0)
    }

    /// The end of the last window in which the state still counts, taking `now` into account only to tell which round
    /// the window number is of.
    fn idle_at(&self, state: u64, now: u64) -> u64 {
        let view = self.view(state, now);
        match (view.previous, view.current) {
            (0, 0) if view.ahead == 0 => 0,
            (0, 0) => self.windows.moment(view.index, 0),
            (_, 0) => self.windows.moment(view.index + 1, 0),
            (_, current) => self.windows.moment(view.index + current.div_ceil(self.limit) + 1, 0),
        }
    }
}
