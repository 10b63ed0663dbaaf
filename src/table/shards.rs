//! Counters that cost a check next to nothing: each thread has a block of its own to write.

use alloc::boxed::Box;

use crossbeam_utils::CachePadded;

use crate::sync::{Counter, Ordering, thread_number};

/// What a limiter has done since it was built. See [`Limiter::stats`](crate::Limiter::stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Checks that were allowed.
    pub allowed: u64,
    /// Checks that were refused, those with an impossible cost left out.
    pub refused: u64,
    /// Keys that were entered into the table.
    pub inserted: u64,
    /// Idle entries that made room for another key. Nothing is lost by that.
    pub taken_over: u64,
    /// Entries that made room for another key although they still owed something: each such key may use up to a full
    /// burst sooner than its quota says. More than a few mean that the capacity is too small for the traffic.
    pub displaced: u64,
    /// Idle entries that were swept away.
    pub swept: u64,
}

impl Stats {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            allowed: self.allowed + other.allowed,
            refused: self.refused + other.refused,
            inserted: self.inserted + other.inserted,
            taken_over: self.taken_over + other.taken_over,
            displaced: self.displaced + other.displaced,
            swept: self.swept + other.swept,
        }
    }
}

/// What a shard counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    Allowed,
    Refused,
    Inserted,
    TakenOver,
    Displaced,
    Swept,
    /// A nonce was used.
    Nonce,
}

const EVENTS: usize = Event::Nonce as usize + 1;

/// The bits of a nonce that count; those above name the shard.
const NONCE_COUNT_BITS: u32 = 48;

/// The shard that made a nonce.
pub(super) fn shard_of(nonce: u64) -> u64 {
    nonce >> NONCE_COUNT_BITS
}

type Shard = CachePadded<[Counter; EVENTS]>;

/// The last shard is shared by all threads that have none of their own.
#[derive(Debug)]
pub(crate) struct Shards(Box<[Shard]>);

impl Shards {
    /// The most that a limiter can have: a nonce has ten bits for the shard.
    pub(crate) const MOST: usize = 1 << 10;

    /// `count` shards, at least one.
    pub(crate) fn new(count: usize) -> Self {
        let shard = || CachePadded::new(core::array::from_fn(|_| Counter::new(0)));
        Self((0..count.clamp(1, Self::MOST)).map(|_| shard()).collect())
    }

    /// The bytes that each shard takes.
    pub(crate) const BYTES: usize = size_of::<Shard>();

    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    /// Counts `count` events, and tells which shard it was and how many of them it had counted before.
    #[inline]
    fn bump(&self, event: Event, count: u64) -> (usize, u64) {
        let thread = thread_number();
        let shared = self.0.len() - 1;
        if thread < shared {
            // This thread is the only one that ever writes here, so no addition can be lost. It saves the locked
            // instruction, which is as dear as the compare-and-swap of the check itself.
            let counter = &self.0[thread][event as usize];
            let before = counter.load(Ordering::Relaxed);
            counter.store(before + count, Ordering::Relaxed);
            return (thread, before);
        }
        (shared, self.0[shared][event as usize].fetch_add(count, Ordering::Relaxed))
    }

    /// Where each shard lies, and its size.
    #[cfg(all(test, not(loom)))]
    pub(super) fn addresses(&self) -> impl Iterator<Item = (usize, usize)> {
        self.0.iter().map(|shard| (core::ptr::from_ref(shard) as usize, size_of::<Shard>()))
    }

    #[inline]
    pub(crate) fn count(&self, event: Event) {
        self.bump(event, 1);
    }

    pub(crate) fn add(&self, event: Event, count: u64) {
        self.bump(event, count);
    }

    /// A number that this table has never used before.
    pub(super) fn nonce(&self) -> u64 {
        let (shard, count) = self.bump(Event::Nonce, 1);
        ((shard as u64) << NONCE_COUNT_BITS) | (count & ((1 << NONCE_COUNT_BITS) - 1))
    }

    pub(crate) fn sum(&self, event: Event) -> u64 {
        self.0.iter().map(|shard| shard[event as usize].load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            allowed: self.sum(Event::Allowed),
            refused: self.sum(Event::Refused),
            inserted: self.sum(Event::Inserted),
            taken_over: self.sum(Event::TakenOver),
            displaced: self.sum(Event::Displaced),
            swept: self.sum(Event::Swept),
        }
    }
}
