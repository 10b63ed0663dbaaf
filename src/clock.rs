//! Where a limiter takes the time from.

#[cfg(feature = "std")]
mod system;

use alloc::sync::Arc;
use core::task::Waker;
use core::time::Duration;

use crate::sync::{AtomicU64, Ordering};

#[cfg(feature = "std")]
pub use system::{CoarseClock, PreciseClock};

/// A source of time, read once a check.
///
/// A clock should not go back. If it does nothing breaks: no limiter panics, and no key is kept out for longer than the
/// step back. No state is refilled by it; only entries that were idle before the step, and were swept or taken over
/// then, are not remembered after it.
///
/// ```
/// use tollgate::Clock;
///
/// /// Counts from the Unix epoch, so that fixed windows begin on the full minute.
/// struct WallClock;
///
/// impl Clock for WallClock {
///     fn now(&self) -> u64 {
///         let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
///         u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
///     }
/// }
/// # assert!(WallClock.now() > 0);
/// ```
pub trait Clock: Send + Sync {
    /// Nanoseconds since an origin of the clock's choosing, which stays the same for as long as the clock lives.
    fn now(&self) -> u64;

    /// For clocks that do not run by themselves: sees to it that `waker` is woken when the clock shows `at`, and says so. A
    /// clock that answers `false`, as this does unless it is implemented, runs as fast as every other, and those who wait
    /// use a timer.
    fn wake_at(&self, at: u64, waker: &Waker) -> bool {
        let _ = (at, waker);
        false
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    #[inline]
    fn now(&self) -> u64 {
        (**self).now()
    }

    fn wake_at(&self, at: u64, waker: &Waker) -> bool {
        (**self).wake_at(at, waker)
    }
}

/// A clock that stands still until it is told to move: for tests, simulations and replays. Clones show the same time, and
/// moving any of them wakes those who wait for their turn.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, ManualClock, Quota};
///
/// let clock = ManualClock::new();
/// let limiter = Limiter::<str>::builder(Quota::per_second(1)).clock(clock.clone()).build()?;
/// assert!(limiter.check("alice").is_allowed());
/// assert!(!limiter.check("alice").is_allowed());
/// clock.advance(Duration::from_secs(1));
/// assert!(limiter.check("alice").is_allowed());
/// # Ok::<(), tollgate::BuildError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    now: Arc<AtomicU64>,
    #[cfg(feature = "std")]
    sleepers: Arc<std::sync::Mutex<Sleepers>>,
}

/// Those who are to be woken, and when.
#[cfg(feature = "std")]
type Sleepers = alloc::vec::Vec<(u64, Waker)>;

impl ManualClock {
    /// A clock that stands at zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A clock that stands at `nanos` nanoseconds after its origin.
    #[must_use]
    pub fn at(nanos: u64) -> Self {
        let clock = Self::default();
        clock.set(nanos);
        clock
    }

    /// Moves to `nanos` nanoseconds after the origin, forward or back.
    pub fn set(&self, nanos: u64) {
        self.now.store(nanos, Ordering::Relaxed);
        self.wake();
    }

    /// Moves forward by `step`, at most to the end of a `u64`.
    pub fn advance(&self, step: Duration) {
        let step = u64::try_from(step.as_nanos()).unwrap_or(u64::MAX);
        let mut now = self.now.load(Ordering::Relaxed);
        while let Err(changed) =
            self.now.compare_exchange_weak(now, now.saturating_add(step), Ordering::Relaxed, Ordering::Relaxed)
        {
            now = changed;
        }
        self.wake();
    }

    /// Wakes those whose time has come.
    #[cfg(feature = "std")]
    fn wake(&self) {
        let mut sleepers = self.sleepers();
        let now = self.now();
        let due = sleepers.extract_if(.., |(at, _)| *at <= now).collect::<Sleepers>();
        // They may look at the clock again at once.
        drop(sleepers);
        for (_, waker) in due {
            waker.wake();
        }
    }

    #[cfg(not(feature = "std"))]
    #[expect(clippy::unused_self, reason = "nobody can wait")]
    fn wake(&self) {}

    #[cfg(feature = "std")]
    fn sleepers(&self) -> std::sync::MutexGuard<'_, Sleepers> {
        self.sleepers.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Clock for ManualClock {
    #[inline]
    fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    #[cfg(feature = "std")]
    fn wake_at(&self, at: u64, waker: &Waker) -> bool {
        let mut sleepers = self.sleepers();
        // Who looks several times sleeps once.
        if !sleepers.iter().any(|(other, sleeper)| *other == at && sleeper.will_wake(waker)) {
            sleepers.push((at, waker.clone()));
        }
        drop(sleepers);
        // It may have been moved since it was looked at.
        self.wake();
        true
    }
}
