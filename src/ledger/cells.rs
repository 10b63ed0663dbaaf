//! Ledgers whose states are cells: pure functions on a `u64` decide, and the table keeps it.

use alloc::vec::Vec;
use core::cell::Cell as Seen;

use super::{Link, Place, Room, Settlement, WhenFull};
use crate::cell::{Cell, NEW, Policy, ask};
use crate::decision::{Decision, Verdict};
use crate::error::BuildError;
use crate::quota::Quota;
use crate::table::{Event, Outcome, Rule, Set, Shards, Table};
use crate::terms::{By, FIRST, Terms};
use crate::timeline::Timeline;

#[derive(Debug)]
pub(crate) struct Cells<S> {
    table: Table<S>,
    terms: Terms,
    when_full: WhenFull,
}

/// Puts a question to the policy of a number, whichever algorithm it is of. One copy of the table's code for each, so that
/// it is chosen once a check.
macro_rules! ask_terms {
    ($terms:expr, $number:expr, $cell:ident => $question:expr) => {
        match $terms.only() {
            Some(policy) => ask!(policy, $cell => $question),
            None => {
                let $cell = &$terms.by($number);
                $question
            }
        }
    };
}

/// A check, put to an algorithm. So small that it is handed over in registers.
#[derive(Clone, Copy)]
struct Check<'a, A> {
    cell: &'a A,
    now: u64,
    cost: u64,
}

impl<A: Cell + Copy> Rule for Check<'_, A> {
    #[inline]
    fn charge(&self, state: u64) -> Option<u64> {
        self.cell.charge(state, self.now, self.cost)
    }

    fn undo(&self, state: u64, charged: u64) -> u64 {
        self.cell.undo(state, self.now, charged, self.cost)
    }

    fn is_idle(&self, state: u64) -> bool {
        self.cell.is_idle(state, self.now)
    }

    fn debt(&self, _position: usize, state: u64) -> u64 {
        self.cell.debt(state, self.now)
    }
}

/// What else can be done to a state.
#[derive(Clone, Copy)]
enum Deed {
    Force,
    Refund,
    /// Takes back a charge that led to this state.
    Undo(u64),
    /// The same of one that was long ago.
    GiveBack(u64),
    /// Puts the second in the place of the first.
    Exchange(u64, u64),
    Forget,
}

/// A deed, put to an algorithm.
#[derive(Clone, Copy)]
struct Change<'a, A> {
    check: Check<'a, A>,
    deed: Deed,
}

impl<A: Cell + Copy> Rule for Change<'_, A> {
    fn charge(&self, state: u64) -> Option<u64> {
        let Check { cell, now, cost } = self.check;
        Some(match self.deed {
            Deed::Force => cell.force(state, now, cost),
            Deed::Refund => cell.refund(state, now, cost),
            Deed::GiveBack(then) => return give_back(cell, state, now, then, cost),
            Deed::Exchange(old, new) => return (state == old).then_some(new),
            Deed::Undo(charged) => cell.undo(state, now, charged, cost),
            Deed::Forget => NEW,
        })
    }

    fn undo(&self, state: u64, charged: u64) -> u64 {
        let Check { cell, now, cost } = self.check;
        match self.deed {
            Deed::Force => self.check.undo(state, charged),
            Deed::Refund | Deed::Undo(_) | Deed::GiveBack(_) => cell.force(state, now, cost),
            Deed::Exchange(old, new) if state == new => old,
            Deed::Exchange(..) | Deed::Forget => state,
        }
    }

    fn is_idle(&self, state: u64) -> bool {
        self.check.is_idle(state)
    }

    fn debt(&self, position: usize, state: u64) -> u64 {
        self.check.debt(position, state)
    }
}

/// A charge for a time to come, which remembers the state before it.
#[derive(Clone, Copy)]
struct Book<'a, A> {
    check: Check<'a, A>,
    before: &'a Seen<u64>,
}

impl<A: Cell + Copy> Rule for Book<'_, A> {
    fn charge(&self, state: u64) -> Option<u64> {
        let Check { cell, now, cost } = self.check;
        self.before.set(state);
        booked(cell, state, now, cost)
    }

    fn undo(&self, state: u64, charged: u64) -> u64 {
        self.check.undo(state, charged)
    }

    fn is_idle(&self, state: u64) -> bool {
        self.check.is_idle(state)
    }

    fn debt(&self, position: usize, state: u64) -> u64 {
        self.check.debt(position, state)
    }
}

/// A state without a charge that led to the state `then`; `None` if less is owed than was then, so that it was given back in
/// some other way.
fn give_back(cell: &impl Cell, state: u64, now: u64, then: u64, cost: u64) -> Option<u64> {
    (cell.debt(state, now) >= cell.debt(then, now)).then(|| cell.undo(state, now, then, cost))
}

/// A state after `cost` units are booked; see [`Cell::book`]. `None` also for more than there can ever be.
fn booked(cell: &impl Cell, state: u64, now: u64, cost: u64) -> Option<u64> {
    if cost <= cell.limit() { cell.book(state, now, cost) } else { None }
}

/// The states before and after a place.
fn states(place: &Place) -> Option<(u64, u64)> {
    if let Place::Cell { before, after } = *place { Some((before, after)) } else { None }
}

/// Where the last run of places begins, each of which begins where the one before it ends.
fn last_run(links: &[Link<'_>]) -> usize {
    let places = links.iter().enumerate().filter_map(|(index, link)| Some((index, states(link.place)?)));
    let mut begin = (0, None);
    for (index, (before, after)) in places {
        begin = (if begin.1.is_none_or(|end| end == before) { begin.0 } else { index }, Some(after));
    }
    begin.0
}

/// The states before the first and after the last of some places, if each begins where the one before it ends.
fn chain(given: Option<&Place>, links: &[Link<'_>]) -> Option<(u64, u64)> {
    let mut places = given.into_iter().chain(links.iter().map(|link| &*link.place)).filter_map(states);
    let (first, end) = places.next()?;
    let last = places.try_fold(end, |end, (before, after)| (before == end).then_some(after))?;
    Some((first, last))
}

impl<S: Set> Cells<S> {
    pub(super) fn new(quota: &Quota, timeline: &Timeline, room: Room) -> Result<Self, BuildError> {
        let terms = Terms::new(quota, timeline, S::STATE_BITS, room.others)?;
        Ok(Self { table: Table::new(room.capacity, room.shards)?, terms, when_full: room.when_full })
    }

    pub(super) fn terms(&self) -> &Terms {
        &self.terms
    }

    #[inline]
    pub(super) fn prefetch(&self, id: u64) {
        self.table.prefetch(id);
    }

    #[inline]
    pub(super) fn decide(&self, id: u64, cost: u64, now: impl FnOnce() -> u64) -> Decision {
        // Buckets by themselves, so that their check is small enough to be compiled into its caller, which then need not
        // be handed a whole decision (205 instructions a check became 174).
        match self.terms.only() {
            Some(policy @ Policy::Bucket(bucket)) => self.decide_by(policy, bucket, id, cost, now),
            _ => self.decide_by_any(id, cost, now),
        }
    }

    #[inline(never)]
    fn decide_by_any(&self, id: u64, cost: u64, now: impl FnOnce() -> u64) -> Decision {
        if let Some(policy) = self.terms.only() {
            return ask!(policy, cell => self.decide_by(policy, cell, id, cost, now));
        }
        self.table.prefetch(id);
        let decision = self.decide_at(FIRST, id, cost, now());
        self.shards().count(if decision.is_allowed() { Event::Allowed } else { Event::Refused });
        decision
    }

    #[inline(always)]
    fn decide_by<A>(&self, policy: &Policy, cell: &A, id: u64, cost: u64, now: impl FnOnce() -> u64) -> Decision
    where
        A: Cell + Copy,
    {
        let approached = self.table.approach(id);
        let now = now();
        let outcome = self.table.charge(approached, id, Check { cell, now, cost }, self.displaces());
        let (state, verdict) = self.verdict(policy, outcome, cost, now);
        // Counted before there is a decision, which then need not be copied: that took as long as the count itself.
        self.shards().count(if verdict == Verdict::Allowed { Event::Allowed } else { Event::Refused });
        Decision::of_state(policy, state, now, cost, verdict)
    }

    /// By the first quota, which is looked up once a batch.
    pub(super) fn decide_batch(&self, ids: &[u64], now: u64, decisions: &mut [Decision]) -> u64 {
        let (displace, cost) = (self.displaces(), 1);
        let Some(policy) = self.terms.only() else {
            let by = self.terms.by(FIRST);
            return decisions.iter_mut().zip(ids).fold(0, |allowed, (decision, &id)| {
                *decision = self.decide_by_number(&by, id, cost, now);
                allowed + u64::from(decision.is_allowed())
            });
        };
        ask!(policy, cell => {
            let mut allowed = 0;
            for (decision, &id) in decisions.iter_mut().zip(ids) {
                let outcome = self.table.charge(None, id, Check { cell, now, cost }, displace);
                let (state, verdict) = self.verdict(policy, outcome, cost, now);
                allowed += u64::from(verdict == Verdict::Allowed);
                *decision = Decision::of_state(policy, state, now, cost, verdict);
            }
            allowed
        })
    }

    pub(super) fn decide_at(&self, number: usize, id: u64, cost: u64, now: u64) -> Decision {
        let Some(policy) = self.terms.only() else { return self.decide_by_one(number, id, cost, now) };
        let displace = self.displaces();
        let outcome = ask!(policy, cell => self.table.charge(None, id, Check { cell, now, cost }, displace));
        let (state, verdict) = self.verdict(policy, outcome, cost, now);
        Decision::of_state(policy, state, now, cost, verdict)
    }

    #[inline(never)]
    fn decide_by_one(&self, number: usize, id: u64, cost: u64, now: u64) -> Decision {
        self.decide_by_number(&self.terms.by(number), id, cost, now)
    }

    /// By a quota that is one of several.
    fn decide_by_number(&self, by: &By<'_>, id: u64, cost: u64, now: u64) -> Decision {
        let outcome = self.table.charge(None, id, Check { cell: by, now, cost }, self.displaces());
        let (policy, outcome) = match outcome {
            Outcome::Charged(state) => by.told(state, now, Outcome::Charged),
            Outcome::Refused(state) => by.told(state, now, Outcome::Refused),
            Outcome::Crowded(_) if self.when_full == WhenFull::AdmitUntracked => by.told(NEW, now, Outcome::Crowded),
            Outcome::Crowded(state) => by.told_of_another(state, Outcome::Crowded),
        };
        let (state, verdict) = self.verdict(&policy, outcome, cost, now);
        Decision::of_state(&policy, state, now, cost, verdict)
    }

    /// The state after a charge, and what became of it.
    #[inline]
    fn verdict(&self, policy: &Policy, outcome: Outcome, cost: u64, now: u64) -> (u64, Verdict) {
        match outcome {
            Outcome::Charged(state) => (state, Verdict::Allowed),
            Outcome::Refused(state) => (state, Verdict::Refused),
            Outcome::Crowded(_) if self.when_full == WhenFull::AdmitUntracked => {
                (policy.force(NEW, now, cost), Verdict::Allowed)
            }
            Outcome::Crowded(state) => (state, Verdict::Crowded),
        }
    }

    fn displaces(&self) -> bool {
        self.when_full == WhenFull::DisplaceLeast
    }

    pub(super) fn force(&self, id: u64, cost: u64, now: u64) {
        let displace = self.displaces();
        ask_terms!(self.terms, FIRST, cell => {
            self.table.charge(None, id, Change { check: Check { cell, now, cost }, deed: Deed::Force }, displace)
        });
    }

    pub(super) fn look(&self, number: usize, id: u64, cost: u64, now: u64) -> Decision {
        let state = self.table.peek(id);
        match self.terms.only() {
            Some(policy) => Self::told(policy, state, cost, now),
            None => self.look_by_number(number, state, cost, now),
        }
    }

    #[cold]
    #[inline(never)]
    fn look_by_number(&self, number: usize, state: u64, cost: u64, now: u64) -> Decision {
        let (policy, state) = self.terms.by(number).told(state, now, |state| state);
        Self::told(&policy, state, cost, now)
    }

    /// What a check would say of a state.
    #[inline]
    fn told(policy: &Policy, state: u64, cost: u64, now: u64) -> Decision {
        let fits = cost == 0 || policy.charge(state, now, cost).is_some();
        Decision::of_state(policy, state, now, cost, if fits { Verdict::Allowable } else { Verdict::Refused })
    }

    pub(super) fn book(&self, number: usize, id: u64, cost: u64, now: u64) -> Result<Place, Option<Decision>> {
        let (displace, before) = (self.displaces(), Seen::new(NEW));
        let outcome = ask_terms!(self.terms, number, cell => {
            let check = Check { cell, now, cost };
            self.table.charge(None, id, Book { check, before: &before }, displace)
        });
        match outcome {
            Outcome::Charged(after) => Ok(Place::Cell { before: before.get(), after }),
            Outcome::Refused(_) => Err(None),
            Outcome::Crowded(_) if self.when_full == WhenFull::AdmitUntracked => Ok(Place::Free),
            Outcome::Crowded(state) => {
                let (policy, state) = self.terms.of(state);
                Err(Some(Decision::of_state(&policy, state, now, cost, Verdict::Crowded)))
            }
        }
    }

    pub(super) fn granted(&self, after: u64, cost: u64, now: u64) -> Decision {
        let (policy, state) = self.terms.of(after);
        Decision::of_state(&policy, state, now, cost, Verdict::Allowed)
    }

    /// A state changes by charges only, so if it is still what the last place made of it, nobody else has charged; and if
    /// each place begins where the one before it ends, neither has anybody between them. Then all is as it would have been.
    ///
    /// Otherwise others have charged after a place whose time had come, or by another quota. Then as much is given back as
    /// cannot have come back by itself; and of those behind it, the ones after whom nobody has charged move up, unless they
    /// would pass others.
    pub(super) fn replay(&self, id: u64, given: Option<(&Place, u64)>, behind: &mut [Link<'_>], now: u64) {
        let given = given.and_then(|(place, cost)| Some((place, states(place)?.1, cost)));
        if let Some((first, last)) = chain(given.map(|(place, ..)| place), behind)
            && self.replay_from(id, first, last, behind, now)
        {
            return;
        }
        let (passed, last_run) = behind.split_at_mut(last_run(behind));
        if let Some((first, last)) = chain(None, last_run) {
            let is_passed = |link: &Link<'_>| !link.came && states(link.place).is_some();
            if let Some((_, then, cost)) = given
                && !passed.iter().any(is_passed)
                && let Some(first) = self.given_back(first, now, then, cost)
            {
                self.replay_from(id, first, last, last_run, now);
            }
            return;
        }
        if let Some((_, then, cost)) = given
            && self.terms.has_only_one()
        {
            self.amend(id, cost, now, Deed::GiveBack(then));
        }
        self.try_again(id, behind, now);
    }

    /// If others have charged meanwhile, what was charged before stays.
    pub(super) fn postpone(&self, id: u64, links: &mut [Link<'_>], now: u64) {
        if let Some((first, last)) = chain(None, links)
            && self.replay_from(id, first, last, links, now)
        {
            return;
        }
        for link in links.iter_mut().filter(|link| states(link.place).is_some()) {
            *link.place = self.book(FIRST, id, link.cost, now).unwrap_or(Place::Never);
        }
        self.try_again(id, links, now);
    }

    /// Books those who had no place before.
    fn try_again(&self, id: u64, links: &mut [Link<'_>], now: u64) {
        for link in links.iter_mut().filter(|link| matches!(link.place, Place::Never)) {
            *link.place = self.book(FIRST, id, link.cost, now).unwrap_or(Place::Never);
        }
    }

    /// A state without what was charged by a place that led to the state `then`. `None` if it cannot be told: if less is owed
    /// than was then, or the key may have been checked by other quotas since.
    fn given_back(&self, state: u64, now: u64, then: u64, cost: u64) -> Option<u64> {
        if !self.terms.has_only_one() {
            return None;
        }
        ask_terms!(self.terms, FIRST, cell => give_back(cell, state, now, then, cost))
    }

    /// Books places in turn from the state `first` on, if that of `id` is still the `last` that they have led to.
    fn replay_from(&self, id: u64, first: u64, last: u64, links: &mut [Link<'_>], now: u64) -> bool {
        let mut end = first;
        let replay = |link: &Link<'_>| match *link.place {
            Place::Free | Place::Log { .. } => None,
            _ => Some(match ask_terms!(self.terms, FIRST, cell => booked(cell, end, link.at, link.cost)) {
                Some(after) => Place::Cell { before: core::mem::replace(&mut end, after), after },
                None => Place::Never,
            }),
        };
        let replayed = links.iter().map(replay).collect::<Vec<_>>();
        let is_exchanged = self.exchange(id, last, end, now);
        if is_exchanged {
            for (link, place) in links.iter_mut().zip(replayed) {
                *link.place = place.unwrap_or_default();
            }
        }
        is_exchanged
    }

    /// Puts one state of `id` in the place of another, and tells whether it was that.
    fn exchange(&self, id: u64, old: u64, new: u64, now: u64) -> bool {
        match self.amend(id, 0, now, Deed::Exchange(old, new)) {
            Some(outcome) => matches!(outcome, Outcome::Charged(_)),
            // What was swept is as good as what it was.
            None => ask_terms!(self.terms, FIRST, cell => cell.is_idle(old, now) && cell.is_idle(new, now)),
        }
    }

    pub(super) fn settle(&self, id: u64, settlement: Settlement, queue: &mut [Link<'_>], now: u64) {
        let settled = |state| {
            ask_terms!(self.terms, FIRST, cell => match settlement {
                Settlement::Charge(units) => cell.force(state, now, units),
                Settlement::Refund(units) => cell.refund(state, now, units),
            })
        };
        if let Some((first, last)) = chain(None, queue)
            && self.replay_from(id, settled(first), last, queue, now)
        {
            return;
        }
        match settlement {
            Settlement::Charge(units) => self.force(id, units, now),
            Settlement::Refund(units) => self.refund(id, units, now),
        }
    }

    pub(super) fn refund(&self, id: u64, cost: u64, now: u64) {
        self.amend(id, cost, now, Deed::Refund);
    }

    pub(super) fn undo(&self, number: usize, id: u64, charged: &Decision, now: u64) {
        let state = self.terms.joined(number, charged.state());
        self.amend(id, charged.granted(), now, Deed::Undo(state));
    }

    pub(super) fn forget(&self, id: u64, now: u64) {
        self.amend(id, 0, now, Deed::Forget);
    }

    /// Does something to the state of `id` if it has one.
    fn amend(&self, id: u64, cost: u64, now: u64, deed: Deed) -> Option<Outcome> {
        ask_terms!(self.terms, FIRST, cell => self.table.amend(id, Change { check: Check { cell, now, cost }, deed }))
    }

    pub(super) fn sweep(&self, sets: usize, now: u64) -> usize {
        ask_terms!(self.terms, FIRST, cell => self.table.sweep(sets, Check { cell, now, cost: 0 }))
    }

    pub(super) fn set_count(&self) -> usize {
        self.table.set_count()
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.table.memory_bytes() + self.terms.memory_bytes()
    }

    #[inline]
    pub(super) fn shards(&self) -> &Shards {
        self.table.shards()
    }
}
