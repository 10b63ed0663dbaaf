//! Where a limiter takes the time from.

#[cfg(feature = "std")]
mod system;

use alloc::sync::Arc;
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
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    #[inline]
    fn now(&self) -> u64 {
        (**self).now()
    }
}

/// A clock that stands still until it is told to move: for tests, simulations and replays. Clones show the same time.
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
}

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
    }
}

impl Clock for ManualClock {
    #[inline]
    fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }
}
