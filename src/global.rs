//! [`GlobalLimiter`]: one quota for everything.

mod leases;
mod single;

use alloc::boxed::Box;
use core::fmt;
use core::time::Duration;

use crate::cell::STATE_BITS;
use crate::clock::Clock;
#[cfg(feature = "std")]
use crate::clock::PreciseClock;
use crate::decision::Decision;
use crate::error::{BuildError, CostError};
use crate::ledger::{Ledger, Room};
use crate::quota::{Algorithm, Quota};
use crate::terms::{FIRST, Terms};
use crate::timeline::{DEFAULT_HORIZON, Timeline};
use crate::together::Limit;
use crate::together::sealed::Parts;

use leases::{Lease, Leases};
use single::Single;

/// One quota for everything: a limiter without keys, in a single cell.
///
/// Decisions mean the same as those of a [`Limiter`](crate::Limiter). A check is lock-free, allocates nothing and takes
/// constant time. (A sliding-window log is more than a cell, and takes time in proportion to its limit.) Who wants to wait in
/// turn, or several quotas, takes a `Limiter<()>` with a capacity of one key.
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
pub struct GlobalLimiter<#[cfg(feature = "std")] C = PreciseClock, #[cfg(not(feature = "std"))] C> {
    kept: Kept,
    timeline: Timeline,
    clock: C,
    leases: Option<Leases>,
}

/// What has been used.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one of it, and its cell is best reached at once")]
enum Kept {
    Cell(Single),
    /// A log is more than a cell: it is kept as that of one key.
    Log(Box<Ledger>),
}

/// Does the same with what has been used, however it is kept.
macro_rules! with {
    ($kept:expr, $method:ident($($argument:expr),*)) => {
        match $kept {
            Kept::Cell(cell) => cell.$method($($argument),*),
            Kept::Log(ledger) => ledger.$method(ONE_KEY, $($argument),*),
        }
    };
    ($kept:expr, by $number:expr, $method:ident($($argument:expr),*)) => {
        match $kept {
            Kept::Cell(cell) => cell.$method($($argument),*),
            Kept::Log(ledger) => ledger.$method($number, ONE_KEY, $($argument),*),
        }
    };
}

/// The key of a ledger that has only one.
const ONE_KEY: u64 = 0;

#[cfg(feature = "std")]
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
        quota.validate()?;
        let kept = match quota.algorithm() {
            Algorithm::SlidingWindowLog => Kept::Log(Box::new(Ledger::new(&quota, &timeline, Room::FOR_ONE)?)),
            _ => Kept::Cell(Single::new(Terms::new(&quota, &timeline, STATE_BITS, 0)?)),
        };
        Ok(Self { kept, timeline, clock, leases: None })
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
    /// threads count as used. A leaky bucket that is leased tells no delays.
    ///
    /// ```
    /// use tollgate::{GlobalLimiter, Quota};
    ///
    /// let ingress = GlobalLimiter::new(Quota::per_minute(1_000))?.leasing(10);
    /// assert!(ingress.check().is_allowed());
    /// assert_eq!(ingress.peek().remaining(), 990);
    /// # Ok::<(), tollgate::BuildError>(())
    /// ```
    #[cfg(feature = "std")]
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
        let limit = self.limit();
        if cost > limit {
            return Err(CostError { cost, limit });
        }
        Ok(if cost == 0 { self.look(0) } else { self.decide(cost) })
    }

    /// What a check would say now, without taking anything.
    pub fn peek(&self) -> Decision {
        self.look(1)
    }

    /// Takes as much of `most` units as there is, and says how much by [`granted`](Decision::granted). Allowed if that is
    /// anything, or nothing was asked for.
    pub fn check_up_to(&self, most: u64) -> Decision {
        if most == 0 {
            return self.look(0);
        }
        loop {
            let decision = match most.min(self.peek().remaining()) {
                0 => return self.decide(1),
                units => self.decide(units),
            };
            // Else another thread has taken some of it meanwhile.
            if !decision.is_refused_by_quota() {
                return decision;
            }
        }
    }

    /// Charges `units` whether they are there or not; see [`Limiter::charge`](crate::Limiter::charge).
    pub fn charge(&self, units: u64) {
        with!(&self.kept, force(units, self.now()));
    }

    /// Gives `units` back, never above full; see [`Limiter::refund`](crate::Limiter::refund).
    pub fn refund(&self, units: u64) {
        with!(&self.kept, refund(units, self.now()));
    }

    /// Forgets all that was used. What threads have leased they keep.
    pub fn reset(&self) {
        with!(&self.kept, forget(self.now()));
    }

    /// Changes the quota while the limiter runs: what is owed stays owed, in units; see
    /// [`Limiter::set_quota`](crate::Limiter::set_quota). What threads have leased they keep.
    ///
    /// # Errors
    ///
    /// A [`BuildError`] if the quota is impossible, of another algorithm, or too far from the old one. Nothing is changed
    /// then.
    ///
    /// ```
    /// use tollgate::{GlobalLimiter, Quota};
    ///
    /// let upstream = GlobalLimiter::new(Quota::per_minute(10))?;
    /// assert_eq!(upstream.check_n(4)?.remaining(), 6);
    /// upstream.set_quota(&Quota::per_minute(100))?;
    /// assert_eq!(upstream.peek().remaining(), 96);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_quota(&self, quota: &Quota) -> Result<(), BuildError> {
        match &self.kept {
            Kept::Cell(cell) => cell.terms().set(quota, self.now()),
            Kept::Log(ledger) => ledger.set_quota(quota, self.now()),
        }
    }

    /// The quota as it stands.
    #[must_use]
    pub fn quota(&self) -> Quota {
        match &self.kept {
            Kept::Cell(cell) => cell.terms().quota(),
            Kept::Log(ledger) => ledger.quota(),
        }
    }

    #[inline]
    fn decide(&self, cost: u64) -> Decision {
        match &self.leases {
            None => self.take(cost, self.now()),
            Some(leases) => self.decide_by_lease(leases, cost),
        }
    }

    #[inline]
    fn take(&self, cost: u64, now: u64) -> Decision {
        with!(&self.kept, by FIRST, decide_at(cost, now))
    }

    #[inline(never)]
    fn decide_by_lease(&self, leases: &Leases, cost: u64) -> Decision {
        match leases.mine() {
            Some(lease) => self.spend(lease, leases.units(), cost),
            None => self.take(cost, self.now()),
        }
    }

    /// Takes `cost` units from those that the thread has taken ahead, or from the cell what is missing of them.
    #[inline]
    fn spend(&self, lease: &Lease, units: u64, cost: u64) -> Decision {
        let left = lease.left();
        if cost > left {
            let decision = self.renew(lease, units, cost - left);
            // A refusal waits for what is missing; what is granted is all of the cost.
            return if decision.is_allowed() { decision.of_cost(cost) } else { decision };
        }
        lease.keep(left - cost);
        lease.decision(self.limit(), cost)
    }

    /// Takes `missing` units from the quota: as a part of a whole lease if there is one to be had, and else by themselves.
    #[cold]
    fn renew(&self, lease: &Lease, units: u64, missing: u64) -> Decision {
        let now = self.now();
        let whole = units.min(self.limit()).max(missing);
        let (decision, taken) = match self.take(whole, now) {
            decision if decision.is_allowed() => (decision, whole),
            _ => (self.take(missing, now), missing),
        };
        if decision.is_allowed() {
            lease.keep(taken - missing);
            lease.note(&decision);
        }
        decision
    }

    fn limit(&self) -> u64 {
        match &self.kept {
            Kept::Cell(cell) => cell.limit(),
            Kept::Log(ledger) => ledger.limit(FIRST),
        }
    }

    #[inline]
    fn now(&self) -> u64 {
        self.timeline.at(self.clock.now())
    }

    fn look(&self, cost: u64) -> Decision {
        with!(&self.kept, by FIRST, look(cost, self.now()))
    }
}

impl<C: Clock> Parts for GlobalLimiter<C> {
    fn parts(&self) -> usize {
        1
    }

    fn look(&self, _part: usize, cost: u64) -> Decision {
        self.look(cost)
    }

    /// Not from what the thread has leased, for what is charged here may have to be undone.
    fn charge(&self, _part: usize, cost: u64) -> Decision {
        self.take(cost, self.now())
    }

    fn undo(&self, _part: usize, charged: &Decision) {
        with!(&self.kept, by FIRST, undo(charged, self.now()));
    }
}

impl<C: Clock> Limit for GlobalLimiter<C> {}

impl<C: Clock> fmt::Debug for GlobalLimiter<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GlobalLimiter")
            .field("quota", &format_args!("{}", self.quota()))
            .field("peek", &self.peek())
            .finish_non_exhaustive()
    }
}
