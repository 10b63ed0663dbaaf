//! The clocks of a machine with an operating system.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Clock;
use crate::background::Ticker;
use crate::sync::{AtomicU64, Ordering};

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
