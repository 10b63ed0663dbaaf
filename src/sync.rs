//! Every atomic of the crate comes through here: the language's, or loom's under `--cfg loom`, so that the code that is model
//! checked is the code that ships.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

/// Counts events. The language's under loom too: no decision reads a counter and none orders anything, so to interleave them
/// would only multiply the models.
pub(crate) type Counter = core::sync::atomic::AtomicU64;

/// The number of a thread that has none of its own.
pub(crate) const NO_NUMBER: usize = usize::MAX;

/// A small number that no other thread has while this one lives, or [`NO_NUMBER`].
#[inline]
pub(crate) fn thread_number() -> usize {
    #[cfg(all(feature = "std", not(loom)))]
    return thread_numbers::mine();
    // Under loom every thread is one of the crowd, which exercises the shared counters. Without std a thread has nowhere
    // to keep a number.
    #[cfg(not(all(feature = "std", not(loom))))]
    return NO_NUMBER;
}

/// Numbers are handed out from zero upwards, and again after their threads have ended.
#[cfg(all(feature = "std", not(loom)))]
mod thread_numbers {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::NO_NUMBER;

    /// A bit for each number that is taken. Threads beyond the last go without.
    static TAKEN: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

    const UNKNOWN: usize = usize::MAX - 1;

    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(UNKNOWN) };
        static GUARD: Guard = const { Guard };
    }

    /// Gives the thread's number back when the thread ends.
    struct Guard;

    impl Drop for Guard {
        fn drop(&mut self) {
            // Destructors that run after this one may still check.
            let number = NUMBER.replace(NO_NUMBER);
            if let Some(word) = TAKEN.get(number / 64) {
                // Release: pairs with the Acquire of `take`; the next thread goes on where this one stopped counting.
                word.fetch_and(!(1 << (number % 64)), Ordering::Release);
            }
        }
    }

    #[inline]
    pub(super) fn mine() -> usize {
        match NUMBER.get() {
            UNKNOWN => first_use(),
            known => known,
        }
    }

    #[cold]
    fn first_use() -> usize {
        // Without a guard that lives, nobody would give the number back.
        let number = GUARD.try_with(|_| take()).unwrap_or(NO_NUMBER);
        NUMBER.set(number);
        number
    }

    fn take() -> usize {
        for (index, word) in TAKEN.iter().enumerate() {
            let mut taken = word.load(Ordering::Relaxed);
            while taken != u64::MAX {
                let bit = taken.trailing_ones();
                // Acquire: pairs with the Release of the guard.
                let before = word.fetch_or(1 << bit, Ordering::Acquire);
                if before & (1 << bit) == 0 {
                    return index * 64 + bit as usize;
                }
                taken = before;
            }
        }
        NO_NUMBER
    }
}
