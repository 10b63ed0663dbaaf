//! One cell, without a table.

use crossbeam_utils::CachePadded;

use crate::cell::{Cell, NEW, Policy, ask};
use crate::decision::{Decision, Verdict};
use crate::sync::{AtomicU64, Ordering};
use crate::terms::{FIRST, Terms};

#[derive(Debug)]
pub(super) struct Single {
    state: CachePadded<AtomicU64>,
    terms: Terms,
}

impl Single {
    pub(super) fn new(terms: Terms) -> Self {
        Self { state: CachePadded::new(AtomicU64::new(NEW)), terms }
    }

    pub(super) fn terms(&self) -> &Terms {
        &self.terms
    }

    #[inline]
    pub(super) fn limit(&self) -> u64 {
        self.terms.limit(FIRST)
    }

    #[inline]
    pub(super) fn decide_at(&self, cost: u64, now: u64) -> Decision {
        // Buckets by themselves, so that their check is small enough to be compiled into its caller.
        match self.terms.only() {
            Some(policy @ Policy::Bucket(bucket)) => self.decide_by(policy, bucket, cost, now),
            _ => self.decide_by_any(cost, now),
        }
    }

    #[inline(never)]
    fn decide_by_any(&self, cost: u64, now: u64) -> Decision {
        let policy = self.policy();
        ask!(&policy, cell => self.decide_by(&policy, cell, cost, now))
    }

    /// The policy as it stands.
    fn policy(&self) -> Policy {
        self.terms.only().copied().unwrap_or_else(|| self.terms.policy(FIRST))
    }

    #[inline(always)]
    fn decide_by(&self, policy: &Policy, cell: &impl Cell, cost: u64, now: u64) -> Decision {
        let (state, verdict) = match self.change(|state| cell.charge(state, now, cost)) {
            Ok(charged) => (charged, Verdict::Allowed),
            Err(state) => (state, Verdict::Refused),
        };
        Decision::of_state(policy, state, now, cost, verdict)
    }

    pub(super) fn look(&self, cost: u64, now: u64) -> Decision {
        let (state, policy) = (self.state.load(Ordering::Relaxed), self.policy());
        let fits = cost == 0 || policy.charge(state, now, cost).is_some();
        Decision::of_state(&policy, state, now, cost, if fits { Verdict::Allowable } else { Verdict::Refused })
    }

    pub(super) fn force(&self, cost: u64, now: u64) {
        // Without a charge, the state of an idle bucket would begin anew.
        if cost > 0 {
            let policy = self.policy();
            let _ = self.change(|state| Some(policy.force(state, now, cost)));
        }
    }

    pub(super) fn refund(&self, cost: u64, now: u64) {
        let policy = self.policy();
        let _ = self.change(|state| Some(policy.refund(state, now, cost)));
    }

    pub(super) fn undo(&self, charged: &Decision, now: u64) {
        let policy = self.policy();
        let _ = self.change(|state| Some(policy.undo(state, now, charged.state(), charged.granted())));
    }

    pub(super) fn forget(&self, _now: u64) {
        self.state.store(NEW, Ordering::Relaxed);
    }

    /// Puts what `new` makes of the state in its place, and tells what it is then; or what `new` would make nothing of.
    ///
    /// A thread whose swap fails tries again at once: of spinning, waiting longer each time, asking for the line to write
    /// ahead and reading the clock in other places nothing was faster for two threads beyond the noise.
    #[inline]
    fn change(&self, new: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        let mut state = self.state.load(Ordering::Relaxed);
        while let Some(changed) = new(state) {
            // Relaxed: the cell is all there is.
            match self.state.compare_exchange_weak(state, changed, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(changed),
                Err(other) => state = other,
            }
        }
        Err(state)
    }
}
