//! The algorithms: pure functions on one `u64`, the *state* of a key, of which the lowest [`STATE_BITS`] bits are used.
//!
//! Times are nanoseconds on the limiter's [`Timeline`]. In every algorithm the state [`NEW`] is a key never seen, and
//! an idle state decides like a new one from then on.

mod bucket;
mod fixed_window;
mod repaced;
mod sliding_window_counter;
#[cfg(all(test, not(loom)))]
mod tests;
mod windows;

use crate::error::BuildError;
use crate::quota::{Algorithm, Quota};
use crate::timeline::Timeline;

use bucket::Bucket;
use fixed_window::FixedWindow;
use repaced::Repaced;
use sliding_window_counter::SlidingWindowCounter;
use windows::Windows;

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

    /// The state after `cost` units are charged for the first time from `now` on at which they can be admitted, after all
    /// that is charged already; `None` if they do not fit the state. That time is when no further units would have to wait.
    fn book(&self, state: u64, now: u64, cost: u64) -> Option<u64> {
        let booked = self.force(state, now, cost);
        (self.debt(self.refund(booked, now, cost), now) >= self.debt(state, now)).then_some(booked)
    }

    /// The state with `cost` units given back, never above full.
    ///
    /// What is charged and given back before it has begun to come back leaves no trace.
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

/// A policy in words, the first of which says in its lowest bits which algorithm it is of.
pub(crate) type Words = [u64; 7];

/// A quota made ready to decide: all numbers in the units of the cell.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Policy {
    Bucket(Bucket),
    /// A bucket of which the quota has been changed.
    Repaced(Repaced),
    FixedWindow(FixedWindow),
    SlidingWindowCounter(SlidingWindowCounter),
}

/// Puts a question to the cell of a policy, whichever it is.
macro_rules! ask {
    ($policy:expr, $cell:ident => $question:expr) => {
        match $policy {
            Policy::Bucket($cell) => $question,
            Policy::Repaced($cell) => $question,
            Policy::FixedWindow($cell) => $question,
            Policy::SlidingWindowCounter($cell) => $question,
        }
    };
}
pub(crate) use ask;

impl Policy {
    /// Gives nothing, ever.
    pub(crate) const NOTHING: Self = Self::Bucket(Bucket::EMPTY);

    /// A policy whose states have at most `bits` bits. Fails if they do not fit, as a log, which is no state of one word at
    /// all.
    pub(crate) fn new(quota: &Quota, timeline: &Timeline, bits: u32) -> Result<Self, BuildError> {
        let longest = (1 << STATE_BITS) - 2;
        if !quota.algorithm().takes_burst() && timeline.end() > longest {
            return Err(BuildError::HorizonTooLong { longest: Timeline::horizon(longest.into()) });
        }
        Ok(match quota.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => Self::Bucket(Bucket::new(quota, timeline, bits)?),
            Algorithm::FixedWindow => Self::FixedWindow(FixedWindow::new(quota, timeline, bits)?),
            Algorithm::SlidingWindowCounter => {
                Self::SlidingWindowCounter(SlidingWindowCounter::new(quota, timeline, bits)?)
            }
            algorithm @ Algorithm::SlidingWindowLog => return Err(BuildError::OtherAlgorithm { algorithm }),
        })
    }

    /// The policy of another quota from `now` on, for the same states: what they owe, they owe in units.
    pub(crate) fn changed(&self, quota: &Quota, timeline: &Timeline, now: u64) -> Result<Self, BuildError> {
        let algorithm = quota.algorithm();
        match self {
            Self::Bucket(bucket) if algorithm.takes_burst() => bucket.repaced(quota, now).map(Self::Repaced),
            Self::Repaced(bucket) if algorithm.takes_burst() => bucket.repaced(quota, now).map(Self::Repaced),
            Self::FixedWindow(window) if algorithm == Algorithm::FixedWindow => {
                window.changed(quota, timeline, now).map(Self::FixedWindow)
            }
            Self::SlidingWindowCounter(window) if algorithm == Algorithm::SlidingWindowCounter => {
                window.changed(quota, timeline, now).map(Self::SlidingWindowCounter)
            }
            _ => Err(BuildError::OtherAlgorithm { algorithm }),
        }
    }

    /// All there is to it, in words that can be put into atomics.
    pub(crate) fn to_words(self) -> Words {
        match self {
            Self::Bucket(cell) => cell.to_words(0),
            Self::Repaced(cell) => cell.to_words(1),
            Self::FixedWindow(cell) => cell.to_words(2),
            Self::SlidingWindowCounter(cell) => cell.to_words(3),
        }
    }

    /// The policy that was put into words.
    pub(crate) fn from_words(words: Words) -> Self {
        match words[0] & 3 {
            0 => Self::Bucket(Bucket::from_words(words)),
            1 => Self::Repaced(Repaced::from_words(words)),
            2 => Self::FixedWindow(FixedWindow::from_words(words)),
            _ => Self::SlidingWindowCounter(SlidingWindowCounter::from_words(words)),
        }
    }

    /// The state of another policy as one of this: it owes as many units.
    pub(crate) fn convert(&self, other: &Self, state: u64, now: u64) -> u64 {
        let ticks = |policy: &Self| match policy {
            Self::Bucket(bucket) => Some(bucket.interval()),
            Self::Repaced(bucket) => Some(bucket.interval()),
            _ => None,
        };
        let debt = ask!(other, cell => cell.debt(state, now));
        if debt == 0 {
            return NEW;
        }
        let from = ticks(other).unwrap_or(1);
        match self {
            // Of two buckets, not even a part of a unit is lost.
            Self::Bucket(bucket) => bucket.owing(now, scaled(debt, bucket.interval(), from)),
            Self::Repaced(bucket) => bucket.owing(now, scaled(debt, bucket.interval(), from)),
            windows => windows.force(NEW, now, debt.div_ceil(from)),
        }
    }

    /// The moment from which on the state is idle.
    pub(crate) fn idle_at(&self, state: u64, now: u64) -> u64 {
        ask!(self, cell => cell.idle_at(state, now))
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
        self.idle_at(state, now).saturating_sub(now)
    }
}

/// The bits that hold the numbers up to `largest`.
pub(crate) const fn bits_for(largest: u64) -> u32 {
    u64::BITS - largest.leading_zeros()
}

/// `number * numerator / denominator`, rounded up, at most `u64::MAX`.
fn scaled(number: u64, numerator: u64, denominator: u64) -> u64 {
    let scaled = (u128::from(number) * u128::from(numerator)).div_ceil(u128::from(denominator));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
