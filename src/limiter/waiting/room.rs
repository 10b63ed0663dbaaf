//! Those who wait for their turn, in the order in which they came.
//!
//! Whoever waits has been charged already, for a time to come: so a check cannot be faster than those who wait, and a place
//! in the queue is a place in time. The room knows who stands behind whom, so that they move up when a place is given up.
//! It is locked by those who wait, and by those who change what a key owes while somebody waits for it; never by a check.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use crate::ledger::Place;
use crate::sync::{AtomicUsize, Ordering};

/// The waiting room of a limiter.
#[derive(Debug)]
pub(in crate::limiter) struct Room {
    queues: Mutex<Queues>,
    /// How many have a place, or are about to.
    entered: AtomicUsize,
    /// The most that may wait, for one key and in all.
    most: usize,
    most_in_all: usize,
}

#[derive(Debug, Default)]
pub(super) struct Queues {
    by_id: HashMap<u64, Vec<Entry>>,
    /// That of the last that entered.
    ticket: u64,
    waiting: usize,
}

/// One who waits, or has not yet noticed that its time has come.
#[derive(Debug)]
pub(super) struct Entry {
    ticket: u64,
    pub(super) cost: u64,
    /// One place for each quota.
    pub(super) spots: Vec<Spot>,
    /// When its time comes, or came.
    pub(super) due: u64,
    /// Whether its time has come, which nothing takes back.
    pub(super) came: bool,
    /// Whether it is used already, and stands here only because others stand behind it.
    pub(super) used: bool,
    pub(super) waker: Option<Waker>,
    /// Whether its time had not come when it entered.
    waits: bool,
}

/// A place with one of several quotas.
#[derive(Debug, Default)]
pub(super) struct Spot {
    pub(super) place: Place,
    /// Whether it was booked for an earlier time than with another quota.
    pub(super) early: bool,
}

impl Room {
    pub(in crate::limiter) fn new(most: usize, most_in_all: usize) -> Self {
        Self { queues: Mutex::default(), entered: AtomicUsize::new(0), most, most_in_all }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces one who is about to book a place.
    pub(super) fn enter(&self) {
        // Relaxed: whoever sees what is booked after this, in the table, sees this too.
        self.entered.fetch_add(1, Ordering::Relaxed);
    }

    /// Some have left, or not got a place.
    pub(super) fn leave(&self, count: usize) {
        self.entered.fetch_sub(count, Ordering::Relaxed);
    }

    /// Whether nobody has a place, so that there is no need to look.
    pub(super) fn is_empty(&self) -> bool {
        self.entered.load(Ordering::Relaxed) == 0
    }

    /// Whether one more may wait for this key.
    pub(super) fn has_room(&self, queues: &Queues, id: u64) -> bool {
        let waiting = queues.by_id.get(&id).map_or(0, |queue| queue.iter().filter(|entry| entry.waits).count());
        waiting < self.most && queues.waiting < self.most_in_all
    }
}

impl Queues {
    /// Puts one at the end of the queue, and tells its ticket, which is never 0.
    pub(super) fn push(&mut self, id: u64, cost: u64, spots: Vec<Spot>, due: u64, waits: bool) -> u64 {
        self.ticket += 1;
        self.waiting += usize::from(waits);
        let entry = Entry { ticket: self.ticket, cost, spots, due, came: !waits, used: false, waker: None, waits };
        self.by_id.entry(id).or_default().push(entry);
        self.ticket
    }

    /// All keys for which somebody has a place.
    pub(super) fn ids(&self) -> Vec<u64> {
        self.by_id.keys().copied().collect()
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.waiting
    }

    /// All who have a place for this key, in the order of their places.
    pub(super) fn of(&mut self, id: u64) -> &mut [Entry] {
        self.by_id.get_mut(&id).map_or(&mut [], |queue| queue)
    }

    pub(super) fn entry(&mut self, id: u64, ticket: u64) -> Option<&mut Entry> {
        self.of(id).iter_mut().find(|entry| entry.ticket == ticket)
    }

    /// Takes out those who stood there only until their time came, and tells how many they were.
    pub(super) fn clear(&mut self, id: u64) -> usize {
        let Some(queue) = self.by_id.get_mut(&id) else { return 0 };
        let before = queue.len();
        let waiting = &mut self.waiting;
        queue.retain(|entry| {
            let goes = entry.used && entry.came;
            *waiting -= usize::from(goes && entry.waits);
            !goes
        });
        let gone = before - queue.len();
        if queue.is_empty() {
            self.by_id.remove(&id);
        }
        gone
    }

    /// Takes one out of the queue, and tells at what place of it that was.
    pub(super) fn take(&mut self, id: u64, ticket: u64) -> Option<(usize, Entry)> {
        let queue = self.by_id.get_mut(&id)?;
        let index = queue.iter().position(|entry| entry.ticket == ticket)?;
        let entry = queue.remove(index);
        if queue.is_empty() {
            self.by_id.remove(&id);
        }
        self.waiting -= usize::from(entry.waits);
        Some((index, entry))
    }
}

/// Those who are to look again.
pub(super) fn wakers<'a>(entries: impl IntoIterator<Item = &'a mut Entry>) -> Vec<Waker> {
    entries.into_iter().filter_map(|entry| entry.waker.take()).collect()
}
