//! The lock-free table: from a 64-bit key hash to a cell, in memory that never grows.
//!
//! A key may sit in any slot of two sets. The protocol keeps it from ever being in two slots at once; it is a small
//! relative of Purcell and Harris, "Non-blocking hashtables with open addressing" (DISC 2005), made possible by the
//! fact that an idle entry is the same as none. docs/design.md tells it in full.
//!
//! The table knows of algorithms only what [`Rule`] asks, and of how slots keep keys and states only what [`Set`] tells.

mod compact;
mod exact;
mod line;
mod memory;
mod set;
mod shards;

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod stress_tests;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crossbeam_utils::{Backoff, CachePadded};

use crate::cell::NEW;
use crate::error::BuildError;
use crate::sync::{AtomicUsize, Ordering, fence};

pub(crate) use compact::CompactSet;
pub(crate) use exact::ExactSet;
use line::{Places, WIDTH};
pub(crate) use set::Set;
use set::{Kind, Word};
pub use shards::Stats;
pub(crate) use shards::{Event, Shards};

/// One question to an algorithm: a policy, a moment and a cost.
pub(crate) trait Rule: Copy {
    /// The state after the charge, or `None` if it is refused.
    fn charge(&self, state: u64) -> Option<u64>;
    /// The state without the charge, which led to the state `charged` a moment ago.
    fn undo(&self, state: u64, charged: u64) -> u64;
    /// Whether forgetting the state loses nothing.
    fn is_idle(&self, state: u64) -> bool;
    /// How much forgetting the state of the slot at `position` would lose.
    fn debt(&self, position: usize, state: u64) -> u64;
    /// Called while a live entry is being displaced from the slot at `position` and nobody else may touch it: whoever
    /// keeps more of a key elsewhere forgets it here.
    fn displaced(&self, _position: usize) {}
}

/// What became of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Charged; this is the state now.
    Charged(u64),
    /// Refused because of this state.
    Refused(u64),
    /// A new key, for which there was no slot; this is the state that owes least of those in the way.
    Crowded(u64),
}

/// One slot of a table.
#[derive(Debug)]
struct Slot<'a, S> {
    set: &'a S,
    place: usize,
    /// Counted through all sets.
    position: usize,
}

// Derived ones would want `S` to be `Copy`.
impl<S> Clone for Slot<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Slot<'_, S> {}

impl<S: Set> Slot<'_, S> {
    #[inline]
    fn word(self) -> S::Word {
        self.set.word(self.place)
    }

    #[inline]
    /// Puts `new` in the place of `old`, unless the slot has changed in any way.
    fn swap(self, old: S::Word, new: S::Word) -> bool {
        self.set.replace(self.place, old, new).is_ok()
    }
}

/// Where a key was seen, and the live or pending word that it had.
#[derive(Debug)]
pub(crate) struct Found<'a, S: Set> {
    slot: Slot<'a, S>,
    word: S::Word,
}

impl<S: Set> Found<'_, S> {
    /// The number of the slot, counted through all sets.
    pub(crate) fn position(&self) -> usize {
        self.slot.position
    }

    /// The state as it was seen.
    pub(crate) fn state(&self) -> u64 {
        self.word.state()
    }

    /// Whether it was `id`'s when it was seen.
    pub(crate) fn was_of(&self, id: u64) -> bool {
        self.slot.set.was_of(self.slot.place, self.word, id)
    }

    /// Whether the slot has not changed hands since.
    pub(crate) fn lives_on(&self, id: u64) -> bool {
        let word = self.slot.word();
        word.is_same_life(self.word) && self.slot.set.shows(self.slot.place, word, id)
    }
}

/// A table of no more bytes is taken to fit a core's own cache.
const CACHED_BYTES: usize = 1 << 20;

/// Where a new key could go.
struct Victim<'a, S: Set> {
    slot: Slot<'a, S>,
    word: S::Word,
    loss: Loss,
}

/// What is lost when a slot is given to a new key, the least first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Loss {
    /// The slot is empty.
    Nothing,
    /// The entry is idle. Nothing is forgotten, but its key will have to be entered anew.
    Idle,
    /// The entry owes this much.
    Debt(u64),
}

/// A set with no more empty slots than this takes a new key only if the other has no more of them either. At a full
/// table's load of two thirds a tenth of the keys then sit in their second set, and about one key in 10^5 finds both
/// full.
const CROWDED: u32 = (WIDTH / 4) as u32;

#[derive(Debug)]
pub(crate) struct Table<S> {
    sets: Box<[S]>,
    shards: Shards,
    sweep_cursor: CachePadded<AtomicUsize>,
}

impl<S: Set> Table<S> {
    /// A table with half as many slots again as `capacity`: when it holds that many keys one slot in three is free, so
    /// that hardly ever all the slots that a key may use are taken.
    pub(crate) fn new(capacity: usize, shards: usize) -> Result<Self, BuildError> {
        let out_of_memory = BuildError::OutOfMemory { capacity };
        let slots = capacity.checked_add(capacity / 2).ok_or_else(|| out_of_memory.clone())?;
        let count = slots.div_ceil(WIDTH).max(1);
        let mut sets = Vec::new();
        sets.try_reserve_exact(count).map_err(|_| out_of_memory)?;
        memory::advise_huge_pages(sets.as_ptr(), count);
        // Writes every page, so that no check is ever held up by the kernel handing one out.
        sets.resize_with(count, S::new);
        Ok(Self {
            sets: sets.into_boxed_slice(),
            shards: Shards::new(shards),
            sweep_cursor: CachePadded::new(AtomicUsize::new(0)),
        })
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.sets) + self.shards.memory_bytes()
    }

    pub(crate) fn set_count(&self) -> usize {
        self.sets.len()
    }

    pub(crate) fn slot_count(&self) -> usize {
        self.sets.len() * WIDTH
    }

    pub(crate) fn shards(&self) -> &Shards {
        &self.shards
    }

    /// The entries held, idle ones included.
    pub(crate) fn len(&self) -> usize {
        let sum = |event| self.shards.sum(event);
        let gone = sum(Event::TakenOver) + sum(Event::Displaced) + sum(Event::Swept);
        usize::try_from(sum(Event::Inserted).saturating_sub(gone)).unwrap_or(usize::MAX)
    }

    /// The first set of a key: its hash, scaled to the number of sets.
    #[inline]
    fn first_set(&self, id: u64) -> usize {
        ((u128::from(id) * self.sets.len() as u128) >> 64) as usize
    }

    /// The second set: the lower half of the hash decides.
    fn second_set(&self, id: u64) -> usize {
        self.first_set(id.rotate_left(32))
    }

    /// Goes after the entry of `id` while the clock has not been read yet, and gives it to [`charge`](Self::charge).
    ///
    /// Reading a time-stamp counter holds back the loads that follow it, so what is done before it is gained. A table
    /// that fits the cache is searched (30 ns a check became 26). In a larger one that would only wait for memory twice;
    /// there the lines are asked for, the second set's ids too (at ten million keys 242 ns became 138 and a new key's
    /// 287 became 253).
    #[inline(always)]
    pub(crate) fn approach(&self, id: u64) -> Option<Found<'_, S>> {
        if self.sets.len() <= const { CACHED_BYTES / size_of::<S>() } {
            return self.find(id);
        }
        self.prefetch(id);
        None
    }

    /// Asks the processor for all that a check of `id` is likely to need.
    #[inline(always)]
    pub(crate) fn prefetch(&self, id: u64) {
        self.sets[self.first_set(id)].prefetch();
        self.sets[self.second_set(id)].prefetch_ids();
    }

    #[inline]
    fn slot(&self, set: usize, place: usize) -> Slot<'_, S> {
        Slot { set: &self.sets[set], place, position: set * WIDTH + place }
    }

    /// All slots in which `id` may be.
    fn candidates(&self, id: u64) -> impl Iterator<Item = Slot<'_, S>> {
        let (first, second) = (self.first_set(id), self.second_set(id));
        let sets = [Some(first), Some(second).filter(|&second| second != first)];
        sets.into_iter().flatten().flat_map(move |set| (0..WIDTH).map(move |place| self.slot(set, place)))
    }

    /// The entry of `id` in one set, live or pending.
    #[inline(always)]
    fn find_in(&self, set: usize, id: u64) -> Option<Found<'_, S>> {
        for place in self.sets[set].matches(id) {
            let slot = self.slot(set, place);
            let word = slot.word();
            // The word may be of a life that began after the ids were compared.
            if matches!(word.kind(), Kind::Live | Kind::Pending) && slot.set.shows(place, word, id) {
                return Some(Found { slot, word });
            }
        }
        None
    }

    #[inline(always)]
    fn find(&self, id: u64) -> Option<Found<'_, S>> {
        let (first, second) = (self.first_set(id), self.second_set(id));
        match self.find_in(first, id) {
            None if second != first => self.find_in(second, id),
            found => found,
        }
    }

    /// The state of `id`, without changing anything.
    pub(crate) fn peek(&self, id: u64) -> u64 {
        loop {
            let Some(Found { slot, word }) = self.find(id) else { return NEW };
            if word.kind() == Kind::Pending {
                return NEW;
            }
            if slot.set.was_of(slot.place, word, id) {
                return word.state();
            }
        }
    }

    /// Charges `id`, entering it if it is new; `approached` may say where it was seen before. With `displace` a new key
    /// that finds only live entries takes the place of the one that owes least.
    #[inline(always)]
    pub(crate) fn charge(&self, approached: Option<Found<'_, S>>, id: u64, rule: impl Rule, displace: bool) -> Outcome {
        // Not `or_else`, which is compiled apart and hands its answer over in memory.
        let found = match approached {
            None => self.find(id),
            seen => seen,
        };
        let missed = found.is_none();
        // The usual case by itself, so that it needs few registers and few jumps.
        if let Some(Found { slot, word }) = found
            && word.kind() == Kind::Live
            && let Some(outcome) = Self::charge_live(slot, word, id, rule)
        {
            return outcome;
        }
        self.contend(missed, id, rule, displace)
    }

    /// Charges `id` if it has a live entry.
    pub(crate) fn amend(&self, id: u64, rule: impl Rule) -> Option<Outcome> {
        let backoff = Backoff::new();
        loop {
            let Found { slot, word } = self.find_live(id)?;
            if let Some(outcome) = Self::charge_live(slot, word, id, rule) {
                return Some(outcome);
            }
            backoff.spin();
        }
    }

    /// The live entry of `id`. A pending one is not yet anybody's.
    pub(crate) fn find_live(&self, id: u64) -> Option<Found<'_, S>> {
        self.find(id).filter(|found| found.word.kind() == Kind::Live)
    }

    /// Charges `id` where it is new (`missed`), or another thread is about to change its slot.
    #[cold]
    #[inline(never)]
    fn contend(&self, missed: bool, id: u64, rule: impl Rule, displace: bool) -> Outcome {
        let backoff = Backoff::new();
        let mut missed = missed;
        loop {
            let found = if missed { None } else { self.find(id) };
            let attempt = match found {
                Some(Found { slot, word }) if word.kind() == Kind::Live => Self::charge_live(slot, word, id, rule),
                Some(Found { slot, word }) => self.settle(slot, word, id, rule),
                None => self.insert(id, rule, displace),
            };
            if let Some(outcome) = attempt {
                return outcome;
            }
            // Another thread was faster. Letting it have the line for a moment longer is good for both.
            backoff.spin();
            missed = false;
        }
    }

    /// Charges a live entry; `None` if it has come to an end meanwhile.
    #[inline(always)]
    fn charge_live(slot: Slot<'_, S>, word: S::Word, id: u64, rule: impl Rule) -> Option<Outcome> {
        let Slot { set, place, .. } = slot;
        let mut word = word;
        let charged = loop {
            let Some(state) = rule.charge(word.state()) else {
                return set.was_of(place, word, id).then_some(Outcome::Refused(word.state()));
            };
            let charged = word.with_state(state);
            match set.replace(place, word, charged) {
                Ok(()) => break charged,
                // The failure has brought the line here, so the next try comes before anybody can take it away again.
                Err(now) if now.is_same_life(word) => word = now,
                Err(_) => return None,
            }
        };
        if set.shows(place, charged, id) {
            return Some(Outcome::Charged(charged.state()));
        }
        Self::take_back(slot, charged, rule);
        None
    }

    /// Takes back a charge that has hit another key: since the word was read, the slot has changed hands often enough
    /// to come to the same life and the same state once more.
    #[cold]
    fn take_back(slot: Slot<'_, S>, charged: S::Word, rule: impl Rule) {
        loop {
            let word = slot.word();
            // Whoever has emptied or claimed the slot has thrown the charge away with the rest.
            if word.kind() != Kind::Live || slot.swap(word, word.with_state(rule.undo(word.state(), charged.state()))) {
                return;
            }
        }
    }

    /// Enters a new key; `None` if somebody was faster.
    #[cold]
    #[inline(never)]
    fn insert(&self, id: u64, rule: impl Rule, displace: bool) -> Option<Outcome> {
        if rule.charge(NEW).is_none() {
            return Some(Outcome::Refused(NEW));
        }
        let Some(victim) = self.victim(id, rule) else { return Some(Outcome::Crowded(NEW)) };
        let Victim { slot, word, loss } = victim;
        let outdated = match loss {
            // Somebody has taken the slot since it was seen empty.
            Loss::Nothing => word.kind() != Kind::Empty,
            // Somebody has entered this very key since it was not found.
            _ => slot.set.shows(slot.place, word, id),
        };
        if outdated {
            return None;
        }
        if matches!(loss, Loss::Debt(_)) && !displace {
            return Some(Outcome::Crowded(word.state()));
        }
        let prepare = || {
            if matches!(loss, Loss::Debt(_)) {
                rule.displaced(slot.position);
            }
        };
        let pending = slot.set.claim(slot.place, word, id, self.shards.nonce(), prepare)?;
        match loss {
            Loss::Nothing => (),
            Loss::Idle => self.shards.count(Event::TakenOver),
            Loss::Debt(_) => self.shards.count(Event::Displaced),
        }
        self.settle(slot, pending, id, rule)
    }

    /// The best slot for a new key. `None` if all are in the hands of other threads.
    ///
    /// An empty one if there is any: in the first set while that is roomy, else in the emptier of the two, which keeps
    /// both from filling up long before the table does. Then an idle one, then the one that owes least.
    fn victim(&self, id: u64, rule: impl Rule) -> Option<Victim<'_, S>> {
        let (first, second) = (self.first_set(id), self.second_set(id));
        let near = self.sets[first].empty();
        if near.len() > CROWDED {
            return self.empty_slot(first, near);
        }
        let far = self.sets[second].empty();
        match (near.len(), far.len()) {
            (0, 0) => self.least_loss(id, rule),
            (fewer, more) if more > fewer => self.empty_slot(second, far),
            _ => self.empty_slot(first, near),
        }
    }

    /// The first of the slots of a set that were seen empty.
    fn empty_slot(&self, set: usize, mut empty: Places) -> Option<Victim<'_, S>> {
        let slot = self.slot(set, empty.next()?);
        Some(Victim { slot, word: slot.word(), loss: Loss::Nothing })
    }

    /// The entry by whose end the least is lost.
    fn least_loss(&self, id: u64, rule: impl Rule) -> Option<Victim<'_, S>> {
        let victims = self.candidates(id).filter_map(|slot| {
            let word = slot.word();
            let loss = match word.kind() {
                Kind::Claimed | Kind::Pending => return None,
                Kind::Empty => Loss::Nothing,
                Kind::Live if rule.is_idle(word.state()) => Loss::Idle,
                Kind::Live => Loss::Debt(rule.debt(slot.position, word.state())),
            };
            Some(Victim { slot, word, loss })
        });
        victims.min_by_key(|victim| victim.loss)
    }

    /// Brings a pending entry to an end, one's own or another thread's for the same key: gives it life, with this
    /// charge in it, if it is the only entry of its key, and takes it back otherwise. `None` if there is to be another
    /// try.
    #[cold]
    #[inline(never)]
    fn settle(&self, slot: Slot<'_, S>, pending: S::Word, id: u64, rule: impl Rule) -> Option<Outcome> {
        // SeqCst: pairs with itself in other threads. Of two threads that have each seen a pending entry of the same
        // key before their fence, at least one sees the other's after it.
        fence(Ordering::SeqCst);
        if !self.outlives_rivals(slot.position, id) {
            slot.swap(pending, pending.cancelled());
            return None;
        }
        let state = rule.charge(NEW)?;
        if !slot.swap(pending, pending.activated(state)) {
            return None;
        }
        self.shards.count(Event::Inserted);
        Some(Outcome::Charged(state))
    }

    /// Whether the pending entry at `position` may live: no other slot has a live entry of its key, nor a pending one
    /// further ahead. Pending ones further behind are cancelled.
    fn outlives_rivals(&self, position: usize, id: u64) -> bool {
        let (first, second) = (self.first_set(id), self.second_set(id));
        self.outlives_rivals_in(first, position, id)
            && (first == second || self.outlives_rivals_in(second, position, id))
    }

    fn outlives_rivals_in(&self, set: usize, position: usize, id: u64) -> bool {
        let slots = self.sets[set].matches(id).map(|place| self.slot(set, place));
        slots.filter(|other| other.position != position).all(|other| {
            loop {
                let word = other.word();
                match word.kind() {
                    Kind::Empty | Kind::Claimed => return true,
                    // The word may be of a life after the id.
                    _ if !other.set.shows(other.place, word, id) => return true,
                    Kind::Live => return false,
                    Kind::Pending if other.position < position => return false,
                    Kind::Pending => {
                        if other.swap(word, word.cancelled()) {
                            return true;
                        }
                    }
                }
            }
        })
    }

    /// Frees the idle entries of the next `count` sets, and tells how many they were.
    pub(crate) fn sweep(&self, count: usize, rule: impl Rule) -> usize {
        let count = count.min(self.sets.len());
        let start = self.sweep_cursor.fetch_add(count, Ordering::Relaxed);
        let sets = (0..count).map(|step| start.wrapping_add(step) % self.sets.len());
        let slots = sets.flat_map(|set| (0..WIDTH).map(move |place| self.slot(set, place)));
        slots.filter(|slot| self.sweep_slot(*slot, rule)).count()
    }

    fn sweep_slot(&self, slot: Slot<'_, S>, rule: impl Rule) -> bool {
        let word = slot.word();
        let idle = word.kind() == Kind::Live && rule.is_idle(word.state());
        if !idle || !slot.swap(word, word.emptied(self.shards.nonce())) {
            return false;
        }
        self.shards.count(Event::Swept);
        true
    }
}
