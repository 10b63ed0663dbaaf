//! What a check answers: [`Decision`].

use core::fmt;
use core::time::Duration;

use crate::cell::Policy;

/// How a decision came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The quota had room.
    Allowed,
    /// The quota has room, but nothing was taken.
    Allowable,
    /// The quota has no room.
    Refused,
    /// The table has no room for a new key.
    Crowded,
    /// The key is blocked.
    Blocked,
}

/// What a decision is about, all times in nanoseconds from its moment on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    pub(crate) retry_after: u64,
    /// Until one more unit than remain.
    pub(crate) more_after: u64,
    pub(crate) reset_after: u64,
}

impl Numbers {
    /// Of a key that has used nothing.
    pub(crate) fn full(limit: u64) -> Self {
        Self { limit, remaining: limit, retry_after: 0, more_after: 0, reset_after: 0 }
    }
}

/// Where the numbers of a decision come from.
#[derive(Clone, Copy)]
enum Basis {
    /// They are worked out from the state when they are asked for.
    Policy(Policy),
    /// They were worked out when it was decided, as the state is not all there is to it.
    Numbers(Numbers),
}

/// The answer to a check: may it go on, and if not, when.
///
/// All numbers are as they stand after the decision. Durations count from the moment of the decision, on the limiter's
/// clock, and are exact to the nanosecond. (Most are worked out only when asked for, so an answer of which only
/// [`is_allowed`](Self::is_allowed) is read costs nothing more.)
#[derive(Clone, Copy)]
#[must_use = "a decision limits nothing unless it is looked at"]
pub struct Decision {
    basis: Basis,
    state: u64,
    now: u64,
    cost: u64,
    /// The longest delay by another of the quotas, in nanoseconds.
    delay: u64,
    verdict: Verdict,
    quota: u16,
}

impl Decision {
    #[inline]
    pub(crate) fn of_state(policy: &Policy, state: u64, now: u64, cost: u64, verdict: Verdict) -> Self {
        Self { basis: Basis::Policy(*policy), state, now, cost, delay: 0, verdict, quota: 0 }
    }

    pub(crate) fn of_numbers(numbers: Numbers, state: u64, now: u64, cost: u64, verdict: Verdict) -> Self {
        Self { basis: Basis::Numbers(numbers), state, now, cost, delay: 0, verdict, quota: 0 }
    }

    /// The refusal of a key that is blocked for `wait` more nanoseconds.
    pub(crate) fn of_blocked(limit: u64, wait: u64, now: u64, cost: u64) -> Self {
        let numbers = Numbers { limit, remaining: 0, retry_after: wait, more_after: wait, reset_after: wait };
        Self::of_numbers(numbers, now, now, cost, Verdict::Blocked)
    }

    /// The same, for a request of this cost.
    pub(crate) fn of_cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    /// Whether the table had no room for the key.
    pub(crate) fn is_crowded(&self) -> bool {
        self.verdict == Verdict::Crowded
    }

    /// Whether it was a quota that refused, which may have had room a moment before.
    pub(crate) fn is_refused_by_quota(&self) -> bool {
        self.verdict == Verdict::Refused
    }

    /// The same, by the quota of this number.
    pub(crate) fn of_quota(self, quota: usize) -> Self {
        Self { quota: u16::try_from(quota).unwrap_or(u16::MAX), ..self }
    }

    /// That of two which binds: the refusal with the longer wait, else what leaves less, or is full again later.
    pub(crate) fn tighter(self, other: Self) -> Self {
        let left = |decision: &Self| if decision.is_allowed() { decision.remaining() } else { 0 };
        // The first difference decides, for what comes later costs more to work out.
        let order = (self.is_allowed().cmp(&other.is_allowed()))
            .then_with(|| left(&self).cmp(&left(&other)))
            .then_with(|| other.retry_after().cmp(&self.retry_after()))
            .then_with(|| other.reset_after().cmp(&self.reset_after()));
        let (binding, rest) = if order.is_gt() { (other, self) } else { (self, other) };
        let delay = u64::try_from(rest.delay().as_nanos()).unwrap_or(u64::MAX);
        Self { delay: binding.delay.max(delay), ..binding }
    }

    /// The same, to be held back for so many nanoseconds.
    #[cfg(feature = "redis")]
    pub(crate) fn delayed(self, delay: u64) -> Self {
        Self { delay, ..self }
    }

    /// The same, of a request that all quotas together have admitted: what is left after it may not be enough for another.
    #[cfg(feature = "redis")]
    pub(crate) fn admitted_by(self, whole: &Self) -> Self {
        let verdict = if whole.is_allowed() && !self.is_allowed() { whole.verdict } else { self.verdict };
        Self { verdict, ..self }
    }

    /// The same refusal, with a wait of at least this.
    #[cfg(feature = "redis")]
    pub(crate) fn no_sooner(self, wait: Duration) -> Self {
        let Basis::Numbers(numbers) = self.basis else { return self };
        let wait = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        let (retry_after, reset_after) = (numbers.retry_after.max(wait), numbers.reset_after.max(wait));
        Self { basis: Basis::Numbers(Numbers { retry_after, reset_after, ..numbers }), ..self }
    }

    /// The state that was decided on, after the decision.
    pub(crate) fn state(&self) -> u64 {
        self.state
    }

    /// Whether the request may go on.
    #[must_use]
    #[inline]
    pub fn is_allowed(&self) -> bool {
        matches!(self.verdict, Verdict::Allowed | Verdict::Allowable)
    }

    /// Whether it was refused because the key is blocked, and not by a quota.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.verdict == Verdict::Blocked
    }

    /// The units that were taken: all that were asked for, or none.
    #[must_use]
    pub fn granted(&self) -> u64 {
        if self.verdict == Verdict::Allowed { self.cost } else { 0 }
    }

    /// Which of the limiter's quotas it tells of, by its place among them: the one that refused (the one with the longest
    /// wait, if several did), or the one that has least left. 0 where there is only one.
    #[must_use]
    pub fn quota_index(&self) -> usize {
        usize::from(self.quota)
    }

    /// The most units that the quota gives at once: the burst (one more in a leaky bucket), or the limit where the
    /// algorithm takes no burst.
    #[must_use]
    pub fn limit(&self) -> u64 {
        match &self.basis {
            Basis::Policy(policy) => policy.limit(),
            Basis::Numbers(numbers) => numbers.limit,
        }
    }

    /// The whole units that would be admitted now.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        match &self.basis {
            _ if self.verdict == Verdict::Crowded => 0,
            Basis::Policy(policy) => policy.remaining(self.state, self.now),
            Basis::Numbers(numbers) => numbers.remaining,
        }
    }

    /// How long to wait before the same request is admitted, if nobody else takes the room: asking at that moment is
    /// admitted, asking a nanosecond earlier is not. Zero if the request was allowed.
    ///
    /// Where the table had no room for a new key, it is the time until the first entry in its way is idle.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        Duration::from_nanos(match (&self.basis, self.verdict) {
            (_, Verdict::Allowed | Verdict::Allowable) => 0,
            (Basis::Policy(policy), Verdict::Refused | Verdict::Blocked) => {
                policy.wait(self.state, self.now, self.cost)
            }
            (Basis::Policy(policy), Verdict::Crowded) => policy.reset_after(self.state, self.now).max(1),
            (Basis::Numbers(numbers), _) => numbers.retry_after,
        })
    }

    /// How long to wait before one more unit is admitted: zero while [`remaining`](Self::remaining) is not.
    #[must_use]
    pub fn available_after(&self) -> Duration {
        if self.remaining() > 0 { Duration::ZERO } else { self.more_after() }
    }

    /// How long until there is one unit more than [`remaining`](Self::remaining), if nothing more is asked for; zero if the
    /// whole limit is there.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{GlobalLimiter, ManualClock, Quota};
    ///
    /// let limiter = GlobalLimiter::with_clock(Quota::per_second(5), ManualClock::new())?;
    /// assert_eq!(limiter.peek().more_after(), Duration::ZERO);
    /// let decision = limiter.check();
    /// assert_eq!((decision.remaining(), decision.more_after()), (4, Duration::from_millis(200)));
    /// # Ok::<(), tollgate::BuildError>(())
    /// ```
    #[must_use]
    pub fn more_after(&self) -> Duration {
        match &self.basis {
            _ if self.verdict == Verdict::Crowded => self.retry_after(),
            Basis::Policy(policy) => {
                let next = self.remaining() + 1;
                let wait = if next > policy.limit() { 0 } else { policy.wait(self.state, self.now, next) };
                Duration::from_nanos(wait)
            }
            Basis::Numbers(numbers) => Duration::from_nanos(numbers.more_after),
        }
    }

    /// How long until the whole limit is there again, if nothing more is asked for.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        Duration::from_nanos(match &self.basis {
            _ if self.verdict == Verdict::Crowded => 0,
            Basis::Policy(policy) => policy.reset_after(self.state, self.now),
            Basis::Numbers(numbers) => numbers.reset_after,
        })
    }

    /// How long an allowed request should be held back before it goes on, so that requests leave one emission interval
    /// apart. Zero with every algorithm but the [leaky bucket](crate::Algorithm::LeakyBucket).
    #[must_use]
    pub fn delay(&self) -> Duration {
        if self.verdict != Verdict::Allowed {
            return Duration::ZERO;
        }
        Duration::from_nanos(match &self.basis {
            Basis::Policy(policy) => policy.delay(self.state, self.now, self.cost).max(self.delay),
            Basis::Numbers(_) => self.delay,
        })
    }
}

/// A refusal by a quota that gives nothing, ever: what stands in a buffer before
/// [`check_many`](crate::Limiter::check_many) fills it.
impl Default for Decision {
    fn default() -> Self {
        Self::of_state(&Policy::NOTHING, 0, 0, 1, Verdict::Refused)
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
            .field("delay", &self.delay())
            .field("quota_index", &self.quota_index())
            .finish()
    }
}
