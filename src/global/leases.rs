//! Units that threads have taken ahead, so that not every check meets all the others at one cell.

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU64, Ordering, thread_number};

/// How many threads have a lease; any others do without.
const THREADS: usize = 64;

#[derive(Debug)]
pub(super) struct Leases {
    /// The units of a whole lease.
    units: u64,
    threads: Box<[CachePadded<Lease>]>,
}

/// What one thread has left, and how the cell stood when it took that. Written by that thread only, so nothing here has
/// to be ordered; a thread that follows it under the same number sees what it left.
#[derive(Debug, Default)]
pub(super) struct Lease {
    left: AtomicU64,
    state: AtomicU64,
    taken_at: AtomicU64,
}

impl Leases {
    pub(super) fn new(units: u64) -> Self {
        Self { units, threads: (0..THREADS).map(|_| CachePadded::default()).collect() }
    }

    /// The units of a whole lease.
    pub(super) fn units(&self) -> u64 {
        self.units
    }

    /// The lease of this thread, if it is one of those that have one.
    #[inline]
    pub(super) fn mine(&self) -> Option<&Lease> {
        self.threads.get(thread_number()).map(|lease| &**lease)
    }
}

impl Lease {
    #[inline]
    pub(super) fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn keep(&self, units: u64) {
        self.left.store(units, Ordering::Relaxed);
    }

    /// Notes how the cell stood, and when.
    pub(super) fn note(&self, state: u64, now: u64) {
        self.state.store(state, Ordering::Relaxed);
        self.taken_at.store(now, Ordering::Relaxed);
    }

    /// What was noted.
    #[inline]
    pub(super) fn noted(&self) -> (u64, u64) {
        (self.state.load(Ordering::Relaxed), self.taken_at.load(Ordering::Relaxed))
    }
}
