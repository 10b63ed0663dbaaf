//! How those who wait move: as their times come, and when others give up, units are settled, or quotas change.
//!
//! All of it happens under the lock of the waiting room, and begins by letting those go whose time has come. They do not
//! move any more: whatever is booked anew is booked behind them.

use std::hash::BuildHasher;
use std::task::Waker;

use super::super::Limiter;
use super::room::{self, Entry, Queues, Spot};
use crate::clock::Clock;
use crate::error::BuildError;
use crate::ledger::{Link, Place, Settlement};
use crate::quota::Quota;

impl<K: ?Sized, C: Clock, S: BuildHasher> Limiter<K, C, S> {
    /// Lets those go whose time has come.
    pub(super) fn refresh(&self, queues: &mut Queues, id: u64, now: u64) {
        let queue = queues.of(id);
        // What is used already need not be caught up with, and nobody is left to give it up if it never comes.
        for entry in waiting(queue).filter(|entry| entry.used) {
            let wait = self.wait_for(&entry.spots, now);
            entry.came = wait == 0 || self.is_never(wait, now);
        }
        self.try_again(id, queue, now);
        if self.catch_up(id, queue, now) {
            self.note(queue, now);
        }
        sort(queue);
        let gone = queues.clear(id);
        self.left(queues, id, gone, now);
    }

    /// So many have left the queue.
    fn left(&self, queues: &mut Queues, id: u64, count: usize, now: u64) {
        self.room.leave(count);
        if count > 0 && queues.of(id).is_empty() {
            // Written down as it stands now: what was booked over several windows is not for a later quota to tell.
            self.ledgers().for_each(|ledger| ledger.settle(id, Settlement::Refund(0), &mut [], now));
        }
    }

    pub(super) fn refresh_all(&self, queues: &mut Queues, now: u64) {
        for id in queues.ids() {
            self.refresh(queues, id, now);
        }
    }

    /// Books those who could not be booked before, as a limit or a debt stood in the way, which may have changed.
    fn try_again(&self, id: u64, queue: &mut [Entry], now: u64) {
        let mut is_moved = false;
        for (quota, ledger) in self.ledgers().enumerate() {
            if waiting(queue).any(|entry| matches!(entry.spots[quota].place, Place::Never)) {
                ledger.replay(id, None, &mut links(waiting(queue), quota, now), now);
                is_moved = true;
            }
        }
        if is_moved {
            self.moved(id, queue, now);
        }
    }

    /// Lets those go whose time has come, and tells whether any have been moved instead.
    ///
    /// With several quotas those places are booked anew that were booked for an earlier time than the one that has come now:
    /// what one quota held back, another is not to let go all at once.
    fn catch_up(&self, id: u64, queue: &mut [Entry], now: u64) -> bool {
        for entry in waiting(queue) {
            let is_late = self.wait_for(&entry.spots, now) == 0;
            if is_late && entry.spots.iter().any(|spot| spot.early) {
                break;
            }
            entry.came = is_late;
        }
        let late = waiting(queue).map(|entry| self.wait_for(&entry.spots, now) == 0).collect::<Vec<_>>();
        if !late.contains(&true) {
            return false;
        }
        for (quota, ledger) in self.ledgers().enumerate() {
            let first = waiting(queue).zip(&late).position(|(entry, &late)| late && entry.spots[quota].early);
            if let Some(first) = first {
                ledger.postpone(id, &mut links(waiting(queue), quota, now)[first..], now);
            }
        }
        true
    }

    /// Takes from those who could not be booked with one quota the places that they have with others.
    fn all_or_none(&self, id: u64, queue: &mut [Entry], now: u64) {
        for index in 0..queue.len() {
            let [entry, behind @ ..] = &mut queue[index..] else { return };
            let is_never = |spot: &Spot| matches!(spot.place, Place::Never);
            if entry.came || !entry.spots.iter().any(is_never) {
                continue;
            }
            for (quota, (ledger, spot)) in self.ledgers().zip(&mut entry.spots).enumerate() {
                let place = std::mem::replace(&mut spot.place, Place::Never);
                if !matches!(place, Place::Never) {
                    let mut behind = links(waiting(behind), quota, now);
                    ledger.replay(id, Some((&place, entry.cost)), &mut behind, now);
                }
            }
        }
    }

    /// Looks at those who have been booked anew.
    fn moved(&self, id: u64, queue: &mut [Entry], now: u64) {
        self.all_or_none(id, queue, now);
        sort(queue);
        for entry in waiting(queue) {
            entry.due = now.saturating_add(self.wait_for(&entry.spots, now));
        }
        self.catch_up(id, queue, now);
        self.note(queue, now);
    }

    /// Notes the times of those who wait.
    fn note(&self, queue: &mut [Entry], now: u64) {
        for entry in waiting(queue) {
            let wait = self.mark_early(&mut entry.spots, now);
            entry.due = now.saturating_add(wait);
            entry.came = wait == 0;
        }
    }

    /// Marks the places that are for an earlier time than the latest, and tells how long it is until that.
    pub(super) fn mark_early(&self, spots: &mut [Spot], now: u64) -> u64 {
        let wait = self.wait_for(spots, now);
        for (ledger, spot) in self.ledgers().zip(spots) {
            spot.early = ledger.wait(&spot.place, now) < wait;
        }
        wait
    }

    /// The nanoseconds until the time of the latest of the places.
    pub(super) fn wait_for(&self, spots: &[Spot], now: u64) -> u64 {
        self.ledgers().zip(spots).map(|(ledger, spot)| ledger.wait(&spot.place, now)).max().unwrap_or(0)
    }

    /// Gives up a place. Those behind it move up, as if it had never been.
    pub(super) fn give_up(&self, id: u64, ticket: u64, now: u64) {
        let mut queues = self.room.lock();
        self.refresh(&mut queues, id, now);
        let Some((index, given)) = queues.take(id, ticket) else { return };
        let behind = queues.of(id).get_mut(index..).unwrap_or_default();
        for (quota, (ledger, spot)) in self.ledgers().zip(&given.spots).enumerate() {
            ledger.replay(id, Some((&spot.place, given.cost)), &mut links(behind.iter_mut(), quota, now), now);
        }
        self.moved(id, behind, now);
        let wakers = room::wakers(behind);
        self.left(&mut queues, id, 1, now);
        drop(queues);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Charges units after the fact, or gives them back: before all who wait, who move accordingly.
    pub(in crate::limiter) fn settle(&self, id: u64, settlement: Settlement, now: u64) {
        if matches!(settlement, Settlement::Charge(0) | Settlement::Refund(0)) {
            return;
        }
        if self.room.is_empty() {
            return self.ledgers().for_each(|ledger| ledger.settle(id, settlement, &mut [], now));
        }
        let mut queues = self.room.lock();
        self.refresh(&mut queues, id, now);
        let queue = queues.of(id);
        for (quota, ledger) in self.ledgers().enumerate() {
            ledger.settle(id, settlement, &mut links(waiting(queue), quota, now), now);
        }
        self.moved(id, queue, now);
        let wakers = room::wakers(queue);
        drop(queues);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Forgets what a key has used. Those who wait for it begin anew.
    pub(in crate::limiter) fn forget_id(&self, id: u64, now: u64) {
        let forget = || self.ledgers().for_each(|ledger| ledger.forget(id, now));
        if self.room.is_empty() {
            return forget();
        }
        let mut queues = self.room.lock();
        self.refresh(&mut queues, id, now);
        forget();
        let queue = queues.of(id);
        let never = || self.ledgers().map(|_| Spot { place: Place::Never, early: false }).collect();
        for entry in queue.iter_mut() {
            entry.spots = if entry.came {
                self.ledgers().map(|_| Spot::default()).collect()
            } else {
                self.book_all(id, entry.cost, now).unwrap_or_else(|_| never())
            };
        }
        self.moved(id, queue, now);
        let wakers = room::wakers(queue);
        drop(queues);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Changes one of the quotas. Those who wait do so by the new one.
    pub(in crate::limiter) fn requote(&self, index: usize, quota: &Quota, now: u64) -> Result<(), BuildError> {
        let count = self.more.len() + 1;
        let ledger = self.ledgers().nth(index).ok_or(BuildError::NoSuchQuota { index, count })?;
        let mut queues = self.room.lock();
        // By the old one, and as it stands now: a quota does not know what the one before the last was.
        self.refresh_all(&mut queues, now);
        for id in queues.ids() {
            ledger.settle(id, Settlement::Refund(0), &mut links(waiting(queues.of(id)), index, now), now);
        }
        ledger.set_quota(quota, now)?;
        let mut wakers = Vec::new();
        for id in queues.ids() {
            let queue = queues.of(id);
            ledger.replay(id, None, &mut links(waiting(queue), index, now), now);
            self.moved(id, queue, now);
            wakers.extend(room::wakers(queue));
        }
        drop(queues);
        wakers.into_iter().for_each(Waker::wake);
        Ok(())
    }
}

/// Those whose time has not come.
fn waiting(queue: &mut [Entry]) -> impl Iterator<Item = &mut Entry> {
    queue.iter_mut().filter(|entry| !entry.came)
}

/// One that cannot be booked stands behind those who can, and so behind whoever came after it and may go.
fn sort(queue: &mut [Entry]) {
    queue.sort_by_key(|entry| match entry.spots.first() {
        _ if entry.came => 0,
        Some(Spot { place: Place::Never, .. }) => 2,
        _ => 1,
    });
}

/// The places of some with one of the quotas.
fn links<'a>(entries: impl Iterator<Item = &'a mut Entry>, quota: usize, now: u64) -> Vec<Link<'a>> {
    let link = |entry: &'a mut Entry| {
        let Entry { cost, came, due, .. } = *entry;
        let at = if came { due } else { now };
        entry.spots.get_mut(quota).map(|spot| Link { place: &mut spot.place, cost, at, came })
    };
    entries.filter_map(link).collect()
}
