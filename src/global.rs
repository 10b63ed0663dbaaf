//! [`GlobalLimiter`]: one quota for everything.

mod leases;

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

use leases::{Lease, Leases};

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
    leases: Option<Leases>,
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
        Ok(Self { cell: CachePadded::new(AtomicU64::new(NEW)), policy, timeline, quota, clock, leases: None })
    }

    /// Lets each thread take `units` at a time and spend them by itself, so that threads hardly ever meet at the one
    /// cell: for a limit that many cores ask for millions of times a second, and that need not be exact. Nothing changes
    /// if `units` is 0 or 1.
    ///
    /// Up to `units - 1` lie unspent with each thread that has ever checked (the first 64 at a time; any others check
    /// exactly). So in any span of time up to that many for each thread may be admitted beyond the quota, namely those
    /// taken before; and up to that many be refused that an exact limiter would admit, since another thread holds them. In
    /// the long run nothing is admitted that was not taken from the quota.
    ///
    /// The numbers of an allowed decision are those of the moment when its thread last took units; units that lie with
    /// threads count as used.
    ///
    /// ```
    /// use tollgate::{GlobalLimiter, Quota};
    ///
    /// let ingress = GlobalLimiter::new(Quota::per_second(5_000_000))?.leasing(100);
    /// assert!(ingress.check().is_allowed());
    /// assert_eq!(ingress.peek().remaining(), 5_000_000 - 100);
    /// # Ok::<(), tollgate::BuildError>(())
    /// ```
    #[must_use]
    pub fn leasing(self, units: u64) -> Self {
        Self { leases: (units > 1).then(|| Leases::new(units)), ..self }
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
        if let Some(leases) = &self.leases
            && let Some(lease) = leases.mine()
        {
            return self.spend(lease, leases.units(), cost);
        }
        let now = self.now();
        self.charge(now, cost)
    }

    #[inline]
    fn charge(&self, now: u64, cost: u64) -> Decision {
        let mut state = self.cell.load(Ordering::Relaxed);
        while let Some(new) = self.policy.charge(state, now, cost) {
            // Relaxed: the cell is all there is.
            match self.cell.compare_exchange_weak(state, new, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Decision::new(&self.policy, new, now, cost, Verdict::Allowed),
                Err(changed) => state = changed,
            }
        }
        Decision::new(&self.policy, state, now, cost, Verdict::Refused)
    }

    /// Takes `cost` units from those that the thread has taken ahead, or from the cell what is missing of them.
    #[inline]
    fn spend(&self, lease: &Lease, units: u64, cost: u64) -> Decision {
        let left = lease.left();
        if cost > left {
            return self.renew(lease, units, cost - left);
        }
        lease.keep(left - cost);
        let (state, now) = lease.noted();
        Decision::new(&self.policy, state, now, cost, Verdict::Allowed)
    }

    /// Takes `missing` units from the cell: as a part of a whole lease if there is one to be had, and else by themselves.
    #[cold]
    fn renew(&self, lease: &Lease, units: u64, missing: u64) -> Decision {
        let now = self.now();
        let whole = units.min(self.policy.limit()).max(missing);
        let (decision, taken) = match self.charge(now, whole) {
            decision if decision.is_allowed() => (decision, whole),
            _ => (self.charge(now, missing), missing),
        };
        if decision.is_allowed() {
            lease.keep(taken - missing);
            lease.note(decision.state(), now);
        }
        decision
    }

    #[inline]
    fn now(&self) -> u64 {
        self.timeline.at(self.clock.now())
    }

    fn look(&self, cost: u64) -> Decision {
        let now = self.now();
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
