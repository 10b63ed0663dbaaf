//! Those who wait for their turn, in the order in which they came.
//!
//! Whoever waits has been charged already, for a time to come: so a check cannot be faster than those who wait, and a place
//! in the queue is a place in time. The room knows who stands behind whom, so that they move up when a place is given up.
//! It is locked by those who wait only, and never by a check.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// The waiting room of a limiter.
#[derive(Debug)]
pub(in crate::limiter) struct Room {
    queues: Mutex<Queues>,
    /// The most that may wait, for one key and in all.
    most: usize,
    most_in_all: usize,
}

#[derive(Debug, Default)]
pub(super) struct Queues {
    by_id: HashMap<u64, VecDeque<Entry>>,
    next_ticket: u64,
    waiting: usize,
}

/// One who waits, or has not yet noticed that its time has come.
#[derive(Debug)]
pub(super) struct Entry {
    ticket: u64,
    pub(super) cost: u64,
    pub(super) places: Places,
    waker: Option<Waker>,
    /// Whether its time had not come when it came.
    waits: bool,
}

/// One place for each quota, and whether it was booked for an earlier time than the latest of them.
pub(super) type Places = Box<[(u64, bool)]>;

impl Room {
    pub(in crate::limiter) fn new(most: usize, most_in_all: usize) -> Self {
        Self { queues: Mutex::default(), most, most_in_all }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether one more may wait for this key.
    pub(super) fn has_room(&self, queues: &Queues, id: u64) -> bool {
        let waiting = queues.by_id.get(&id).map_or(0, |queue| queue.iter().filter(|entry| entry.waits).count());
        waiting < self.most && queues.waiting < self.most_in_all
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.lock().waiting
    }

    /// Wakes all, as their times have changed.
    pub(in crate::limiter) fn wake_all(&self) {
        let mut queues = self.lock();
        let wakers = queues.by_id.values_mut().flatten().filter_map(|entry| entry.waker.take()).collect::<Vec<_>>();
        drop(queues);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Queues {
    /// Puts one at the end of the queue, and tells its ticket.
    pub(super) fn enter(&mut self, id: u64, cost: u64, places: Places, waits: bool) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting += usize::from(waits);
        self.by_id.entry(id).or_default().push_back(Entry { ticket, cost, places, waker: None, waits });
        ticket
    }

    /// The places of a ticket. `waker` is woken when they change.
    pub(super) fn places(&mut self, id: u64, ticket: u64, waker: Option<&Waker>) -> &[(u64, bool)] {
        let Some(entry) = self.by_id.get_mut(&id).and_then(|queue| find(queue, ticket)) else { return &[] };
        if let Some(waker) = waker {
            entry.waker = Some(waker.clone());
        }
        &entry.places
    }

    /// All who have a place for this key, in the order in which they came.
    pub(super) fn all(&mut self, id: u64) -> impl Iterator<Item = &mut Entry> {
        self.by_id.get_mut(&id).into_iter().flatten()
    }

    /// Takes one out of the queue, and tells at what place of it that was.
    pub(super) fn take(&mut self, id: u64, ticket: u64) -> Option<(usize, Entry)> {
        let queue = self.by_id.get_mut(&id)?;
        let index = queue.binary_search_by_key(&ticket, |entry| entry.ticket).ok()?;
        let entry = queue.remove(index)?;
        if queue.is_empty() {
            self.by_id.remove(&id);
        }
        self.waiting -= usize::from(entry.waits);
        Some((index, entry))
    }

    /// Lets those from `index` on move up, and tells whom to wake for it. `moved_up` is told each place, of which quota it is
    /// and how many units come after it, and tells the new place.
    pub(super) fn move_up(&mut self, id: u64, index: usize, moved_up: impl Fn(usize, u64, u64) -> u64) -> Vec<Waker> {
        let (mut wakers, mut after) = (Vec::new(), 0);
        let behind = self.by_id.get_mut(&id).into_iter().flat_map(|queue| queue.iter_mut().skip(index).rev());
        for entry in behind {
            for (quota, (place, _)) in entry.places.iter_mut().enumerate() {
                *place = moved_up(quota, *place, after);
            }
            after = after.saturating_add(entry.cost);
            wakers.extend(entry.waker.take());
        }
        wakers
    }
}

fn find(queue: &mut VecDeque<Entry>, ticket: u64) -> Option<&mut Entry> {
    let index = queue.binary_search_by_key(&ticket, |entry| entry.ticket).ok()?;
    queue.get_mut(index)
}
