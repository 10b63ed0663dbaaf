//! A background thread that does something now and then, and ends when its handle is dropped.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::sync::{AtomicBool, Ordering};

/// The shortest pause between two rounds: a thread that never pauses would take a core for itself.
const SHORTEST: Duration = Duration::from_micros(1);

/// Stops and joins its thread on drop.
#[derive(Debug)]
pub(crate) struct Ticker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    /// Runs `round` every `interval` until it answers `false` or the handle is dropped.
    pub(crate) fn spawn(
        name: &str,
        interval: Duration,
        mut round: impl FnMut() -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let pause = interval.max(SHORTEST);
        let body = move || {
            // Relaxed: the flag guards no data, and unpark wakes a sleeper at once.
            while !stopped.load(Ordering::Relaxed) && round() {
                thread::park_timeout(pause);
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(body)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return };
        thread.thread().unpark();
        // A round may drop the last owner of its own handle; a thread that joined itself would wait for ever.
        if thread.thread().id() != thread::current().id() {
            // An error is a panic of the round, which has already been reported on stderr.
            drop(thread.join());
        }
    }
}
