//! A few words that are read all the time and replaced now and then: never torn, and never waited for.
//!
//! There are several versions of them. A writer fills one that is not the current one and then makes it current by one
//! compare-and-swap. A reader copies the current one and looks whether it still is; if it is not, a writer has got on.

use crossbeam_utils::Backoff;

use crate::sync::{AtomicBool, AtomicU64, Ordering, fence};

/// The current one, and two more, so that one writer may be stopped in the middle without holding up others.
const VERSIONS: u64 = 3;

#[derive(Debug)]
pub(crate) struct Published<const N: usize> {
    /// How often the words were replaced, times four, and which version they are.
    current: AtomicU64,
    versions: [Version<N>; VERSIONS as usize],
}

#[derive(Debug)]
struct Version<const N: usize> {
    words: [AtomicU64; N],
    /// Whether a writer has it.
    taken: AtomicBool,
}

impl<const N: usize> Version<N> {
    fn new(words: [u64; N]) -> Self {
        Self { words: words.map(AtomicU64::new), taken: AtomicBool::new(false) }
    }

    fn write(&self, words: [u64; N]) {
        // Release: pairs with the Acquire fence of `read_version`: a reader that sees one of these words sees that the
        // version has not been current.
        fence(Ordering::Release);
        for (place, word) in self.words.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
    }
}

impl<const N: usize> Published<N> {
    pub(crate) fn new(words: [u64; N]) -> Self {
        Self { current: AtomicU64::new(0), versions: [(); VERSIONS as usize].map(|()| Version::new(words)) }
    }

    fn version(&self, current: u64) -> &Version<N> {
        &self.versions[(current % 4) as usize]
    }

    /// The first `M` of the words.
    pub(crate) fn read<const M: usize>(&self) -> [u64; M] {
        const { assert!(M <= N) };
        loop {
            // Acquire: pairs with the Release by which a version was made current, after its words were written.
            let current = self.current.load(Ordering::Acquire);
            if let Some(words) = self.read_version(current) {
                return words;
            }
        }
    }

    /// The first words of the current version, unless another has become current.
    fn read_version<const M: usize>(&self, current: u64) -> Option<[u64; M]> {
        let version = self.version(current);
        let words = core::array::from_fn(|word| version.words[word].load(Ordering::Relaxed));
        // Acquire: pairs with the Release fence of `write`. Whoever has read a word that was written later than this
        // version sees that it is no longer current.
        fence(Ordering::Acquire);
        (self.current.load(Ordering::Relaxed) == current).then_some(words)
    }

    /// Replaces the words by what `change` makes of them. If that is an error nothing is changed. `change` is called again
    /// if another writer was faster.
    pub(crate) fn replace<E>(&self, change: impl Fn([u64; N]) -> Result<[u64; N], E>) -> Result<(), E> {
        let backoff = Backoff::new();
        loop {
            let current = self.current.load(Ordering::Acquire);
            if let Some(words) = self.read_version(current) {
                let changed = change(words)?;
                if (1..VERSIONS).any(|next| self.publish(current, (current % 4 + next) % VERSIONS, changed)) {
                    return Ok(());
                }
            }
            backoff.spin();
        }
    }

    /// Puts `words` into the version `next` and makes it current in the place of `current`.
    fn publish(&self, current: u64, next: u64, words: [u64; N]) -> bool {
        let version = self.version(next);
        // Acquire: pairs with the Release below; the last writer of this version is done with it.
        if version.taken.swap(true, Ordering::Acquire) {
            return false;
        }
        // A version that has become current meanwhile must not be touched; once it is taken it cannot become so any more.
        let published = self.current.load(Ordering::Relaxed) == current && {
            version.write(words);
            // Release: pairs with the Acquire of `read`. The count goes up, so that no version looks current by chance.
            let next = (current / 4 + 1) * 4 + next;
            self.current.compare_exchange(current, next, Ordering::Release, Ordering::Relaxed).is_ok()
        };
        // Release: pairs with the Acquire above.
        version.taken.store(false, Ordering::Release);
        published
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use super::*;

    fn is_whole([a, b]: [u64; 2]) {
        assert_eq!(a * 10, b);
    }

    fn next([a, b]: [u64; 2]) -> Result<[u64; 2], Infallible> {
        is_whole([a, b]);
        Ok([a + 1, b + 10])
    }

    fn check(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(model);
    }

    /// Loom looks for another order of two accesses only as long as nobody else has read in between, so a writer that reads
    /// before it writes would hide what a reader has read. What both do to `turn` lets loom begin in any order; being
    /// relaxed, it orders nothing.
    #[test]
    fn a_reader_sees_no_mixture() {
        check(|| {
            let shared = Arc::new((Published::new([0, 0]), AtomicU64::new(0)));
            let writer = Arc::clone(&shared);
            let thread = loom::thread::spawn(move || {
                let (published, turn) = &*writer;
                // Enough for the version that the reader has begun with to be written again.
                for _ in 0..VERSIONS {
                    turn.fetch_add(1, Ordering::Relaxed);
                    let Ok(()) = published.replace(next);
                }
            });
            let (published, turn) = &*shared;
            turn.fetch_add(1, Ordering::Relaxed);
            let current = published.current.load(Ordering::Acquire);
            turn.fetch_add(1, Ordering::Relaxed);
            published.read_version(current).into_iter().for_each(is_whole);
            is_whole(published.read());
            thread.join().unwrap();
            assert_eq!(published.read(), [VERSIONS, VERSIONS * 10]);
        });
    }

    #[test]
    fn of_two_writers_neither_is_lost() {
        check(|| {
            let shared = Arc::new((Published::new([0, 0]), AtomicU64::new(0)));
            let add = |(published, turn): &(Published<2>, AtomicU64), by| {
                turn.fetch_add(1, Ordering::Relaxed);
                published.replace(|[a, b]| {
                    is_whole([a, b]);
                    turn.fetch_add(1, Ordering::Relaxed);
                    Ok::<_, Infallible>([a + by, b + 10 * by])
                })
            };
            let writer = Arc::clone(&shared);
            let thread = loom::thread::spawn(move || {
                let Ok(()) = add(&writer, 1);
            });
            let Ok(()) = add(&shared, 2);
            thread.join().unwrap();
            assert_eq!(shared.0.read(), [3, 30]);
        });
    }
}
