//! Where a limiter takes the time from.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::background::Ticker;
use crate::sync::{AtomicU64, Ordering};

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

/// The processor's time-stamp counter by way of [`quanta`], exact to a few nanoseconds; the default.
///
/// Its origin is the moment at which it was made. Where the processor has no steady counter it asks the operating
/// system's monotonic clock instead. The first one of a process takes some milliseconds to calibrate the counter.
#[derive(Clone)]
pub struct PreciseClock {
    counter: quanta::Clock,
    origin: u64,
}

impl PreciseClock {
    /// A clock that begins at zero.
    #[must_use]
    pub fn new() -> Self {
        let counter = quanta::Clock::new();
        let origin = counter.raw();
        Self { counter, origin }
    }
}

impl Default for PreciseClock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for PreciseClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreciseClock").field("now", &self.now()).finish()
    }
}

impl Clock for PreciseClock {
    #[inline]
    fn now(&self) -> u64 {
        self.counter.delta_as_nanos(self.origin, self.counter.raw())
    }
}

/// A precise clock that a background thread reads now and then: a check only loads one word.
///
/// Use it where being late by the interval does not matter: a refill is then seen up to one interval late (longer, if
/// the machine does not let the thread run), never early. Clones share the thread; it ends with the last of them.
#[derive(Clone, Debug)]
pub struct CoarseClock {
    now: Arc<AtomicU64>,
    _ticker: Arc<Ticker>,
}

impl CoarseClock {
    /// A clock that moves on once every `interval`; a millisecond is a good choice. Intervals below 1 µs count as 1 µs.
    ///
    /// # Errors
    ///
    /// The operating system's, if it cannot start a thread.
    pub fn start(interval: Duration) -> std::io::Result<Self> {
        let source = PreciseClock::new();
        let now = Arc::new(AtomicU64::new(source.now()));
        let shared = Arc::clone(&now);
        let ticker = Ticker::spawn("tollgate-clock", interval, move || {
            shared.store(source.now(), Ordering::Relaxed);
            true
        })?;
        Ok(Self { now, _ticker: Arc::new(ticker) })
    }
}

impl Clock for CoarseClock {
    #[inline]
    fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
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
