//! [`Limiter`]: one quota for each of very many keys. It turns a key into a hash, reads the clock, and asks the table.

mod builder;
mod sweeper;

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::marker::PhantomData;

use ahash::RandomState;

use crate::cell::{Cell, NEW, Policy, ask};
use crate::clock::{Clock, PreciseClock};
use crate::decision::{Decision, Verdict};
use crate::error::CostError;
use crate::quota::Quota;
use crate::table::{Event, Outcome, Rule, Stats, Table};
use crate::timeline::Timeline;

pub use builder::{Builder, WhenFull};
pub use sweeper::Sweeper;

/// One quota for each of very many keys, in memory that is fixed when it is built.
///
/// A check is lock-free, allocates nothing and takes constant time: it looks at one or two pairs of cache lines. Share
/// a limiter between threads by reference or in an [`Arc`](std::sync::Arc).
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
    table: Table,
    policy: Policy,
    timeline: Timeline,
    quota: Quota,
    capacity: usize,
    when_full: WhenFull,
    clock: C,
    hasher: S,
    keys: PhantomData<fn(&K)>,
}

/// What the table asks, put to an algorithm.
#[derive(Clone, Copy)]
struct Ask<'a, A> {
    cell: &'a A,
    now: u64,
    cost: u64,
}

impl<A: Cell + Copy> Rule for Ask<'_, A> {
    #[inline]
    fn charge(&self, state: u64) -> Option<u64> {
        self.cell.charge(state, self.now, self.cost)
    }

    fn refund(&self, state: u64) -> u64 {
        self.cell.refund(state, self.cost)
    }

    fn is_idle(&self, state: u64) -> bool {
        self.cell.is_idle(state, self.now)
    }

    fn debt(&self, state: u64) -> u64 {
        self.cell.debt(state, self.now)
    }
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

    /// Takes `cost` units from the budget of `key`, all or none. A cost of 0 is allowed, takes nothing and leaves no
    /// trace.
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
        let limit = self.policy.limit();
        if cost > limit {
            return Err(CostError { cost, limit });
        }
        let id = self.hasher.hash_one(key);
        Ok(if cost == 0 { self.look(id, 0) } else { self.decide(id, cost) })
    }

    /// What a check of `key` would say now, without taking anything or changing the limiter in any way.
    ///
    /// All numbers of the decision are those from before such a check: [`remaining`](Decision::remaining) is what is
    /// left now.
    pub fn peek<Q>(&self, key: &Q) -> Decision
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        self.look(self.hasher.hash_one(key), 1)
    }

    #[inline]
    fn decide(&self, id: u64, cost: u64) -> Decision {
        let approached = self.table.approach(id);
        let now = self.now();
        let displace = self.when_full == WhenFull::DisplaceLeast;
        // One copy of the table's code for each algorithm, so that the algorithm is chosen once a check.
        let outcome = ask!(&self.policy, cell => self.table.charge(approached, id, Ask { cell, now, cost }, displace));
        let (state, verdict) = match outcome {
            Outcome::Charged(state) => (state, Verdict::Allowed),
            Outcome::Refused(state) => (state, Verdict::Refused),
            Outcome::Crowded(_) if self.when_full == WhenFull::AdmitUntracked => {
                (self.policy.charge(NEW, now, cost).unwrap_or(NEW), Verdict::Allowed)
            }
            Outcome::Crowded(state) => (state, Verdict::Crowded),
        };
        self.table.shards().count(if verdict == Verdict::Allowed { Event::Allowed } else { Event::Refused });
        Decision::new(&self.policy, state, now, cost, verdict)
    }

    fn look(&self, id: u64, cost: u64) -> Decision {
        let now = self.now();
        let state = self.table.peek(id);
        let fits = cost == 0 || self.policy.charge(state, now, cost).is_some();
        let verdict = if fits { Verdict::Allowed } else { Verdict::Refused };
        Decision::new(&self.policy, state, now, cost, verdict)
    }

    #[inline]
    fn now(&self) -> u64 {
        self.timeline.at(self.clock.now())
    }

    /// Frees the entries of all keys that are idle, and tells how many they were. Takes time in proportion to the
    /// capacity, without holding up any check.
    ///
    /// No limiter needs to be swept: a new key takes the place of an idle one by itself. Sweeping keeps
    /// [`len`](Self::len) near the number of keys that matter, and makes entering a new key a little faster.
    pub fn sweep(&self) -> usize {
        self.sweep_step(self.table.set_count())
    }

    /// Like [`sweep`](Self::sweep), but only for the next `sets` sets of eight entries: for those who want to sweep now
    /// and then from a thread that has something else to do. Steps go round.
    pub fn sweep_step(&self, sets: usize) -> usize {
        let now = self.now();
        ask!(&self.policy, cell => self.table.sweep(sets, Ask { cell, now, cost: 0 }))
    }

    /// The keys held, those that are idle but not yet swept included. Exact while no other thread is in a check; costs
    /// a glance at each shard.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
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

    /// The bytes that it occupies, all told: it never takes more. At most 32 for each key of the capacity, from a
    /// capacity of 100 keys up and with a hasher and a clock of the usual size.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.table.memory_bytes()
    }

    /// What it has done since it was built. Exact while no other thread is in a check.
    pub fn stats(&self) -> Stats {
        self.table.shards().stats()
    }

    /// The quota of each key.
    #[must_use]
    pub fn quota(&self) -> Quota {
        self.quota
    }

    /// The clock from which it takes the time.
    pub fn clock(&self) -> &C {
        &self.clock
    }
}

impl<K: ?Sized, C: Clock, S: BuildHasher> fmt::Debug for Limiter<K, C, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("quota", &format_args!("{}", self.quota))
            .field("capacity", &self.capacity)
            .field("when_full", &self.when_full)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
