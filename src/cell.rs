//! The algorithms: pure functions on one `u64`, the *state* of a key, of which the lowest [`STATE_BITS`] bits are used.
//!
//! Times are nanoseconds on the limiter's [`Timeline`]. In every algorithm the state [`NEW`] is a key never seen, and
//! an idle state decides like a new one from then on.

mod bucket;
mod fixed_window;
mod sliding_window_counter;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::error::BuildError;
use crate::quota::{Algorithm, Quota};
use crate::timeline::Timeline;

use bucket::Bucket;
use fixed_window::FixedWindow;
use sliding_window_counter::SlidingWindowCounter;

/// The bits that a state may use; the other two of a word belong to the table.
pub(crate) const STATE_BITS: u32 = 62;

/// The state of a key that was never seen.
pub(crate) const NEW: u64 = 0;

/// What each algorithm answers about a state at the moment `now`. A `cost` is at most the limit.
pub(crate) trait Cell {
    /// The most units that can be admitted at once.
    fn limit(&self) -> u64;

    /// The state after `cost` units are admitted, or `None` if they are refused.
    fn charge(&self, state: u64, now: u64, cost: u64) -> Option<u64>;

    /// The state after `cost` units are charged whether there is room for them or not. What goes beyond the limit is
    /// paid off like any other use; where it does not fit the state, as much of it as does.
    fn force(&self, state: u64, now: u64, cost: u64) -> u64;

    /// The state with `cost` units given back, never above full.
    fn refund(&self, state: u64, now: u64, cost: u64) -> u64;

    /// The state without a charge of `cost` that led to the state `charged` a moment ago, as if it had never been. If so
    /// much time has gone by that some of it may have come back, less is given rather than too much.
    fn undo(&self, state: u64, now: u64, charged: u64, cost: u64) -> u64;

    /// Whether the state is the same as never having been seen, from `now` on.
    fn is_idle(&self, state: u64, now: u64) -> bool;

    /// How much forgetting the state would give away; comparable between states of one policy, 0 for idle ones.
    fn debt(&self, state: u64, now: u64) -> u64;

    /// The whole units that would be admitted now.
    fn remaining(&self, state: u64, now: u64) -> u64;

    /// The moment at which a `cost` that is refused now is admitted, if nothing else happens.
    fn admitted_at(&self, state: u64, now: u64, cost: u64) -> u64;

    /// The moment from which on the state is idle; any moment that is past if it is already.
    fn idle_at(&self, state: u64, now: u64) -> u64;

    /// How long what was admitted with `cost`, and led to `state`, is held back.
    fn delay(&self, _state: u64, _now: u64, _cost: u64) -> u64 {
        0
    }
}

/// A quota made ready to decide: all numbers in the units of the cell.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Policy {
    Bucket(Bucket),
    FixedWindow(FixedWindow),
    SlidingWindowCounter(SlidingWindowCounter),
}

/// Puts a question to the cell of a policy, whichever it is.
macro_rules! ask {
    ($policy:expr, $cell:ident => $question:expr) => {
        match $policy {
            Policy::Bucket($cell) => $question,
            Policy::FixedWindow($cell) => $question,
            Policy::SlidingWindowCounter($cell) => $question,
        }
    };
}
pub(crate) use ask;

impl Policy {
    /// Gives nothing, ever.
    pub(crate) const NOTHING: Self = Self::Bucket(Bucket::EMPTY);

    /// A policy whose states have at most `bits` bits. Fails if they do not fit: those of windows need [`STATE_BITS`], and
    /// a log is no state of one word at all.
    pub(crate) fn new(quota: &Quota, timeline: &Timeline, bits: u32) -> Result<Self, BuildError> {
        let longest = (1 << STATE_BITS) - 2;
        if !quota.algorithm().takes_burst() && timeline.end() > longest {
            return Err(BuildError::HorizonTooLong { longest: Timeline::horizon(longest.into()) });
        }
        Ok(match quota.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => Self::Bucket(Bucket::new(quota, timeline, bits)?),
            Algorithm::FixedWindow if bits == STATE_BITS => Self::FixedWindow(FixedWindow::new(quota, timeline)?),
            Algorithm::SlidingWindowCounter if bits == STATE_BITS => {
                Self::SlidingWindowCounter(SlidingWindowCounter::new(quota, timeline)?)
            }
            algorithm => return Err(BuildError::NotCompact { algorithm }),
        })
    }

    #[inline]
    pub(crate) fn limit(&self) -> u64 {
        ask!(self, cell => cell.limit())
    }

    #[inline]
    pub(crate) fn charge(&self, state: u64, now: u64, cost: u64) -> Option<u64> {
        ask!(self, cell => cell.charge(state, now, cost))
    }

    pub(crate) fn force(&self, state: u64, now: u64, cost: u64) -> u64 {
        ask!(self, cell => cell.force(state, now, cost))
    }

    pub(crate) fn refund(&self, state: u64, now: u64, cost: u64) -> u64 {
        ask!(self, cell => cell.refund(state, now, cost))
    }

    pub(crate) fn undo(&self, state: u64, now: u64, charged: u64, cost: u64) -> u64 {
        ask!(self, cell => cell.undo(state, now, charged, cost))
    }

    pub(crate) fn remaining(&self, state: u64, now: u64) -> u64 {
        ask!(self, cell => cell.remaining(state, now))
    }

    /// The nanoseconds until `cost` units are admitted if nothing else happens, exactly.
    pub(crate) fn wait(&self, state: u64, now: u64, cost: u64) -> u64 {
        if self.charge(state, now, cost).is_some() {
            return 0;
        }
        ask!(self, cell => cell.admitted_at(state, now, cost)).saturating_sub(now)
    }

    /// The nanoseconds for which what was admitted is held back.
    pub(crate) fn delay(&self, state: u64, now: u64, cost: u64) -> u64 {
        ask!(self, cell => cell.delay(state, now, cost))
    }

    /// The nanoseconds until the state is idle.
    pub(crate) fn reset_after(&self, state: u64, now: u64) -> u64 {
        ask!(self, cell => cell.idle_at(state, now)).saturating_sub(now)
    }
}

/// The bits that hold the numbers up to `largest`.
pub(crate) const fn bits_for(largest: u64) -> u32 {
    u64::BITS - largest.leading_zeros()
}

/// Numbers windows of `period` nanoseconds on a timeline so that they begin at multiples of the period on the clock.
#[derive(Clone, Copy, Debug)]
struct Windows {
    period: u64,
    /// How far into a window the timeline begins.
    phase: u64,
}

impl Windows {
    fn new(period: u64, timeline: &Timeline) -> Self {
        Self { period, phase: timeline.zero() % period }
    }

    /// The window of the moment `now`, and how far into it that is.
    #[inline]
    fn locate(&self, now: u64) -> (u64, u64) {
        // No overflow: both are below 2^63.
        let since = now + self.phase;
        (since / self.period, since % self.period)
    }

    /// The moment `elapsed` nanoseconds into window `index`. A moment before the timeline counts as its beginning.
    fn moment(&self, index: u64, elapsed: u64) -> u64 {
        let at = u128::from(index) * u128::from(self.period) + u128::from(elapsed);
        u64::try_from(at.saturating_sub(u128::from(self.phase))).unwrap_or(u64::MAX)
    }
}
