//! How a limiter is put together.

use std::hash::BuildHasher;
use std::marker::PhantomData;
use std::time::Duration;

use ahash::RandomState;

use super::{Limiter, Slots};
use crate::cell::Policy;
use crate::clock::{Clock, PreciseClock};
use crate::error::BuildError;
use crate::quota::Quota;
use crate::table::{CompactSet, Set, Shards, Table};
use crate::timeline::{DEFAULT_HORIZON, Timeline};

/// What happens to a new key when every slot that it may use is taken by a key that still owes something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WhenFull {
    /// It takes the place of the key that loses least by being forgotten. A flood of fresh keys, each with one request
    /// to its name, then displaces its own and hardly any that has used up a burst: only where all slots that a key may
    /// use are held by such keys does the first of the flood displace one of them, and the next displaces the first.
    /// What is displaced is counted in [`Stats::displaced`](crate::Stats::displaced).
    #[default]
    DisplaceLeast,
    /// It is refused until an entry in its way is idle. No key that is held ever gets more than its quota.
    Refuse,
    /// It is admitted without being counted. No key that is held ever gets more than its quota, but new keys do.
    AdmitUntracked,
}

/// How a limiter keeps its keys: what a key costs, and how surely two keys are two.
///
/// | | bytes a key | two keys share a budget | algorithms | refills |
/// |---|---|---|---|---|
/// | `Exact` | 24 | if all 64 bits of their hashes agree | all | exact, or a millionth of the wait or two ns late |
/// | `Compact` | 12 | at most one in a million, for each new key of a full table | token bucket | a tick late |
///
/// Take `Compact` where memory counts and an unlucky client in a million may share its budget with a stranger; where a
/// key is worth money, take `Exact`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Memory {
    /// Two words a slot: the whole hash of a key, and its state.
    #[default]
    Exact,
    /// One word a slot: 24 bits of the hash beside the two sets of eight in which a key may be, and a state of 39 bits,
    /// which holds a token bucket. With [`WhenFull::DisplaceLeast`] and a table that is full beyond its capacity, a new
    /// key meets at most 16 others: 16 in 2^24 share.
    ///
    /// Time is counted in ticks, a whole number of them for each unit: 2^39 cover the [horizon](Builder::horizon) and
    /// the time of a burst. With the nine years of the default a tick is half a millisecond and a quota may give up to
    /// 1,700 units a second; with a day a tick is 0.2 µs. A refill may come a tick late, and none comes early; of a burst
    /// that comes unit by unit within one tick the last unit may have to wait for the next.
    Compact,
}

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
    quota: Quota,
    capacity: usize,
    memory: Memory,
    horizon: Duration,
    shards: Option<usize>,
    when_full: WhenFull,
    clock: C,
    hasher: S,
    keys: PhantomData<fn(&K)>,
}

impl<K: ?Sized> Builder<K> {
    pub(super) fn new(quota: Quota) -> Self {
        Self {
            quota,
            capacity: 100_000,
            memory: Memory::default(),
            horizon: DEFAULT_HORIZON,
            shards: None,
            when_full: WhenFull::default(),
            clock: PreciseClock::new(),
            hasher: RandomState::new(),
            keys: PhantomData,
        }
    }
}

impl<K: ?Sized, C, S> Builder<K, C, S> {
    /// For how many keys at a time there is to be room: those that have not yet got back all that they used. The
    /// memory, some 24 bytes a key, is taken at once and never grows. 100,000 unless set.
    pub fn capacity(self, keys: usize) -> Self {
        Self { capacity: keys, ..self }
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
    pub fn memory(self, memory: Memory) -> Self {
        Self { memory, ..self }
    }

    /// The clock that says what time it is; [`PreciseClock`] unless set.
    pub fn clock<D: Clock>(self, clock: D) -> Builder<K, D, S> {
        let Self { quota, capacity, memory, horizon, shards, when_full, hasher, keys, .. } = self;
        Builder { quota, capacity, memory, horizon, shards, when_full, clock, hasher, keys }
    }

    /// What turns keys into 64-bit hashes; `ahash` with random seeds unless set.
    ///
    /// The hash stands for the key, so all 64 bits must be good, and the seed must be secret where clients choose
    /// their keys.
    pub fn hasher<T: BuildHasher>(self, hasher: T) -> Builder<K, C, T> {
        let Self { quota, capacity, memory, horizon, shards, when_full, clock, keys, .. } = self;
        Builder { quota, capacity, memory, horizon, shards, when_full, clock, hasher, keys }
    }

    /// How far time may run from the moment at which the limiter is built; nine years unless set. Beyond it the
    /// limiter's time stands still.
    ///
    /// The shorter it is, the finer the limiter's ticks can be: a token bucket is exact in rational arithmetic where
    /// the limit, in lowest terms of the period in nanoseconds, is at most 2^62 ns divided by the horizon and the time
    /// of a burst (with the nine years and a burst of a few hours: up to 15). Elsewhere a refill may come late, by a
    /// millionth of the wait or by two nanoseconds, and never early. [`Memory::Compact`] has coarser ticks.
    pub fn horizon(self, horizon: Duration) -> Self {
        Self { horizon, ..self }
    }

    /// How many shards the counters have, at least 1 and at most 1,024: one for each of the first threads, the last of
    /// them for all the others. Up to 64 unless set; each takes 128 bytes.
    pub fn shards(self, shards: usize) -> Self {
        Self { shards: Some(shards), ..self }
    }

    /// What happens to a new key when all its slots are taken.
    pub fn when_full(self, when_full: WhenFull) -> Self {
        Self { when_full, ..self }
    }

    /// The shards, where nobody chose: as many as fit into what the slots leave of 32 bytes a key (of 16 in compact
    /// memory), the limiter's own fields and a last set that is not full taken off.
    fn shard_count(&self) -> usize {
        let spare_per_key = match self.memory {
            Memory::Exact => 8,
            Memory::Compact => 4,
        };
        let spare = self.capacity.saturating_mul(spare_per_key).saturating_sub(768);
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
        if self.capacity == 0 {
            return Err(BuildError::ZeroCapacity);
        }
        let timeline = Timeline::new(self.clock.now(), self.horizon);
        let shards = self.shard_count();
        let (policy, slots) = match self.memory {
            Memory::Exact => (Policy::new(&self.quota, &timeline)?, Slots::Exact(Table::new(self.capacity, shards)?)),
            Memory::Compact => (
                Policy::small(&self.quota, &timeline, CompactSet::STATE_BITS)?,
                Slots::Compact(Table::new(self.capacity, shards)?),
            ),
        };
        Ok(Limiter {
            slots,
            policy,
            timeline,
            quota: self.quota,
            capacity: self.capacity,
            when_full: self.when_full,
            clock: self.clock,
            hasher: self.hasher,
            keys: PhantomData,
        })
    }
}
