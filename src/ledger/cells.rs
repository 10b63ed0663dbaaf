//! Ledgers whose states are cells: pure functions on a `u64` decide, and the table keeps it.

use super::{Room, WhenFull};
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
    Book,
    Refund,
    /// Takes back a charge that led to this state.
    Undo(u64),
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
            Deed::Book => return cell.book(state, now, cost),
            Deed::Refund => cell.refund(state, now, cost),
            Deed::Undo(charged) => cell.undo(state, now, charged, cost),
            Deed::Forget => NEW,
        })
    }

    fn undo(&self, state: u64, charged: u64) -> u64 {
        let Check { cell, now, cost } = self.check;
        match self.deed {
            Deed::Force | Deed::Book => self.check.undo(state, charged),
            Deed::Refund | Deed::Undo(_) => cell.force(state, now, cost),
            Deed::Forget => state,
        }
    }

    fn is_idle(&self, state: u64) -> bool {
        self.check.is_idle(state)
    }

    fn debt(&self, position: usize, state: u64) -> u64 {
        self.check.debt(position, state)
    }
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

    pub(super) fn book(&self, number: usize, id: u64, cost: u64, now: u64) -> Result<u64, Option<Decision>> {
        let displace = self.displaces();
        let outcome = ask_terms!(self.terms, number, cell => {
            self.table.charge(None, id, Change { check: Check { cell, now, cost }, deed: Deed::Book }, displace)
        });
        match outcome {
            Outcome::Charged(state) => Ok(state),
            Outcome::Refused(_) => Err(None),
            Outcome::Crowded(_) if self.when_full == WhenFull::AdmitUntracked => {
                Ok(self.terms.joined(number, self.terms.policy(number).force(NEW, now, cost)))
            }
            Outcome::Crowded(state) => {
                let (policy, state) = self.terms.of(state);
                Err(Some(Decision::of_state(&policy, state, now, cost, Verdict::Crowded)))
            }
        }
    }

    pub(super) fn wait(&self, place: u64, now: u64) -> u64 {
        let (policy, state) = self.terms.of(place);
        policy.wait(state, now, 0)
    }

    pub(super) fn moved_up(&self, _id: u64, place: u64, cost: u64, _after: u64, now: u64) -> u64 {
        ask_terms!(self.terms, FIRST, cell => cell.refund(place, now, cost))
    }

    pub(super) fn granted(&self, _id: u64, place: u64, cost: u64, now: u64) -> Decision {
        let (policy, state) = self.terms.of(place);
        Decision::of_state(&policy, state, now, cost, Verdict::Allowed)
    }

    pub(super) fn give_up(&self, id: u64, place: u64, cost: u64, now: u64) {
        self.amend(id, cost, now, Deed::Undo(place));
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
    fn amend(&self, id: u64, cost: u64, now: u64, deed: Deed) {
        ask_terms!(self.terms, FIRST, cell => self.table.amend(id, Change { check: Check { cell, now, cost }, deed }));
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
