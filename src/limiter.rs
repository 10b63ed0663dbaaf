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
use crate::table::{CompactSet, Event, ExactSet, Found, Outcome, Rule, Set, Shards, Stats, Table};
use crate::timeline::Timeline;

pub use builder::{Builder, Memory, WhenFull};
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
    slots: Slots,
    policy: Policy,
    timeline: Timeline,
    quota: Quota,
    capacity: usize,
    when_full: WhenFull,
    clock: C,
    hasher: S,
    keys: PhantomData<fn(&K)>,
}

/// The table, in either memory.
#[derive(Debug)]
enum Slots {
    Exact(Table<ExactSet>),
    Compact(Table<CompactSet>),
}

/// Does the same with the table, whichever it is.
macro_rules! with {
    ($slots:expr, $table:ident => $what:expr) => {
        match $slots {
            Slots::Exact($table) => $what,
            Slots::Compact($table) => $what,
        }
    };
}

/// How many keys of a batch are fetched ahead of the first decision.
const BATCH: usize = 32;

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

    /// Takes one unit from the budget of each of `keys`, in their order, and puts what became of it into the same place
    /// of `decisions`. It decides what single checks at one moment would, keys that come more than once included, but
    /// reads the clock once and waits for memory far less: from a few keys on it is several times as fast.
    ///
    /// `keys` is a slice of keys, or anything else that yields references to them. Returns how many keys were checked:
    /// all of them, or as many as there is room for in `decisions`. What lies beyond, in either, is not touched.
    ///
    /// ```
    /// use tollgate::{Decision, Limiter, Quota};
    ///
    /// let limiter = Limiter::<str>::builder(Quota::per_minute(100).with_burst(2)).build()?;
    /// let mut decisions = [Decision::default(); 4];
    /// assert_eq!(limiter.check_many(["alice", "bob", "alice", "alice"], &mut decisions), 4);
    /// assert_eq!(decisions.map(|decision| decision.is_allowed()), [true, true, true, false]);
    /// # Ok::<(), tollgate::BuildError>(())
    /// ```
    pub fn check_many<'a, Q>(&self, keys: impl IntoIterator<Item = &'a Q>, decisions: &mut [Decision]) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized + 'a,
    {
        let ids = keys.into_iter().map(|key| self.hasher.hash_one(key));
        with!(&self.slots, table => self.decide_many(table, ids, decisions))
    }

    #[inline]
    fn decide(&self, id: u64, cost: u64) -> Decision {
        with!(&self.slots, table => {
            let approached = table.approach(id);
            let decision = self.decide_at(table, approached, id, self.now(), cost);
            table.shards().count(if decision.is_allowed() { Event::Allowed } else { Event::Refused });
            decision
        })
    }

    /// All but the counting.
    #[inline(always)]
    fn decide_at<T: Set>(
        &self,
        table: &Table<T>,
        approached: Option<Found<'_, T>>,
        id: u64,
        now: u64,
        cost: u64,
    ) -> Decision {
        let displace = self.when_full == WhenFull::DisplaceLeast;
        // One copy of the table's code for each algorithm, so that the algorithm is chosen once a check.
        let outcome = ask!(&self.policy, cell => table.charge(approached, id, Ask { cell, now, cost }, displace));
        let (state, verdict) = match outcome {
            Outcome::Charged(state) => (state, Verdict::Allowed),
            Outcome::Refused(state) => (state, Verdict::Refused),
            Outcome::Crowded(_) if self.when_full == WhenFull::AdmitUntracked => {
                (self.policy.charge(NEW, now, cost).unwrap_or(NEW), Verdict::Allowed)
            }
            Outcome::Crowded(state) => (state, Verdict::Crowded),
        };
        Decision::new(&self.policy, state, now, cost, verdict)
    }

    /// Decides [`BATCH`] by [`BATCH`], so that the memory that a batch needs is asked for before any of it is waited for.
    fn decide_many<T: Set>(
        &self,
        table: &Table<T>,
        mut ids: impl Iterator<Item = u64>,
        decisions: &mut [Decision],
    ) -> usize {
        let mut batch = [0; BATCH];
        let mut now = None;
        let (mut checked, mut allowed) = (0, 0);
        for decisions in decisions.chunks_mut(BATCH) {
            let mut fetched = 0;
            for (place, id) in batch.iter_mut().zip(ids.by_ref().take(decisions.len())) {
                table.prefetch(id);
                *place = id;
                fetched += 1;
            }
            if fetched == 0 {
                break;
            }
            let now = *now.get_or_insert_with(|| self.now());
            for (decision, &id) in decisions.iter_mut().zip(&batch[..fetched]) {
                *decision = self.decide_at(table, None, id, now, 1);
                allowed += u64::from(decision.is_allowed());
            }
            checked += fetched;
        }
        table.shards().add(Event::Allowed, allowed);
        table.shards().add(Event::Refused, checked as u64 - allowed);
        checked
    }

    fn look(&self, id: u64, cost: u64) -> Decision {
        let now = self.now();
        let state = with!(&self.slots, table => table.peek(id));
        let fits = cost == 0 || self.policy.charge(state, now, cost).is_some();
        let verdict = if fits { Verdict::Allowed } else { Verdict::Refused };
        Decision::new(&self.policy, state, now, cost, verdict)
    }

    fn set_count(&self) -> usize {
        with!(&self.slots, table => table.set_count())
    }

    fn shards(&self) -> &Shards {
        with!(&self.slots, table => table.shards())
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
        self.sweep_step(self.set_count())
    }

    /// Like [`sweep`](Self::sweep), but only for the next `sets` sets of eight entries: for those who want to sweep now
    /// and then from a thread that has something else to do. Steps go round.
    pub fn sweep_step(&self, sets: usize) -> usize {
        let now = self.now();
        with!(&self.slots, table => ask!(&self.policy, cell => table.sweep(sets, Ask { cell, now, cost: 0 })))
    }

    /// The keys held, those that are idle but not yet swept included. Exact while no other thread is in a check; costs
    /// a glance at each shard.
    #[must_use]
    pub fn len(&self) -> usize {
        with!(&self.slots, table => table.len())
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

    /// The bytes that it occupies, all told: it never takes more. At most 32 for each key of the capacity (16 with
    /// [`Memory::Compact`]), from a capacity of 100 keys (1,000) up and with a hasher and a clock of the usual size.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + with!(&self.slots, table => table.memory_bytes())
    }

    /// What it has done since it was built. Exact while no other thread is in a check.
    pub fn stats(&self) -> Stats {
        self.shards().stats()
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
