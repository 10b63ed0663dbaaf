//! Leases: slices of the budgets of clients, which were taken at once and are spent here.

use std::iter;
use std::time::Duration;

use tokio::sync::Notify;

use crate::cell::NEW;
use crate::error::BuildError;
use crate::table::{ExactSet, Outcome, Rule, Table};

/// How much of each client's budget a server may take at a time, to be spent without asking Redis again.
///
/// The size of the slices follows the demand: it begins with one unit, doubles whenever a slice is spent before it
/// lapses, and is halved whenever some of it lapses. Of a budget that has less than that, as much is taken as there is. Only one
/// check of a client asks for a slice at a time; others wait for what it brings. What lapses is lost to the client, not given
/// back.
///
/// With `n` servers and slices of at most `m` units that last for `t`:
///
/// * **Over-admission**: in any window at most `n * (m - 1)` units more than the quota admits by itself: those taken before
///   the window and spent in it. None with fixed windows, as slices lapse with the window.
/// * **Under-admission**: at most `n * (m - 1)` units in each `t`: those that lie with servers who do not need them while
///   others are refused.
///
/// A server that gets nothing to spend asks again after `t` divided by the size of the slice that it had wanted, and refuses until
/// then; else each refused check of a fleet would be a trip where units come back fast. So at most for `t` nobody may be
/// there to take what comes back, which is lost if it is more than the burst: let `t` be no longer than the burst takes to
/// come back. (No pause if refusals are not [remembered](super::RedisBuilder::remember).)
///
/// ```
/// use std::time::Duration;
/// use tollgate::redis::Lease;
///
/// let lease = Lease::new(100, Duration::from_millis(200));
/// assert_eq!((lease.most(), lease.lasts()), (100, Duration::from_millis(200)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    most: u32,
    lasts: Duration,
}

impl Lease {
    /// The largest slice that there can be, in units.
    pub const LARGEST: u32 = (1 << LEFT_BITS) - 1;

    /// Slices of at most `most` units, at least 1 and at most [`LARGEST`](Self::LARGEST), which lapse after `lasts`. (A slice of
    /// one unit is no slice: every check asks Redis.)
    #[must_use]
    pub const fn new(most: u32, lasts: Duration) -> Self {
        let most = if most == 0 { 1 } else { most };
        Self { most: if most > Self::LARGEST { Self::LARGEST } else { most }, lasts }
    }

    /// The largest slice, in units.
    #[must_use]
    pub const fn most(&self) -> u32 {
        self.most
    }

    /// For how long a slice may be spent.
    #[must_use]
    pub const fn lasts(&self) -> Duration {
        self.lasts
    }
}

const BELLS: u64 = 64;

const LEFT_BITS: u32 = 20;
const SIZE_BITS: u32 = 5;
const UNTIL_SHIFT: u32 = LEFT_BITS + SIZE_BITS + 1;
/// A tick is some four milliseconds, so that there are enough of them for nine years. After that nothing is leased any more.
const TICK_SHIFT: u32 = 22;
const UNTIL_BITS: u32 = crate::cell::STATE_BITS - UNTIL_SHIFT;

/// The state of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Slice {
    /// The tick from which on it has lapsed.
    until: u64,
    left: u64,
    /// Whether somebody is asking for the next.
    is_asked_for: bool,
    /// The next is to be of 2^`size` units.
    size: u32,
}

impl Slice {
    fn of(state: u64) -> Self {
        Self {
            until: state >> UNTIL_SHIFT,
            left: state & ((1 << LEFT_BITS) - 1),
            is_asked_for: state >> LEFT_BITS & 1 != 0,
            size: (state >> (LEFT_BITS + 1)) as u32 & ((1 << SIZE_BITS) - 1),
        }
    }

    fn state(self) -> u64 {
        let until = self.until.min((1 << UNTIL_BITS) - 1);
        until << UNTIL_SHIFT
            | u64::from(self.size) << (LEFT_BITS + 1)
            | u64::from(self.is_asked_for) << LEFT_BITS
            | self.left
    }
}

#[derive(Debug)]
pub(super) struct Purse {
    table: Table<ExactSet>,
    /// Rung when somebody has asked for a slice: a client has that of its hash.
    bells: Box<[Notify]>,
    lease: Lease,
    /// The clock's moment at which ticks begin.
    begin: u64,
}

#[derive(Clone, Copy)]
enum Deed {
    Spend(u64),
    /// Begins to ask for a slice.
    Ask,
    /// Ends that: with so much, which lasts until this tick, of a slice that is or was to be of 2^this units.
    Fill(u64, u64, u32),
    /// Ends that, with nothing.
    GiveUp,
}

#[derive(Clone, Copy)]
struct Touch {
    tick: u64,
    /// Ticks for which a size is remembered after a slice has lapsed.
    memory: u64,
    most: u64,
    deed: Deed,
}

impl Rule for Touch {
    fn charge(&self, state: u64) -> Option<u64> {
        let slice = Slice::of(if self.is_idle(state) { NEW } else { state });
        let has_lapsed = slice.until <= self.tick;
        let next = match self.deed {
            Deed::Spend(units) if !has_lapsed && slice.left >= units => Slice { left: slice.left - units, ..slice },
            // Whoever asked long ago will not come back.
            Deed::Ask if !slice.is_asked_for || has_lapsed && slice.until + self.memory <= self.tick => {
                let size = match (has_lapsed, slice.left) {
                    (true, 0) => slice.size,
                    (true, _) => slice.size.saturating_sub(1),
                    (false, _) if 1 << slice.size < self.most => slice.size + 1,
                    (false, _) => slice.size,
                };
                let until = if has_lapsed { self.tick } else { slice.until };
                let left = if has_lapsed { 0 } else { slice.left };
                Slice { until, left, is_asked_for: true, size }
            }
            Deed::Fill(units, until, size) => {
                // What was left of the slice before, too little for a request, lapses now: it must not last longer.
                Slice { until, left: units.min(self.most), is_asked_for: false, size: slice.size.min(size) }
            }
            Deed::GiveUp => Slice { is_asked_for: false, size: slice.size.saturating_sub(1), ..slice },
            _ => return None,
        };
        Some(next.state())
    }

    fn undo(&self, state: u64, _charged: u64) -> u64 {
        state
    }

    fn is_idle(&self, state: u64) -> bool {
        state == NEW || Slice::of(state).until.saturating_add(self.memory) <= self.tick
    }

    fn debt(&self, _position: usize, state: u64) -> u64 {
        Slice::of(state).until.saturating_sub(self.tick)
    }
}

impl Purse {
    pub(super) fn new(capacity: usize, lease: Lease, now: u64) -> Result<Self, BuildError> {
        let bells = (0..BELLS).map(|_| Notify::new()).collect();
        Ok(Self { table: Table::new(capacity, 1)?, bells, lease, begin: now })
    }

    /// Tells that an answer has come for somebody, who may be this client.
    pub(super) fn bell(&self, id: u64) -> &Notify {
        &self.bells[(id % BELLS) as usize]
    }

    /// Rounded down. The first is 1, so that a state of ours is never [`NEW`].
    fn tick(&self, now: u64) -> u64 {
        (now.saturating_sub(self.begin) >> TICK_SHIFT) + 1
    }

    fn touch(&self, now: u64, deed: Deed) -> Touch {
        let memory = (self.nanos() >> TICK_SHIFT) + 1;
        Touch { tick: self.tick(now), memory, most: self.lease.most.into(), deed }
    }

    fn nanos(&self) -> u64 {
        u64::try_from(self.lease.lasts.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Spends of the slice that is there; tells what is left of it.
    pub(super) fn spend(&self, id: u64, cost: u64, now: u64) -> Option<u64> {
        match self.table.amend(id, self.touch(now, Deed::Spend(cost)))? {
            Outcome::Charged(state) => Some(Slice::of(state).left),
            _ => None,
        }
    }

    /// Begins to ask for a slice, unless somebody else does already: tells how large it is to be.
    pub(super) fn ask(&self, id: u64, now: u64) -> Option<Asking<'_>> {
        match self.table.charge(None, id, self.touch(now, Deed::Ask), true) {
            Outcome::Charged(state) => {
                let units = (1 << Slice::of(state).size).min(self.lease.most.into());
                Some(Asking { purse: self, id, now, units, filled: None })
            }
            _ => None,
        }
    }
}

/// Somebody who asks for a slice; nobody else does until this is dropped.
pub(super) struct Asking<'a> {
    purse: &'a Purse,
    id: u64,
    now: u64,
    /// How large it is to be.
    pub(super) units: u64,
    filled: Option<Deed>,
}

impl Asking<'_> {
    /// For how long Redis is not asked again if there is nothing: the longer, the less there was before.
    pub(super) fn pause(&self) -> Duration {
        Duration::from_nanos(self.purse.nanos() / self.units)
    }

    /// What to ask for, for a request of this cost, the best first: the slice, or as much of it as there is, or only the cost.
    pub(super) fn costs(&self, cost: u64) -> Vec<u64> {
        let parts = iter::successors(Some(self.units), |units| Some(units / 2));
        parts.take_while(|&units| units > cost).chain([cost]).collect()
    }

    /// A slice of so many units has come, of which `left` may be spent for as long as slices last, and no longer than `most`
    /// nanoseconds.
    pub(super) fn fill(mut self, units: u64, left: u64, most: u64) {
        let until = self.now.saturating_add(self.purse.nanos().min(most));
        let size = if units < self.units { units.max(1).ilog2() } else { u32::MAX };
        self.filled = Some(Deed::Fill(left, self.purse.tick(until), size));
    }
}

/// Also if the check is given up.
impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let deed = self.filled.unwrap_or(Deed::GiveUp);
        self.purse.table.amend(self.id, self.purse.touch(self.now, deed));
        self.purse.bell(self.id).notify_waiters();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn purse() -> Purse {
        Purse::new(100, Lease::new(100, Duration::from_secs(1)), 0).unwrap()
    }

    #[test]
    fn slices_double_while_they_are_spent_and_shrink_when_they_lapse() {
        let purse = purse();
        let mut sizes = Vec::new();
        for _ in 0..9 {
            let asking = purse.ask(1, 0).unwrap();
            let units = asking.units;
            sizes.push(units);
            asking.fill(units, 0, u64::MAX);
        }
        assert_eq!(sizes, [1, 2, 4, 8, 16, 32, 64, 100, 100]);
        let asking = purse.ask(1, 0).unwrap();
        asking.fill(100, 99, u64::MAX);
        assert_eq!(purse.spend(1, 9, SECOND / 2), Some(90));
        assert_eq!(purse.spend(1, 91, SECOND / 2), None);
        assert_eq!(purse.spend(1, 1, SECOND + SECOND / 2), None, "it has lapsed");
        assert_eq!(purse.ask(1, SECOND + SECOND / 2).unwrap().units, 64);
        assert_eq!(purse.ask(1, 10 * SECOND).unwrap().units, 1, "it was forgotten");
    }

    #[test]
    fn one_at_a_time_asks() {
        let purse = purse();
        let asking = purse.ask(1, 0).unwrap();
        assert!(purse.ask(1, 0).is_none());
        assert!(purse.ask(2, 0).is_some(), "for another");
        drop(asking);
        assert!(purse.ask(1, 0).is_some());
    }
}
