//! [`GlobalLimiter`]: one quota for everything.

use std::fmt;
use std::time::Duration;

use crossbeam_utils::CachePadded;

use crate::cell::{NEW, Policy};
use crate::clock::{Clock, PreciseClock};
use crate::decision::{Decision, Verdict};
use crate::error::{BuildError, CostError};
use crate::quota::Quota;
use crate::sync::{AtomicU64, Ordering};
use crate::timeline::{DEFAULT_HORIZON, Timeline};

/// One quota for everything: a limiter without keys, in a single cell.
///
/// Decisions mean the same as those of a [`Limiter`](crate::Limiter). A check is lock-free, allocates nothing and takes
/// constant time.
///
/// ```
/// use tollgate::{GlobalLimiter, Quota};
///
/// let upstream = GlobalLimiter::new(Quota::per_second(2))?;
/// assert!(upstream.check().is_allowed());
/// assert!(upstream.check_n(1)?.is_allowed());
/// assert!(!upstream.check().is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct GlobalLimiter<C = PreciseClock> {
    cell: CachePadded<AtomicU64>,
    policy: Policy,
    timeline: Timeline,
    quota: Quota,
    clock: C,
}

impl GlobalLimiter {
    /// A limiter on a [`PreciseClock`].
    ///
    /// # Errors
    ///
    /// A [`BuildError`] if the quota is impossible or does not fit a cell.
    pub fn new(quota: Quota) -> Result<Self, BuildError> {
        Self::with_clock(quota, PreciseClock::new())
    }
}

impl<C: Clock> GlobalLimiter<C> {
    /// A limiter on a clock of your choice.
    ///
    /// # Errors
    ///
    /// A [`BuildError`] if the quota is impossible or does not fit a cell.
    pub fn with_clock(quota: Quota, clock: C) -> Result<Self, BuildError> {
        Self::with_horizon(quota, clock, DEFAULT_HORIZON)
    }

    /// A limiter for which time runs no further than `horizon`; see
    /// [`Builder::horizon`](crate::Builder::horizon).
    ///
    /// # Errors
    ///
    /// A [`BuildError`] if the quota is impossible or does not fit a cell.
    pub fn with_horizon(quota: Quota, clock: C, horizon: Duration) -> Result<Self, BuildError> {
        let timeline = Timeline::new(clock.now(), horizon);
        let policy = Policy::new(&quota, &timeline)?;
        Ok(Self { cell: CachePadded::new(AtomicU64::new(NEW)), policy, timeline, quota, clock })
    }

    /// Takes one unit, if it is there.
    #[inline]
    pub fn check(&self) -> Decision {
        self.decide(1)
    }

    /// Takes `cost` units, all or none. A cost of 0 is allowed and takes nothing.
    ///
    /// # Errors
    ///
    /// A [`CostError`] if the cost is more than the quota can ever give at once. Nothing is taken then.
    #[inline]
    pub fn check_n(&self, cost: u64) -> Result<Decision, CostError> {
        let limit = self.policy.limit();
        if cost > limit {
            return Err(CostError { cost, limit });
        }
        Ok(if cost == 0 { self.look(0) } else { self.decide(cost) })
    }

    /// What a check would say now, without taking anything.
    pub fn peek(&self) -> Decision {
        self.look(1)
    }

    /// The quota.
    #[must_use]
    pub fn quota(&self) -> Quota {
        self.quota
    }

    #[inline]
    fn decide(&self, cost: u64) -> Decision {
        let mut state = self.cell.load(Ordering::Relaxed);
        let now = self.timeline.at(self.clock.now());
        let charge = |state| self.policy.charge(state, now, cost);
        while let Some(new) = charge(state) {
            // Relaxed: the cell is all there is.
            match self.cell.compare_exchange_weak(state, new, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Decision::new(&self.policy, new, now, cost, Verdict::Allowed),
                Err(changed) => state = changed,
            }
        }
        Decision::new(&self.policy, state, now, cost, Verdict::Refused)
    }

    fn look(&self, cost: u64) -> Decision {
        let now = self.timeline.at(self.clock.now());
        let state = self.cell.load(Ordering::Relaxed);
        let fits = cost == 0 || self.policy.charge(state, now, cost).is_some();
        Decision::new(&self.policy, state, now, cost, if fits { Verdict::Allowed } else { Verdict::Refused })
    }
}

impl<C: Clock> fmt::Debug for GlobalLimiter<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GlobalLimiter")
            .field("quota", &format_args!("{}", self.quota))
            .field("peek", &self.peek())
            .finish_non_exhaustive()
    }
}
