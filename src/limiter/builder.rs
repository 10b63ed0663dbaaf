//! How a limiter is put together.

use std::hash::BuildHasher;
use std::marker::PhantomData;
use std::time::Duration;

use ahash::RandomState;

use super::Limiter;
use super::penalties::{Penalties, Penalty};
use super::waiting;
use crate::clock::{Clock, PreciseClock};
use crate::error::BuildError;
use crate::ledger::{Ledger, Memory, Room, WhenFull};
use crate::quota::Quota;
use crate::table::Shards;
use crate::timeline::{DEFAULT_HORIZON, Timeline};

/// There is room for one blocked key in so many.
const BLOCKED_SHARE: usize = 64;

/// The most shards that a limiter has unless it is told otherwise.
const DEFAULT_SHARDS: usize = 64;

/// Puts a [`Limiter`] together: begin with [`Limiter::builder`], end with [`build`](Self::build).
///
/// ```
/// use tollgate::{Limiter, Quota, WhenFull};
///
/// let limiter = Limiter::<std::net::IpAddr>::builder(Quota::per_second(50))
///     .capacity(1_000_000)
///     .when_full(WhenFull::Refuse)
///     .build()?;
/// assert!(limiter.memory_bytes() <= 32 * 1_000_000);
/// # Ok::<(), tollgate::BuildError>(())
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until it builds"]
pub struct Builder<K: ?Sized, C = PreciseClock, S = RandomState> {
    plan: Plan,
    clock: C,
    hasher: S,
    keys: PhantomData<fn(&K)>,
}

/// All that was chosen but for the types.
#[derive(Debug)]
struct Plan {
    quota: Quota,
    more: Vec<Quota>,
    others: u8,
    capacity: usize,
    memory: Memory,
    horizon: Option<Duration>,
    shards: Option<usize>,
    when_full: WhenFull,
    penalty: Option<Penalty>,
    waiting: (usize, usize),
}

impl<K: ?Sized> Builder<K> {
    pub(super) fn new(quota: Quota) -> Self {
        let plan = Plan {
            quota,
            more: Vec::new(),
            others: 0,
            capacity: 100_000,
            memory: Memory::default(),
            horizon: None,
            shards: None,
            when_full: WhenFull::default(),
            penalty: None,
            waiting: (1_024, 65_536),
        };
        Self { plan, clock: PreciseClock::new(), hasher: RandomState::new(), keys: PhantomData }
    }
}

impl<K: ?Sized, C, S> Builder<K, C, S> {
    /// One quota more for each key: a request is admitted by all of its quotas, or charged to none of them. Memory is taken
    /// for each.
    ///
    /// ```
    /// use tollgate::{Limiter, Quota};
    ///
    /// let limiter = Limiter::<str>::builder(Quota::per_second(10))
    ///     .and(Quota::per_hour(1_000))
    ///     .and(Quota::per_day(3))
    ///     .build()?;
    /// let decision = limiter.check("alice");
    /// assert_eq!((decision.remaining(), limiter.quotas()[decision.quota_index()]), (2, Quota::per_day(3)));
    /// # Ok::<(), tollgate::BuildError>(())
    /// ```
    pub fn and(mut self, quota: Quota) -> Self {
        self.plan.more.push(quota);
        self
    }

    /// How many other quotas there may be for some of the keys; see [`Limiter::check_with`]. None unless set.
    ///
    /// The number of the quota takes up to 8 bits of a state (4 for up to 15 of them), so ticks are coarser (see
    /// [`horizon`](Self::horizon)) and the largest limits of windows smaller; and a check takes some 20 nanoseconds more.
    pub fn other_quotas(mut self, most: u8) -> Self {
        self.plan.others = most;
        self
    }

    /// For how many keys at a time there is to be room: those that have not yet got back all that they used. The
    /// memory, some 24 bytes a key, is taken at once and never grows. 100,000 unless set.
    pub fn capacity(mut self, keys: usize) -> Self {
        self.plan.capacity = keys;
        self
    }

    /// How keys are kept; [`Memory::Exact`] unless set.
    ///
    /// ```
    /// use tollgate::{Limiter, Memory, Quota};
    ///
    /// let limiter = Limiter::<u64>::builder(Quota::per_minute(100))
    ///     .capacity(1_000_000)
    ///     .memory(Memory::Compact)
    ///     .build()?;
    /// assert!(limiter.memory_bytes() <= 16 * 1_000_000);
    /// # Ok::<(), tollgate::BuildError>(())
    /// ```
    pub fn memory(mut self, memory: Memory) -> Self {
        self.plan.memory = memory;
        self
    }

    /// The clock that says what time it is; [`PreciseClock`] unless set.
    pub fn clock<D: Clock>(self, clock: D) -> Builder<K, D, S> {
        let Self { plan, hasher, keys, .. } = self;
        Builder { plan, clock, hasher, keys }
    }

    /// What turns keys into 64-bit hashes; `ahash` with random seeds unless set.
    ///
    /// The hash stands for the key, so all 64 bits must be good, and the seed must be secret where clients choose
    /// their keys.
    pub fn hasher<T: BuildHasher>(self, hasher: T) -> Builder<K, C, T> {
        let Self { plan, clock, keys, .. } = self;
        Builder { plan, clock, hasher, keys }
    }

    /// How far time may run from the moment at which the limiter is built; nine years unless set, or four and a half where
    /// there are [other quotas](Self::other_quotas). Beyond it the limiter's time stands still.
    ///
    /// The shorter it is, the finer the limiter's ticks can be: a token bucket is exact in rational arithmetic where
    /// the limit, in lowest terms of the period in nanoseconds, is at most 2^62 ns divided by the horizon and the time
    /// of a burst (with the nine years and a burst of a few hours: up to 15). Elsewhere a refill may come late, by a
    /// millionth of the wait or by two nanoseconds, and never early. [`Memory::Compact`] has coarser ticks.
    pub fn horizon(mut self, horizon: Duration) -> Self {
        self.plan.horizon = Some(horizon);
        self
    }

    /// How many shards the counters have, at least 1 and at most 1,024: one for each of the first threads, the last of
    /// them for all the others. Up to 64 unless set; each takes 128 bytes.
    pub fn shards(mut self, shards: usize) -> Self {
        self.plan.shards = Some(shards);
        self
    }

    /// Shuts out keys that go on asking although they are refused; none are unless set. Looking after it costs a check
    /// some nanoseconds more.
    pub fn penalty(mut self, penalty: Penalty) -> Self {
        self.plan.penalty = Some(penalty);
        self
    }

    /// The most that may wait for their turn, for one key and in all: by [`reserve`](Limiter::reserve),
    /// [`wait`](Limiter::wait) or `until_ready`. 1,024 and 65,536 unless set. Each takes some hundred bytes, besides those of
    /// [`memory_bytes`](Limiter::memory_bytes), for as long as it waits.
    pub fn waiting(mut self, most_for_one: usize, most_in_all: usize) -> Self {
        self.plan.waiting = (most_for_one, most_in_all);
        self
    }

    /// What happens to a new key when all its slots are taken.
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.plan.when_full = when_full;
        self
    }
}

impl Plan {
    /// The shards, where nobody chose: as many as fit into what the slots, those of blocked keys included, leave of 32
    /// bytes a key (of 16 in compact memory), the limiter's own fields and last sets that are not full taken off.
    fn shard_count(&self) -> usize {
        let spare_per_key = match self.memory {
            Memory::Exact => 6,
            Memory::Compact => 2,
        };
        let spare = self.capacity.saturating_mul(spare_per_key).saturating_sub(2_048);
        self.shards.unwrap_or_else(|| (spare / Shards::BYTES).clamp(1, DEFAULT_SHARDS))
    }
}

impl<K: ?Sized, C: Clock, S: BuildHasher> Builder<K, C, S> {
    /// Takes the memory and begins.
    ///
    /// # Errors
    ///
    /// A [`BuildError`] if the quota is impossible or does not fit a cell, if the capacity is zero, or if there is not
    /// enough memory for it.
    pub fn build(self) -> Result<Limiter<K, C, S>, BuildError> {
        let Self { plan, clock, hasher, keys } = self;
        if plan.capacity == 0 {
            return Err(BuildError::ZeroCapacity);
        }
        // Numbers of quotas leave fewer bits for time.
        let usual = if plan.others == 0 { DEFAULT_HORIZON } else { DEFAULT_HORIZON / 2 };
        let timeline = Timeline::new(clock.now(), plan.horizon.unwrap_or(usual));
        let room = Room {
            capacity: plan.capacity,
            memory: plan.memory,
            shards: plan.shard_count(),
            when_full: plan.when_full,
            others: plan.others,
        };
        let ledger = |quota: &Quota| Ledger::new(quota, &timeline, Room { others: 0, ..room });
        Ok(Limiter {
            first: Ledger::new(&plan.quota, &timeline, room)?,
            more: plan.more.iter().map(ledger).collect::<Result<_, _>>()?,
            penalties: Penalties::new(plan.capacity / BLOCKED_SHARE + 1, &timeline, plan.penalty)?,
            room: waiting::Room::new(plan.waiting.0, plan.waiting.1),
            timeline,
            capacity: plan.capacity,
            when_full: plan.when_full,
            clock,
            hasher,
            keys,
        })
    }
}
