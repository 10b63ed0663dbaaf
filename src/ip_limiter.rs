//! [`IpLimiter`]: a quota for each client address, and others for the networks around it.

use std::fmt;
use std::hash::BuildHasher;
use std::net::IpAddr;

use ahash::RandomState;

use crate::client::IpPrefix;
use crate::clock::{Clock, PreciseClock};
use crate::decision::Decision;
use crate::error::{BuildError, CostError};
use crate::ledger::{Ledger, Memory, Room, WhenFull};
use crate::quota::Quota;
use crate::table::{Event, Stats};
use crate::terms::FIRST;
use crate::timeline::{DEFAULT_HORIZON, Timeline};
use crate::together::sealed::Parts;
use crate::together::{self, Limit, Share};

/// A quota for each client address, and others for the networks around it, decided as one: whoever has a /48 of IPv6 can
/// be 65,536 clients, but only one /48.
///
/// The first quota is that of a client by the default [`IpPrefix`]: an IPv4 address, or an IPv6 /64. Each further one is
/// that of a wider network. A request is admitted by all of them or charged to none.
///
/// ```
/// use std::net::IpAddr;
/// use tollgate::{IpLimiter, IpPrefix, Quota};
///
/// let limiter = IpLimiter::builder(Quota::per_minute(100))
///     .and(IpPrefix::new(32, 56), Quota::per_minute(200))
///     .and(IpPrefix::new(24, 48), Quota::per_minute(250))
///     .capacity(100_000)
///     .build()?;
///
/// let neighbours = ["2001:db8::1", "2001:db8:0:1::1", "2001:db8:0:2::1"].map(|ip| ip.parse::<IpAddr>());
/// let admitted = |ip: IpAddr| (0..150).filter(|_| limiter.check(ip).is_allowed()).count();
/// let [first, second, third] = neighbours;
/// assert_eq!((admitted(first?), admitted(second?), admitted(third?)), (100, 100, 0), "all of one /56");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct IpLimiter<C = PreciseClock, S = RandomState> {
    tiers: Box<[Tier]>,
    timeline: Timeline,
    clock: C,
    hasher: S,
}

/// How much of an address counts as one, and what each has used.
#[derive(Debug)]
struct Tier {
    prefix: IpPrefix,
    ledger: Ledger,
}

impl IpLimiter {
    /// Begins a limiter that gives each client `quota`.
    pub fn builder(quota: Quota) -> IpLimiterBuilder {
        IpLimiterBuilder {
            tiers: vec![(IpPrefix::default(), quota)],
            room: Room {
                capacity: 100_000,
                memory: Memory::Exact,
                shards: 64,
                when_full: WhenFull::default(),
                others: 0,
            },
            clock: PreciseClock::new(),
        }
    }
}

impl<C: Clock, S: BuildHasher> IpLimiter<C, S> {
    /// Takes one unit from the budgets of the client that has `address` and of the networks around it, if it is in all of
    /// them.
    pub fn check(&self, address: IpAddr) -> Decision {
        self.decide(address, 1)
    }

    /// Takes `cost` units, from all budgets or from none. A cost of 0 is allowed and takes nothing.
    ///
    /// # Errors
    ///
    /// A [`CostError`] if the cost is more than one of the quotas can ever give at once. Nothing is taken then.
    pub fn check_n(&self, address: IpAddr, cost: u64) -> Result<Decision, CostError> {
        let limit = self.tiers.iter().map(|tier| tier.ledger.limit(FIRST)).min().unwrap_or(0);
        if cost > limit {
            return Err(CostError { cost, limit });
        }
        Ok(self.decide(address, cost))
    }

    /// What a check would say now, without taking anything.
    pub fn peek(&self, address: IpAddr) -> Decision {
        let now = self.now();
        together::look(|index| self.share(index, address, now), 1)
    }

    /// Charges `units` to all budgets whether they are there or not; see [`Limiter::charge`](crate::Limiter::charge).
    pub fn charge(&self, address: IpAddr, units: u64) {
        self.shares(address).for_each(|share| share.ledger.force(share.id, units, share.now));
    }

    /// Gives `units` back to all budgets; see [`Limiter::refund`](crate::Limiter::refund).
    pub fn refund(&self, address: IpAddr, units: u64) {
        self.shares(address).for_each(|share| share.ledger.refund(share.id, units, share.now));
    }

    /// Forgets all that the client and the networks around it have used.
    pub fn reset(&self, address: IpAddr) {
        self.shares(address).for_each(|share| share.ledger.forget(share.id, share.now));
    }

    /// The limits as they stand for `address`, to be decided together with others by [`check_all`](crate::check_all).
    pub fn of(&self, address: IpAddr) -> impl Limit {
        Of { limiter: self, address }
    }

    fn decide(&self, address: IpAddr, cost: u64) -> Decision {
        self.tiers.iter().for_each(|tier| tier.ledger.prefetch(self.id(tier, address)));
        let now = self.now();
        let decision = together::decide(|index| self.share(index, address, now), cost);
        if cost > 0 {
            self.count(&decision);
        }
        decision
    }

    fn count(&self, decision: &Decision) {
        if let Some(Tier { ledger, .. }) = self.tiers.first() {
            ledger.shards().count(if decision.is_allowed() { Event::Allowed } else { Event::Refused });
        }
    }

    fn id(&self, tier: &Tier, address: IpAddr) -> u64 {
        self.hasher.hash_one(tier.prefix.client(address))
    }

    fn share(&self, index: usize, address: IpAddr, now: u64) -> Option<Share<'_>> {
        let tier = self.tiers.get(index)?;
        Some(Share { ledger: &tier.ledger, number: FIRST, id: self.id(tier, address), now })
    }

    fn shares(&self, address: IpAddr) -> impl Iterator<Item = Share<'_>> {
        let now = self.now();
        (0..).map_while(move |index| self.share(index, address, now))
    }

    fn now(&self) -> u64 {
        self.timeline.at(self.clock.now())
    }

    /// Frees the entries of all clients and networks that are idle, and tells how many they were; see
    /// [`Limiter::sweep`](crate::Limiter::sweep).
    pub fn sweep(&self) -> usize {
        let now = self.now();
        self.tiers.iter().map(|tier| tier.ledger.sweep(tier.ledger.set_count(), now)).sum()
    }

    /// How much of an address each quota is for, in the order of [`Decision::quota_index`].
    pub fn tiers(&self) -> impl Iterator<Item = (IpPrefix, Quota)> {
        self.tiers.iter().map(|tier| (tier.prefix, tier.ledger.quota()))
    }

    /// Changes the quota of the tier at this place while the limiter runs; see
    /// [`Limiter::set_quota`](crate::Limiter::set_quota).
    ///
    /// # Errors
    ///
    /// A [`BuildError`] if there is no such tier, or if the quota is impossible, of another algorithm, or too far from the
    /// old one. Nothing is changed then.
    pub fn set_quota_at(&self, index: usize, quota: &Quota) -> Result<(), BuildError> {
        let count = self.tiers.len();
        let tier = self.tiers.get(index).ok_or(BuildError::NoSuchQuota { index, count })?;
        tier.ledger.set_quota(quota, self.now())
    }

    /// The bytes that it occupies, all told.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let ledgers = self.tiers.iter().map(|tier| size_of::<Tier>() + tier.ledger.memory_bytes());
        size_of::<Self>() + ledgers.sum::<usize>()
    }

    /// What it has done since it was built: checks are counted once, entries by each quota.
    pub fn stats(&self) -> Stats {
        self.tiers.iter().map(|tier| tier.ledger.shards().stats()).fold(Stats::default(), Stats::plus)
    }
}

/// An address of a limiter, see [`IpLimiter::of`].
struct Of<'a, C, S> {
    limiter: &'a IpLimiter<C, S>,
    address: IpAddr,
}

impl<C: Clock, S: BuildHasher> Parts for Of<'_, C, S> {
    fn parts(&self) -> usize {
        self.limiter.tiers.len()
    }

    fn share(&self, part: usize) -> Option<Share<'_>> {
        self.limiter.share(part, self.address, self.limiter.now())
    }

    fn count(&self, decision: &Decision) {
        self.limiter.count(decision);
    }
}

impl<C: Clock, S: BuildHasher> Limit for Of<'_, C, S> {}

impl<C: Clock, S: BuildHasher> fmt::Debug for IpLimiter<C, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IpLimiter")
            .field("tiers", &self.tiers().collect::<Vec<_>>())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// Puts an [`IpLimiter`] together.
#[derive(Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct IpLimiterBuilder<C = PreciseClock> {
    tiers: Vec<(IpPrefix, Quota)>,
    room: Room,
    clock: C,
}

impl<C: Clock> IpLimiterBuilder<C> {
    /// Gives each network of so many bits `quota`, beside what its clients have.
    pub fn and(mut self, prefix: IpPrefix, quota: Quota) -> Self {
        self.tiers.push((prefix, quota));
        self
    }

    /// For how many clients at a time there is to be room, and for as many networks of each size; 100,000 unless set.
    pub fn capacity(self, clients: usize) -> Self {
        Self { room: Room { capacity: clients, ..self.room }, ..self }
    }

    /// How clients and networks are kept; [`Memory::Exact`] unless set.
    pub fn memory(self, memory: Memory) -> Self {
        Self { room: Room { memory, ..self.room }, ..self }
    }

    /// What happens to a new client or network when all its slots are taken.
    pub fn when_full(self, when_full: WhenFull) -> Self {
        Self { room: Room { when_full, ..self.room }, ..self }
    }

    /// The clock that says what time it is; [`PreciseClock`] unless set.
    pub fn clock<D: Clock>(self, clock: D) -> IpLimiterBuilder<D> {
        IpLimiterBuilder { tiers: self.tiers, room: self.room, clock }
    }

    /// Takes the memory and begins.
    ///
    /// # Errors
    ///
    /// A [`BuildError`] if a quota is impossible or does not fit a cell, if the capacity is zero, or if there is not
    /// enough memory for it.
    pub fn build(self) -> Result<IpLimiter<C>, BuildError> {
        let Self { tiers, room, clock } = self;
        if room.capacity == 0 {
            return Err(BuildError::ZeroCapacity);
        }
        let timeline = Timeline::new(clock.now(), DEFAULT_HORIZON);
        let tier = |(prefix, quota)| Ok(Tier { prefix, ledger: Ledger::new(&quota, &timeline, room)? });
        let tiers = tiers.into_iter().map(tier).collect::<Result<Box<[_]>, BuildError>>()?;
        Ok(IpLimiter { tiers, timeline, clock, hasher: RandomState::new() })
    }
}
