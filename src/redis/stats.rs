//! What has happened so far.

use crate::sync::{Counter, Ordering};

/// What a [`RedisLimiter`](super::RedisLimiter) has done since it was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisStats {
    /// Checks that were admitted.
    pub allowed: u64,
    /// Checks that were refused.
    pub refused: u64,
    /// Commands sent to Redis, probes included.
    pub round_trips: u64,
    /// Checks that Redis decided.
    pub shared: u64,
    /// Checks that were refused by what was remembered of a refusal.
    pub remembered: u64,
    /// Checks that were admitted out of a slice of the budget taken before.
    pub leased: u64,
    /// Checks that were decided without Redis, by [`WhenDown`](super::WhenDown).
    pub alone: u64,
    /// Calls for which no answer came within the deadline.
    pub timeouts: u64,
    /// Calls that failed in any other way.
    pub errors: u64,
    /// How often the circuit breaker has opened.
    pub opened: u64,
    /// How often it has closed again.
    pub closed: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) allowed: Counter,
    pub(super) refused: Counter,
    pub(super) round_trips: Counter,
    pub(super) shared: Counter,
    pub(super) remembered: Counter,
    pub(super) leased: Counter,
    pub(super) alone: Counter,
    pub(super) timeouts: Counter,
    pub(super) errors: Counter,
    pub(super) opened: Counter,
    pub(super) closed: Counter,
}

pub(super) fn count(counter: &Counter) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counters {
    pub(super) fn stats(&self) -> RedisStats {
        let read = |counter: &Counter| counter.load(Ordering::Relaxed);
        RedisStats {
            allowed: read(&self.allowed),
            refused: read(&self.refused),
            round_trips: read(&self.round_trips),
            shared: read(&self.shared),
            remembered: read(&self.remembered),
            leased: read(&self.leased),
            alone: read(&self.alone),
            timeouts: read(&self.timeouts),
            errors: read(&self.errors),
            opened: read(&self.opened),
            closed: read(&self.closed),
        }
    }
}
