//! The background thread that sweeps a limiter.

use std::hash::BuildHasher;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Limiter;
use crate::background::Ticker;
use crate::clock::Clock;

/// The sets that a sweeper visits before it looks whether the limiter is still in use: some 10 µs of work.
const STEP: usize = 1_024;

/// Sweeps a limiter now and then on a thread of its own, until it is dropped or the limiter is.
///
/// It does not keep the limiter alive. Dropping it stops the thread and waits for its end.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use tollgate::{Limiter, Quota, Sweeper};
///
/// let limiter = Arc::new(Limiter::<String>::builder(Quota::per_second(10)).build()?);
/// let sweeper = Sweeper::spawn(&limiter, Duration::from_secs(10))?;
/// # drop(sweeper);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a sweeper stops when it is dropped"]
pub struct Sweeper {
    _ticker: Ticker,
}

impl Sweeper {
    /// Sweeps the whole of `limiter` once every `interval`.
    ///
    /// # Errors
    ///
    /// The operating system's, if it cannot start a thread.
    pub fn spawn<K, C, S>(limiter: &Arc<Limiter<K, C, S>>, interval: Duration) -> io::Result<Self>
    where
        K: ?Sized + 'static,
        C: Clock + 'static,
        S: BuildHasher + Send + Sync + 'static,
    {
        let limiter = Arc::downgrade(limiter);
        let ticker = Ticker::spawn("tollgate-sweeper", interval, move || sweep_all(&limiter).is_some())?;
        Ok(Self { _ticker: ticker })
    }
}

/// `None` once the limiter is gone.
fn sweep_all<K: ?Sized, C: Clock, S: BuildHasher>(limiter: &Weak<Limiter<K, C, S>>) -> Option<()> {
    let sets = limiter.upgrade()?.set_count();
    for _ in 0..sets.div_ceil(STEP) {
        limiter.upgrade()?.sweep_step(STEP);
    }
    Some(())
}
