//! [`Limiter`]: one quota, or several, for each of very many keys. It turns a key into a hash, reads the clock, and asks
//! its ledgers.

mod batches;
mod builder;
mod penalties;
mod quotas;
mod sweeper;
mod waiting;

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::marker::PhantomData;
use std::time::Duration;

use ahash::RandomState;

use crate::clock::{Clock, PreciseClock};
use crate::decision::Decision;
use crate::error::CostError;
use crate::ledger::{Ledger, Settlement, WhenFull};
use crate::quota::Quota;
use crate::table::{Event, Stats};
use crate::terms::FIRST;
use crate::timeline::Timeline;
use crate::together::sealed::Parts;
use crate::together::{self, Limit, Share};

pub use batches::Request;
pub use builder::Builder;
use penalties::Penalties;
pub use penalties::Penalty;
pub use sweeper::Sweeper;
use waiting::Room;
pub use waiting::{Admitted, Reservation};

/// One quota, or several, for each of very many keys, in memory that is fixed when it is built.
///
/// A check is lock-free, allocates nothing and takes constant time: it looks at one or two pairs of cache lines for each
/// quota. (A [sliding-window log](crate::Algorithm::SlidingWindowLog) takes time in proportion to its limit.) Share a limiter between threads by reference or in an [`Arc`](std::sync::Arc).
///
/// `K` is the type of the keys, which are hashed and never stored. Two keys share a budget only if all 64 bits of
/// their randomly seeded hash agree: at ten million live keys the chance that any two of them do is about 3 in a
/// million. As with a `HashMap`, borrowed forms of a key work too.
///
/// ```
/// use tollgate::{Limiter, Quota};
///
/// let limiter = Limiter::<String>::builder(Quota::per_minute(100).with_burst(2)).capacity(10_000).build()?;
///
/// let decision = limiter.check("alice");
/// assert!(decision.is_allowed());
/// assert_eq!(decision.remaining(), 1);
///
/// assert!(limiter.check("alice").is_allowed());
/// let refused = limiter.check("alice");
/// assert!(!refused.is_allowed());
/// assert!(refused.retry_after().as_millis() <= 600);
///
/// assert!(limiter.check("bob").is_allowed(), "each key has a budget of its own");
/// # Ok::<(), tollgate::BuildError>(())
/// ```
pub struct Limiter<K: ?Sized, C = PreciseClock, S = RandomState> {
    first: Ledger,
    /// Those of all other quotas.
    more: Box<[Ledger]>,
    penalties: Penalties,
    room: Room,
    timeline: Timeline,
    capacity: usize,
    when_full: WhenFull,
    clock: C,
    hasher: S,
    keys: PhantomData<fn(&K)>,
}

impl<K: ?Sized> Limiter<K> {
    /// Begins a limiter that gives each key `quota`.
    pub fn builder(quota: Quota) -> Builder<K> {
        Builder::new(quota)
    }
}

impl<K: ?Sized, C: Clock, S: BuildHasher> Limiter<K, C, S> {
    /// Takes one unit from the budget of `key`, if it is there.
    #[inline]
    pub fn check<Q>(&self, key: &Q) -> Decision
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        self.decide(self.hasher.hash_one(key), 1)
    }

    /// Takes `cost` units from the budget of `key`, all or none. A cost of 0 is allowed (unless the key is blocked), takes
    /// nothing and leaves no trace.
    ///
    /// # Errors
    ///
    /// A [`CostError`] if the cost is more than the quota can ever give at once. Nothing is taken then.
    ///
    /// ```
    /// use tollgate::{Limiter, Quota};
    ///
    /// let uploads = Limiter::<u64>::builder(Quota::per_hour(1_000)).build()?;
    /// assert!(uploads.check_n(&7, 900)?.is_allowed());
    /// assert!(!uploads.check_n(&7, 200)?.is_allowed());
    /// assert_eq!(uploads.peek(&7).remaining(), 100);
    /// assert!(uploads.check_n(&7, 1_001).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn check_n<Q>(&self, key: &Q, cost: u64) -> Result<Decision, CostError>
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        self.possible(FIRST, cost)?;
        let id = self.hasher.hash_one(key);
        Ok(if cost == 0 { self.look(id, 0) } else { self.decide(id, cost) })
    }

    /// The limit as it stands for `key`, to be decided together with others by [`check_all`](crate::check_all).
    pub fn of<Q>(&self, key: &Q) -> impl Limit + use<'_, K, C, S, Q>
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        Of { limiter: self, id: self.hasher.hash_one(key) }
    }

    /// Takes as much of `most` units as there is, and says how much by [`granted`](Decision::granted). Allowed if that is
    /// anything, or nothing was asked for.
    ///
    /// ```
    /// use tollgate::{Limiter, Quota};
    ///
    /// let limiter = Limiter::<str>::builder(Quota::per_minute(10)).build()?;
    /// assert_eq!(limiter.check_up_to("alice", 7).granted(), 7);
    /// assert_eq!(limiter.check_up_to("alice", 7).granted(), 3);
    /// assert!(!limiter.check_up_to("alice", 7).is_allowed());
    /// # Ok::<(), tollgate::BuildError>(())
    /// ```
    pub fn check_up_to<Q>(&self, key: &Q, most: u64) -> Decision
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        let id = self.hasher.hash_one(key);
        if most == 0 {
            return self.look(id, 0);
        }
        loop {
            let decision = match most.min(self.look(id, 1).remaining()) {
                0 => return self.decide(id, 1),
                units => self.decide(id, units),
            };
            // Else another thread has taken some of it meanwhile.
            if !decision.is_refused_by_quota() {
                return decision;
            }
        }
    }

    /// Charges `units` to `key` whether they are there or not: what a request has turned out to cost (bytes sent, tokens
    /// used). What goes beyond the quota is a debt that is paid off like any other use, before anything is admitted again.
    ///
    /// No counter counts it. Nothing is charged to a new key for which the table has no room, by [`WhenFull::Refuse`] or
    /// [`WhenFull::AdmitUntracked`].
    ///
    /// Very large debts are cut short where the key's state has no more room: buckets at about the end of the
    /// [horizon](Builder::horizon), fixed windows and sliding-window counters where the count is full (see
    /// [`Algorithm`](crate::Algorithm)), logs (with the default horizon) at seven times the limit.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, ManualClock, Quota};
    ///
    /// let clock = ManualClock::new();
    /// let kilobytes = Limiter::<str>::builder(Quota::per_second(100)).clock(clock.clone()).build()?;
    /// assert!(kilobytes.check("alice").is_allowed());
    /// kilobytes.charge("alice", 299);
    /// assert_eq!(kilobytes.check("alice").retry_after(), Duration::from_millis(2_010));
    /// # Ok::<(), tollgate::BuildError>(())
    /// ```
    pub fn charge<Q>(&self, key: &Q, units: u64)
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        self.settle(self.hasher.hash_one(key), Settlement::Charge(units), self.now());
    }

    /// Gives `units` back to `key`, as when a request failed for no fault of its own; never above full. Nothing happens if
    /// the key has used nothing.
    ///
    /// Windows are given back what was charged in the current one (the counter: also in the one before); a log those units
    /// that were taken last.
    ///
    /// ```
    /// use tollgate::{Limiter, Quota};
    ///
    /// let limiter = Limiter::<str>::builder(Quota::per_hour(3)).build()?;
    /// assert!(limiter.check("alice").is_allowed());
    /// limiter.refund("alice", 1);
    /// assert_eq!(limiter.peek("alice").remaining(), 3);
    /// # Ok::<(), tollgate::BuildError>(())
    /// ```
    pub fn refund<Q>(&self, key: &Q, units: u64)
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        self.settle(self.hasher.hash_one(key), Settlement::Refund(units), self.now());
    }

    /// Refuses everything to `key` for `duration` from now on, or for longer if it is blocked for longer already. What it
    /// has used is not touched. A duration of zero does nothing.
    ///
    /// There is room for one blocked key in 64 of the capacity; beyond that the one that would be let go first
    /// of those in its way makes room.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, Quota};
    ///
    /// let limiter = Limiter::<str>::builder(Quota::per_second(100)).build()?;
    /// limiter.block("mallory", Duration::from_secs(600));
    /// assert!(limiter.check("mallory").is_blocked());
    /// limiter.reset("mallory");
    /// assert!(limiter.check("mallory").is_allowed());
    /// # Ok::<(), tollgate::BuildError>(())
    /// ```
    pub fn block<Q>(&self, key: &Q, duration: Duration)
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.penalties.block(self.hasher.hash_one(key), self.now(), nanos);
    }

    /// Forgets all that `key` has used, and lets it go on if it is blocked.
    pub fn reset<Q>(&self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        let (id, now) = (self.hasher.hash_one(key), self.now());
        self.forget_id(id, now);
        self.penalties.forgive(id, now);
    }

    /// What a check of `key` would say now, without taking anything or changing the limiter in any way.
    ///
    /// All numbers of the decision are those from before such a check: [`remaining`](Decision::remaining) is what is
    /// left now. That the table has no room for a new key is told by checks only.
    pub fn peek<Q>(&self, key: &Q) -> Decision
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        self.look(self.hasher.hash_one(key), 1)
    }

    /// The most units that all of its quotas give at once, with that of this number as the first.
    #[inline]
    fn limit(&self, number: usize) -> u64 {
        self.more.iter().map(|ledger| ledger.limit(FIRST)).fold(self.first.limit(number), u64::min)
    }

    /// Whether they can ever give as much.
    #[inline]
    fn possible(&self, number: usize, cost: u64) -> Result<(), CostError> {
        let limit = self.limit(number);
        if cost > limit { Err(CostError { cost, limit }) } else { Ok(()) }
    }

    #[inline]
    fn ledgers(&self) -> impl Iterator<Item = &Ledger> {
        std::iter::once(&self.first).chain(&self.more)
    }

    /// The quota at this place, of which the first is that of the `number`.
    fn share(&self, index: usize, number: usize, id: u64, now: u64) -> Option<Share<'_>> {
        Some(match index.checked_sub(1) {
            None => Share { ledger: &self.first, number, id, now },
            Some(index) => Share { ledger: self.more.get(index)?, number: FIRST, id, now },
        })
    }

    #[inline]
    fn decide(&self, id: u64, cost: u64) -> Decision {
        if !self.more.is_empty() || self.penalties.matter() {
            return self.decide_at(FIRST, id, cost, self.now());
        }
        self.first.decide(id, cost, || self.now())
    }

    /// Decides, and counts what was decided.
    #[inline(never)]
    fn decide_at(&self, number: usize, id: u64, cost: u64, now: u64) -> Decision {
        let decision = match self.blocked(id, cost, now) {
            Some(refusal) => refusal,
            None if self.more.is_empty() => self.first.decide_at(number, id, cost, now),
            None => together::decide(|index| self.share(index, number, id, now), cost),
        };
        self.count(id, &decision, now);
        decision
    }

    #[inline]
    fn look_at(&self, number: usize, id: u64, cost: u64, now: u64) -> Decision {
        if self.more.is_empty() && !self.penalties.matter() {
            return self.first.look(number, id, cost, now);
        }
        self.look_at_all(number, id, cost, now)
    }

    #[inline(never)]
    fn look_at_all(&self, number: usize, id: u64, cost: u64, now: u64) -> Decision {
        match self.blocked(id, cost, now) {
            Some(refusal) => refusal,
            None => together::look(|index| self.share(index, number, id, now), cost),
        }
    }

    fn look(&self, id: u64, cost: u64) -> Decision {
        self.look_at(FIRST, id, cost, self.now())
    }

    /// The refusal of a key that is blocked.
    fn blocked(&self, id: u64, cost: u64, now: u64) -> Option<Decision> {
        let until = self.penalties.blocked_until(id, now)?;
        Some(Decision::of_blocked(self.limit(FIRST), until - now, now, cost))
    }

    fn count(&self, id: u64, decision: &Decision, now: u64) {
        self.first.shards().count(if decision.is_allowed() { Event::Allowed } else { Event::Refused });
        if decision.is_allowed() {
            self.penalties.allowed(id, now);
        } else if !decision.is_crowded() {
            self.penalties.refused(id, now);
        }
    }

    #[inline]
    fn now(&self) -> u64 {
        self.timeline.at(self.clock.now())
    }

    fn set_count(&self) -> usize {
        self.ledgers().map(Ledger::set_count).max().unwrap_or(0)
    }

    /// Frees the entries of all keys that are idle, and tells how many they were. Takes time in proportion to the
    /// capacity, without holding up any check.
    ///
    /// No limiter needs to be swept: a new key takes the place of an idle one by itself. Sweeping keeps
    /// [`len`](Self::len) near the number of keys that matter, and makes entering a new key a little faster.
    pub fn sweep(&self) -> usize {
        self.sweep_step(self.set_count())
    }

    /// Like [`sweep`](Self::sweep), but only for the next `sets` sets of eight entries: for those who want to sweep now
    /// and then from a thread that has something else to do. Steps go round.
    pub fn sweep_step(&self, sets: usize) -> usize {
        let now = self.now();
        self.ledgers().map(|ledger| ledger.sweep(sets, now)).sum()
    }

    /// The keys held, those that are idle but not yet swept included. Exact while no other thread is in a check; costs
    /// a glance at each shard.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ledgers().map(Ledger::len).max().unwrap_or(0)
    }

    /// Whether no key is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of keys for which it was built. It holds up to half as many more, but from here on it may displace
    /// some that still owe.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The bytes that it occupies, all told: it never takes more. For each quota at most 32 for each key of the capacity
    /// (16 with [`Memory::Compact`](crate::Memory::Compact)), from a capacity of 250 keys (1,000) up and with a hasher and
    /// a clock of the usual size. A [sliding-window log](crate::Algorithm::SlidingWindowLog) takes 12 more for each unit of
    /// its limit.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let ledgers = self.ledgers().map(Ledger::memory_bytes).sum::<usize>();
        size_of::<Self>() + size_of_val(&*self.more) + ledgers + self.penalties.memory_bytes()
    }

    /// What it has done since it was built. Exact while no other thread is in a check.
    pub fn stats(&self) -> Stats {
        self.ledgers().map(|ledger| ledger.shards().stats()).fold(Stats::default(), Stats::plus)
    }

    /// The clock from which it takes the time.
    pub fn clock(&self) -> &C {
        &self.clock
    }
}

/// A key of a limiter, see [`Limiter::of`].
struct Of<'a, K: ?Sized, C, S> {
    limiter: &'a Limiter<K, C, S>,
    id: u64,
}

impl<K: ?Sized, C: Clock, S: BuildHasher> Parts for Of<'_, K, C, S> {
    fn parts(&self) -> usize {
        self.limiter.more.len() + 1
    }

    fn share(&self, part: usize) -> Option<Share<'_>> {
        self.limiter.share(part, FIRST, self.id, self.limiter.now())
    }

    fn blocked(&self, cost: u64) -> Option<Decision> {
        self.limiter.blocked(self.id, cost, self.limiter.now())
    }

    fn count(&self, decision: &Decision) {
        self.limiter.count(self.id, decision, self.limiter.now());
    }
}

impl<K: ?Sized, C: Clock, S: BuildHasher> Limit for Of<'_, K, C, S> {}

impl<K: ?Sized, C: Clock, S: BuildHasher> fmt::Debug for Limiter<K, C, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("quotas", &self.quotas())
            .field("capacity", &self.capacity)
            .field("when_full", &self.when_full)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
