//! Ledgers whose states are cells: pure functions on a `u64` decide, and the table keeps it.

use super::{Room, WhenFull};
use crate::cell::{Cell, NEW, Policy, ask};
use crate::decision::{Decision, Verdict};
use crate::error::BuildError;
use crate::quota::Quota;
use crate::table::{Found, Outcome, Rule, Set, Shards, Table};
use crate::timeline::Timeline;

#[derive(Debug)]
pub(crate) struct Cells<S> {
    table: Table<S>,
    policy: Policy,
    when_full: WhenFull,
}

/// What is to be done to a state.
#[derive(Clone, Copy)]
enum Deed {
    Charge(u64),
    Force(u64),
    Refund(u64),
    Undo { charged: u64, cost: u64 },
    Forget,
}

/// A deed, put to an algorithm at a moment.
#[derive(Clone, Copy)]
struct Ask<'a, A> {
    cell: &'a A,
    now: u64,
    deed: Deed,
}

impl<A: Cell + Copy> Rule for Ask<'_, A> {
    #[inline]
    fn charge(&self, state: u64) -> Option<u64> {
        let Self { cell, now, deed } = *self;
        match deed {
            Deed::Charge(cost) => cell.charge(state, now, cost),
            Deed::Force(cost) => Some(cell.force(state, now, cost)),
            Deed::Refund(cost) => Some(cell.refund(state, now, cost)),
            Deed::Undo { charged, cost } => Some(cell.undo(state, now, charged, cost)),
            Deed::Forget => Some(NEW),
        }
    }

    fn undo(&self, state: u64, charged: u64) -> u64 {
        let Self { cell, now, deed } = *self;
        match deed {
            Deed::Charge(cost) | Deed::Force(cost) => cell.undo(state, now, charged, cost),
            Deed::Refund(cost) | Deed::Undo { cost, .. } => cell.force(state, now, cost),
            Deed::Forget => state,
        }
    }

    fn is_idle(&self, state: u64) -> bool {
        self.cell.is_idle(state, self.now)
    }

    fn debt(&self, state: u64) -> u64 {
        self.cell.debt(state, self.now)
    }
}

impl<S: Set> Cells<S> {
    pub(super) fn new(quota: &Quota, timeline: &Timeline, room: Room) -> Result<Self, BuildError> {
        let policy = Policy::new(quota, timeline, S::STATE_BITS)?;
        Ok(Self { table: Table::new(room.capacity, room.shards)?, policy, when_full: room.when_full })
    }

    #[inline]
    pub(super) fn limit(&self) -> u64 {
        self.policy.limit()
    }

    #[inline]
    pub(super) fn prefetch(&self, id: u64) {
        self.table.prefetch(id);
    }

    #[inline]
    pub(super) fn decide(&self, id: u64, cost: u64, now: impl FnOnce() -> u64) -> Decision {
        let approached = self.table.approach(id);
        self.enter(approached, id, now(), Deed::Charge(cost), cost)
    }

    #[inline]
    pub(super) fn decide_at(&self, id: u64, cost: u64, now: u64) -> Decision {
        self.enter(None, id, now, Deed::Charge(cost), cost)
    }

    pub(super) fn force(&self, id: u64, cost: u64, now: u64) -> Decision {
        self.enter(None, id, now, Deed::Force(cost), cost)
    }

    /// Does something to the state of `id`, which gets an entry if it has none.
    #[inline(always)]
    fn enter(&self, approached: Option<Found<'_, S>>, id: u64, now: u64, deed: Deed, cost: u64) -> Decision {
        let displace = self.when_full == WhenFull::DisplaceLeast;
        // One copy of the table's code for each algorithm, so that the algorithm is chosen once a check.
        let outcome = ask!(&self.policy, cell => self.table.charge(approached, id, Ask { cell, now, deed }, displace));
        let (state, verdict) = match outcome {
            Outcome::Charged(state) => (state, Verdict::Allowed),
            Outcome::Refused(state) => (state, Verdict::Refused),
            Outcome::Crowded(_) if self.when_full == WhenFull::AdmitUntracked => {
                (self.policy.force(NEW, now, cost), Verdict::Allowed)
            }
            Outcome::Crowded(state) => (state, Verdict::Crowded),
        };
        Decision::of_state(&self.policy, state, now, cost, verdict)
    }

    pub(super) fn look(&self, id: u64, cost: u64, now: u64) -> Decision {
        let state = self.table.peek(id);
        let fits = cost == 0 || self.policy.charge(state, now, cost).is_some();
        Decision::of_state(&self.policy, state, now, cost, if fits { Verdict::Allowable } else { Verdict::Refused })
    }

    pub(super) fn refund(&self, id: u64, cost: u64, now: u64) {
        self.amend(id, now, Deed::Refund(cost));
    }

    pub(super) fn undo(&self, id: u64, charged: &Decision, now: u64) {
        self.amend(id, now, Deed::Undo { charged: charged.state(), cost: charged.granted() });
    }

    pub(super) fn forget(&self, id: u64, now: u64) {
        self.amend(id, now, Deed::Forget);
    }

    /// Does something to the state of `id` if it has one.
    fn amend(&self, id: u64, now: u64, deed: Deed) {
        ask!(&self.policy, cell => self.table.amend(id, Ask { cell, now, deed }));
    }

    pub(super) fn sweep(&self, sets: usize, now: u64) -> usize {
        ask!(&self.policy, cell => self.table.sweep(sets, Ask { cell, now, deed: Deed::Forget }))
    }

    pub(super) fn set_count(&self) -> usize {
        self.table.set_count()
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
    }

    #[inline]
    pub(super) fn shards(&self) -> &Shards {
        self.table.shards()
    }
}
