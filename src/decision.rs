//! What a check answers: [`Decision`].

use std::fmt;
use std::time::Duration;

use crate::cell::Policy;

/// How a decision came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The quota has room.
    Allowed,
    /// The quota has no room.
    Refused,
    /// The table has no room for a new key; the state is that of the entry which will be idle first.
    Crowded,
}

/// The answer to a check: may it go on, and if not, when.
///
/// All numbers are as they stand after the decision and are worked out only when asked for, so an answer of which only
/// [`is_allowed`](Self::is_allowed) is read costs nothing more. Durations count from the moment of the decision, on
/// the limiter's clock, and are exact to the nanosecond.
#[derive(Clone, Copy)]
#[must_use = "a decision limits nothing unless it is looked at"]
pub struct Decision {
    policy: Policy,
    state: u64,
    now: u64,
    cost: u64,
    verdict: Verdict,
}

impl Decision {
    pub(crate) fn new(policy: &Policy, state: u64, now: u64, cost: u64, verdict: Verdict) -> Self {
        Self { policy: *policy, state, now, cost, verdict }
    }

    /// The state that was decided on, after the decision.
    pub(crate) fn state(&self) -> u64 {
        self.state
    }

    /// Whether the request may go on.
    #[must_use]
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.verdict == Verdict::Allowed
    }

    /// The most units that the quota gives at once: the burst, or the limit where the algorithm takes no burst.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.policy.limit()
    }

    /// The whole units that would be admitted now.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        match self.verdict {
            Verdict::Crowded => 0,
            _ => self.policy.remaining(self.state, self.now),
        }
    }

    /// How long to wait before the same request is admitted, if nobody else takes the room: asking at that moment is
    /// admitted, asking a nanosecond earlier is not. Zero if the request was allowed.
    ///
    /// Where the table had no room for a new key, it is the time until the first entry in its way is idle.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        Duration::from_nanos(match self.verdict {
            Verdict::Allowed => 0,
            Verdict::Refused => self.policy.wait(self.state, self.now, self.cost),
            Verdict::Crowded => self.policy.reset_after(self.state, self.now).max(1),
        })
    }

    /// How long to wait before one more unit is admitted: zero while [`remaining`](Self::remaining) is not.
    #[must_use]
    pub fn available_after(&self) -> Duration {
        match self.verdict {
            Verdict::Crowded => self.retry_after(),
            _ => Duration::from_nanos(self.policy.wait(self.state, self.now, 1)),
        }
    }

    /// How long until the whole limit is there again, if nothing more is asked for.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        match self.verdict {
            Verdict::Crowded => Duration::ZERO,
            _ => Duration::from_nanos(self.policy.reset_after(self.state, self.now)),
        }
    }

    /// How long an allowed request should be held back before it goes on. Zero with every algorithm that admits or
    /// refuses at once, which all of today's do.
    #[must_use]
    pub fn delay(&self) -> Duration {
        Duration::ZERO
    }
}

/// A refusal by a quota that gives nothing, ever: what stands in a buffer before
/// [`check_many`](crate::Limiter::check_many) fills it.
impl Default for Decision {
    fn default() -> Self {
        Self { policy: Policy::NOTHING, state: 0, now: 0, cost: 1, verdict: Verdict::Refused }
    }
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("is_allowed", &self.is_allowed())
            .field("limit", &self.limit())
            .field("remaining", &self.remaining())
            .field("retry_after", &self.retry_after())
            .field("reset_after", &self.reset_after())
            .finish()
    }
}
