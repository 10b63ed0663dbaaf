//! Units that threads have taken ahead, so that not every check meets all the others at one cell.

use alloc::boxed::Box;
use core::time::Duration;

use crossbeam_utils::CachePadded;

use crate::decision::{Decision, Numbers, Verdict};
use crate::sync::{AtomicU64, Ordering, thread_number};

/// How many threads have a lease; any others do without.
const THREADS: usize = 64;

#[derive(Debug)]
pub(super) struct Leases {
    /// The units of a whole lease.
    units: u64,
    threads: Box<[CachePadded<Lease>]>,
}

/// What one thread has left, and what was said when it took that. Written by that thread only, so nothing here has to be
/// ordered; a thread that follows it under the same number sees what it left.
#[derive(Debug, Default)]
pub(super) struct Lease {
    left: AtomicU64,
    remaining: AtomicU64,
    more_after: AtomicU64,
    reset_after: AtomicU64,
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

    /// Notes what was said when the lease was taken.
    pub(super) fn note(&self, taken: &Decision) {
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.remaining.store(taken.remaining(), Ordering::Relaxed);
        self.more_after.store(nanos(taken.more_after()), Ordering::Relaxed);
        self.reset_after.store(nanos(taken.reset_after()), Ordering::Relaxed);
    }

    /// What is said of units that were taken ahead.
    #[inline]
    pub(super) fn decision(&self, limit: u64, cost: u64) -> Decision {
        let numbers = Numbers {
            limit,
            remaining: self.remaining.load(Ordering::Relaxed),
            retry_after: 0,
            more_after: self.more_after.load(Ordering::Relaxed),
            reset_after: self.reset_after.load(Ordering::Relaxed),
        };
        Decision::of_numbers(numbers, 0, 0, cost, Verdict::Allowed)
    }
}
