//! Windows of time, numbered.

use crate::quota::Quota;
use crate::timeline::Timeline;

/// Numbers windows of `period` nanoseconds on a timeline so that they begin at multiples of the period on the clock.
///
/// Where the period or the limit was changed while windows were counted, the window of that moment keeps its number and
/// those after it are numbered on from there. Those before it keep theirs, but had another limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Windows {
    pub(super) period: u64,
    /// How far into a window the timeline begins.
    phase: u64,
    /// The window of the last change: by its place on the timeline, and by its number.
    place: u64,
    pub(super) turn: u64,
}

impl Windows {
    pub(super) fn new(period: u64, timeline: &Timeline) -> Self {
        Self { period, phase: timeline.zero() % period, place: 0, turn: 0 }
    }

    /// The windows of another quota from `now` on.
    pub(super) fn changed(&self, quota: &Quota, timeline: &Timeline, now: u64) -> Self {
        // Windows before the last change are numbered by what was then.
        let now = now.max(self.moment(self.turn, 0));
        let turn = self.locate(now).0;
        let new = Self::new(quota.period_ns(), timeline);
        Self { place: new.locate(now).0, turn, ..new }
    }

    pub(super) fn to_words(self) -> [u64; 4] {
        [self.period, self.phase, self.place, self.turn]
    }

    pub(super) fn from_words([period, phase, place, turn]: [u64; 4]) -> Self {
        Self { period, phase, place, turn }
    }

    /// The window of the moment `now`, and how far into it that is. A moment before that of the last change counts as its
    /// beginning.
    #[inline]
    pub(super) fn locate(&self, now: u64) -> (u64, u64) {
        // No overflow: both are below 2^63.
        let since = now + self.phase;
        let place = since / self.period;
        if place < self.place {
            return (self.turn, 0);
        }
        (place - self.place + self.turn, since % self.period)
    }

    /// How many of `windows` up to the window `here` came before the last change, and how many from then on.
    #[inline]
    pub(super) fn parted(&self, windows: u64, here: u64) -> (u64, u64) {
        let after = windows.min(here - self.turn);
        (windows - after, after)
    }

    /// The moment `elapsed` nanoseconds into window `index`. A moment before the timeline, or before the last change, counts
    /// as its beginning.
    pub(super) fn moment(&self, index: u64, elapsed: u64) -> u64 {
        let place = u128::from(index.saturating_sub(self.turn)) + u128::from(self.place);
        let at = place * u128::from(self.period) + u128::from(elapsed);
        u64::try_from(at.saturating_sub(u128::from(self.phase))).unwrap_or(u64::MAX)
    }
}
