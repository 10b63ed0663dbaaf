//! Every atomic of the crate comes through here: std's, or loom's under `--cfg loom`, so that the code that is model
//! checked is the code that ships.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

/// Counts events. Std's under loom too: no decision reads a counter and none orders anything, so to interleave them
/// would only multiply the models.
pub(crate) type Counter = std::sync::atomic::AtomicU64;

/// A small number that is this thread's alone for as long as the process lives, handed out from zero upwards.
///
/// Numbers are never reused: giving one back would need a destructor, and registering a destructor allocates.
#[cfg(not(loom))]
#[inline]
pub(crate) fn thread_number() -> usize {
    use std::cell::Cell;
    thread_local!(static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) });

    #[cold]
    fn first_use(number: &Cell<usize>) -> usize {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        number.get()
    }

    NUMBER.with(|number| match number.get() {
        usize::MAX => first_use(number),
        known => known,
    })
}

/// Under loom every thread is one of the crowd, which exercises the shared counters.
#[cfg(loom)]
pub(crate) fn thread_number() -> usize {
    usize::MAX
}
