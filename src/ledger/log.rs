//! The sliding-window log, exact: at most `limit` units in any span of one period.
//!
//! Each slot of the table has `limit` units, each a word that says from when on the unit is free again. To charge is to
//! take as many free units as the cost by compare-and-swap, each for one period; a unit that was taken cannot be taken
//! again before a period is over, so no period ever holds more than the limit. Units taken after the fact beyond the
//! limit ([`Log::force`]) are taken for the time after those that are taken already.
//!
//! The state in the table tells only for how long the entry must be kept: the moment of the last charge plus 1, and in the
//! lowest bits, as many as are left over, how many periods more than one it takes from then on until all units are free.
//! That moment is also the time of the key, which never goes back when its clock does.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{Link, Place, Room, Settlement, WhenFull};
use crate::cell::{NEW, STATE_BITS, bits_for};
use crate::decision::{Decision, Numbers, Verdict};
use crate::error::BuildError;
use crate::quota::Quota;
use crate::sync::{AtomicU64, Ordering};
use crate::table::{Event, ExactSet, Found, Outcome, Rule, Shards, Table};
use crate::terms::FIRST;
use crate::timeline::Timeline;

#[derive(Debug)]
pub(crate) struct Log {
    table: Table<ExactSet>,
    /// Those of all slots, one slot after the other.
    units: Box<[AtomicU64]>,
    quota: Quota,
    limit: usize,
    period: u64,
    /// The bits of a state that count periods.
    period_bits: u32,
    when_full: WhenFull,
}

/// More bits than these would only make for longer debts.
const MOST_PERIOD_BITS: u32 = 8;

/// Keeps an entry for a period from now on, or for longer if it is kept for longer already; and then for some periods more.
#[derive(Clone, Copy)]
struct Keep<'a> {
    log: &'a Log,
    now: u64,
    more: u64,
}

impl Rule for Keep<'_> {
    fn charge(&self, state: u64) -> Option<u64> {
        let Self { log, now, more } = *self;
        let last = log.last(state).max(now);
        let until = log.idle_at(state).max(last + log.period).saturating_add(more.saturating_mul(log.period));
        let periods = (until - last).div_ceil(log.period).clamp(1, log.most_periods());
        Some(((last + 1) << log.period_bits) | (periods - 1))
    }

    /// An entry that is kept for too long does no harm.
    fn undo(&self, state: u64, _charged: u64) -> u64 {
        state
    }

    fn is_idle(&self, state: u64) -> bool {
        self.log.idle_at(state) <= self.now
    }

    /// The units that are not free.
    fn debt(&self, position: usize, _state: u64) -> u64 {
        self.log.units(position).count(|until| until > self.now)
    }

    fn displaced(&self, position: usize) {
        self.log.units(position).free_all();
    }
}

impl Log {
    pub(super) fn new(quota: &Quota, timeline: &Timeline, room: Room) -> Result<Self, BuildError> {
        let longest = (1 << STATE_BITS) - 2;
        if timeline.end() > longest {
            return Err(BuildError::HorizonTooLong { longest: Timeline::horizon(longest.into()) });
        }
        let period_bits = (STATE_BITS - bits_for(timeline.end() + 1)).min(MOST_PERIOD_BITS);
        let out_of_memory = || BuildError::OutOfMemory { capacity: room.capacity };
        let table = Table::new(room.capacity, room.shards)?;
        let limit = usize::try_from(quota.limit()).map_err(|_| out_of_memory())?;
        let count = table.slot_count().checked_mul(limit).ok_or_else(out_of_memory)?;
        let mut units = Vec::new();
        units.try_reserve_exact(count).map_err(|_| out_of_memory())?;
        units.resize_with(count, || AtomicU64::new(0));
        let (period, when_full) = (quota.period_ns(), room.when_full);
        Ok(Self { table, units: units.into_boxed_slice(), quota: *quota, limit, period, period_bits, when_full })
    }

    /// The moment of the last charge; 0 if there was none.
    fn last(&self, state: u64) -> u64 {
        (state >> self.period_bits).saturating_sub(1)
    }

    /// From when on all units of an entry are free.
    fn idle_at(&self, state: u64) -> u64 {
        if state == NEW {
            return 0;
        }
        let periods = (state & (self.most_periods() - 1)) + 1;
        self.last(state).saturating_add(periods.saturating_mul(self.period))
    }

    /// The longest for which an entry can be kept.
    fn most_periods(&self) -> u64 {
        1 << self.period_bits
    }

    pub(super) fn quota(&self) -> Quota {
        self.quota
    }

    #[inline]
    pub(super) fn limit(&self) -> u64 {
        self.limit as u64
    }

    pub(super) fn prefetch(&self, id: u64) {
        self.table.prefetch(id);
    }

    #[inline(never)]
    pub(super) fn decide(&self, id: u64, cost: u64, now: impl FnOnce() -> u64) -> Decision {
        self.prefetch(id);
        let decision = self.decide_at(0, id, cost, now());
        self.shards().count(if decision.is_allowed() { Event::Allowed } else { Event::Refused });
        decision
    }

    pub(super) fn decide_at(&self, _number: usize, id: u64, cost: u64, now: u64) -> Decision {
        loop {
            let seen = self.table.find_live(id);
            if let Some(found) = &seen {
                let (units, at) = (self.units(found.position()), self.last(found.state()).max(now));
                if units.tally(at).free < cost {
                    if found.was_of(id) {
                        return self.decision(Some((units, at)), cost, now, Verdict::Refused);
                    }
                    continue;
                }
            }
            let outcome = self.table.charge(seen, id, Keep { log: self, now, more: 0 }, self.displaces());
            if let Outcome::Crowded(state) = outcome {
                return self.crowded(state, cost, now);
            }
            if let Some(decision) = self.take(id, cost, now) {
                return decision;
            }
        }
    }

    pub(super) fn decide_batch(&self, ids: &[u64], now: u64, decisions: &mut [Decision]) -> u64 {
        let decide = |(decision, &id): (&mut Decision, &u64)| {
            *decision = self.decide_at(0, id, 1, now);
            u64::from(decision.is_allowed())
        };
        decisions.iter_mut().zip(ids).map(decide).sum()
    }

    /// Takes `cost` units of an entry that is kept for long enough; `None` if it is not, or has come to an end.
    fn take(&self, id: u64, cost: u64, now: u64) -> Option<Decision> {
        let (found, units, at) = self.kept(id, now)?;
        let until = at + self.period;
        let taken = units.take(cost, at, until);
        let is_ours = found.lives_on(id);
        let verdict = if taken == cost { Verdict::Allowed } else { Verdict::Refused };
        if !is_ours || taken < cost {
            units.give_back(taken, until, || true);
        }
        is_ours.then(|| self.decision(Some((units, at)), cost, now, verdict))
    }

    /// The entry of `id`, its units and its time, if that is not before `now`.
    fn kept(&self, id: u64, now: u64) -> Option<(Found<'_, ExactSet>, Units<'_>, u64)> {
        let found = self.table.find_live(id)?;
        let at = self.last(found.state());
        let units = self.units(found.position());
        (at >= now).then_some((found, units, at))
    }

    pub(super) fn force(&self, id: u64, cost: u64, now: u64) {
        loop {
            // As long as it could take if nothing were free: other threads may take what is.
            let more = cost.div_ceil(self.limit());
            let outcome = self.table.charge(None, id, Keep { log: self, now, more }, self.displaces());
            if matches!(outcome, Outcome::Crowded(_)) {
                return;
            }
            if let Some((found, units, at)) = self.kept(id, now) {
                let until = at + self.period;
                let taken = units.take(cost, at, until);
                units.postpone(cost - taken, at, self.period, self.most_periods(), || found.lives_on(id));
                if found.lives_on(id) {
                    return;
                }
                units.give_back(taken, until, || true);
            }
        }
    }

    /// All units of a place begin when the last of them is free, as they are admitted together.
    pub(super) fn book(&self, _number: usize, id: u64, cost: u64, now: u64) -> Result<Place, Option<Decision>> {
        loop {
            let outcome = self.table.charge(None, id, Keep { log: self, now, more: 1 }, self.displaces());
            if let Outcome::Crowded(state) = outcome {
                let decision = self.crowded(state, cost, now);
                return if decision.is_allowed() { Ok(Place::default()) } else { Err(Some(decision)) };
            }
            let Some((found, units, at)) = self.kept(id, now) else { continue };
            let ours = || found.lives_on(id);
            let (begin, taken) = units.book(cost, at, self.period, self.most_periods(), ours);
            if ours() && taken.len() as u64 == cost {
                return Ok(Place::Log { begin, units: taken });
            }
            units.restore(&taken, || true);
            if ours() {
                return Err(None);
            }
        }
    }

    pub(super) fn granted(&self, id: u64, cost: u64, now: u64) -> Decision {
        let found = self.table.find_live(id);
        let kept = found.map(|found| (self.units(found.position()), self.last(found.state()).max(now)));
        self.decision(kept, cost, now, Verdict::Allowed)
    }

    pub(super) fn replay(&self, id: u64, given: Option<(&Place, u64)>, behind: &mut [Link<'_>], now: u64) {
        self.release_all(id, behind);
        // After a period its units are others'.
        if let Some((place, _)) = given
            && let Place::Log { begin, .. } = place
            && begin.saturating_add(self.period) > now
        {
            self.release(id, place);
        }
        self.book_all(id, behind, now);
    }

    pub(super) fn postpone(&self, id: u64, links: &mut [Link<'_>], now: u64) {
        self.replay(id, None, links, now);
    }

    pub(super) fn settle(&self, id: u64, settlement: Settlement, queue: &mut [Link<'_>], now: u64) {
        self.release_all(id, queue);
        match settlement {
            Settlement::Charge(units) => self.force(id, units, now),
            Settlement::Refund(units) => self.refund(id, units, now),
        }
        self.book_all(id, queue, now);
    }

    /// Gives back the units of those whose time has not come, the last first.
    fn release_all(&self, id: u64, links: &[Link<'_>]) {
        links.iter().rev().filter(|link| !link.came).for_each(|link| self.release(id, link.place));
    }

    fn release(&self, id: u64, place: &Place) {
        if let Place::Log { units, .. } = place
            && let Some(found) = self.table.find_live(id)
        {
            self.units(found.position()).restore(units, || found.lives_on(id));
        }
    }

    /// Books them again, in order. The time of one that is too far away to be kept does not come, unless others give up.
    fn book_all(&self, id: u64, links: &mut [Link<'_>], now: u64) {
        for link in links.iter_mut().filter(|link| !link.came && !matches!(link.place, Place::Free)) {
            *link.place = self.book(FIRST, id, link.cost, now).unwrap_or(Place::Never);
        }
    }

    fn crowded(&self, state: u64, cost: u64, now: u64) -> Decision {
        if self.when_full == WhenFull::AdmitUntracked {
            let remaining = self.limit() - cost;
            let (more_after, reset_after) = (self.period, self.period);
            let numbers = Numbers { remaining, more_after, reset_after, ..Numbers::full(self.limit()) };
            return Decision::of_numbers(numbers, now, now, cost, Verdict::Allowed);
        }
        let wait = self.idle_at(state).saturating_sub(now).max(1);
        let numbers =
            Numbers { limit: self.limit(), remaining: 0, retry_after: wait, more_after: wait, reset_after: 0 };
        Decision::of_numbers(numbers, now, now, cost, Verdict::Crowded)
    }

    pub(super) fn look(&self, _number: usize, id: u64, cost: u64, now: u64) -> Decision {
        loop {
            let Some(found) = self.table.find_live(id) else {
                return self.decision(None, cost, now, Verdict::Allowable);
            };
            let (units, at) = (self.units(found.position()), self.last(found.state()).max(now));
            let verdict = if units.tally(at).free < cost { Verdict::Refused } else { Verdict::Allowable };
            let decision = self.decision(Some((units, at)), cost, now, verdict);
            if found.was_of(id) {
                return decision;
            }
        }
    }

    /// What the units say; all of them are free where there is no entry.
    fn decision(&self, kept: Option<(Units<'_>, u64)>, cost: u64, now: u64, verdict: Verdict) -> Decision {
        let Some((units, at)) = kept else {
            return Decision::of_numbers(Numbers::full(self.limit()), now, now, cost, verdict);
        };
        let Tally { free, soonest, latest } = units.tally(at);
        let retry_after = match verdict {
            Verdict::Refused if cost > free + 1 => units.when_free(cost, at, latest).saturating_sub(now).max(1),
            // At once, if another thread has given units back since.
            Verdict::Refused => soonest.saturating_sub(now).max(1),
            _ => 0,
        };
        let numbers = Numbers {
            limit: self.limit(),
            remaining: free,
            retry_after,
            more_after: soonest.saturating_sub(now),
            reset_after: latest.saturating_sub(now),
        };
        Decision::of_numbers(numbers, at, now, cost, verdict)
    }

    pub(super) fn refund(&self, id: u64, cost: u64, now: u64) {
        if let Some(found) = self.table.find_live(id) {
            let at = self.last(found.state()).max(now);
            self.units(found.position()).free_newest(cost, at, self.period, || found.lives_on(id));
        }
    }

    pub(super) fn undo(&self, _number: usize, id: u64, charged: &Decision, _now: u64) {
        if let Some(found) = self.table.find_live(id) {
            let until = charged.state() + self.period;
            self.units(found.position()).give_back(charged.granted(), until, || found.lives_on(id));
        }
    }

    pub(super) fn forget(&self, id: u64, _now: u64) {
        if let Some(found) = self.table.find_live(id) {
            self.units(found.position()).change(u64::MAX, || found.lives_on(id), |until| (until > 0).then_some(0));
        }
    }

    fn displaces(&self) -> bool {
        self.when_full == WhenFull::DisplaceLeast
    }

    fn units(&self, position: usize) -> Units<'_> {
        Units(&self.units[position * self.limit..][..self.limit])
    }

    pub(super) fn sweep(&self, sets: usize, now: u64) -> usize {
        self.table.sweep(sets, Keep { log: self, now, more: 0 })
    }

    pub(super) fn set_count(&self) -> usize {
        self.table.set_count()
    }

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.table.memory_bytes() + size_of_val(&*self.units)
    }

    #[inline]
    pub(super) fn shards(&self) -> &Shards {
        self.table.shards()
    }
}

/// A unit that was taken: from when on it was free before, and is now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    index: usize,
    old: u64,
    new: u64,
}

/// What units are at a moment.
struct Tally {
    free: u64,
    /// When the first of the others is free, and the last; 0 if there are none.
    soonest: u64,
    latest: u64,
}

/// The units of one slot: from when on each is free.
#[derive(Clone, Copy)]
struct Units<'a>(&'a [AtomicU64]);

impl<'a> Units<'a> {
    /// Acquire: pairs with the Release of `swap` and `free_all`. Who sees a unit taken or freed sees what came before.
    fn each(self) -> impl Iterator<Item = (&'a AtomicU64, u64)> {
        self.0.iter().map(|unit| (unit, unit.load(Ordering::Acquire)))
    }

    /// Puts one value in the place of another, unless somebody was faster.
    fn swap(unit: &AtomicU64, old: u64, new: u64) -> bool {
        // AcqRel: what a thread does to a unit builds on what was done to it before. Relaxed: a failure is looked at anew.
        unit.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn tally(self, at: u64) -> Tally {
        let mut tally = Tally { free: 0, soonest: u64::MAX, latest: 0 };
        for (_, until) in self.each() {
            if until <= at {
                tally.free += 1;
            } else {
                tally.soonest = tally.soonest.min(until);
                tally.latest = tally.latest.max(until);
            }
        }
        tally.soonest = tally.soonest.min(tally.latest);
        tally
    }

    /// Changes up to `count` units by `change`, which leaves a unit alone by `None`, and tells how many it were.
    ///
    /// Only while they are `ours`, which is asked after each look at a unit. Clearing a displaced slot comes between that
    /// look and the swap, or it does not: then the swap hits a unit of this key, or none.
    fn change(self, count: u64, ours: impl Fn() -> bool, change: impl Fn(u64) -> Option<u64>) -> u64 {
        let mut changed = 0;
        for (unit, until) in self.each() {
            if changed == count {
                break;
            }
            if let Some(new) = change(until)
                && ours()
                && Self::swap(unit, until, new)
            {
                changed += 1;
            }
        }
        changed
    }

    /// Takes up to `count` units that are free at `at`, and tells how many it were. A free unit looks the same whosever it
    /// is, so whether they are one's own is to be asked afterwards.
    fn take(self, count: u64, at: u64, until: u64) -> u64 {
        self.change(count, || true, |old| (old <= at).then_some(until))
    }

    /// Frees `count` of the units that were taken until `until`. Of units alike it does not matter whose are freed.
    fn give_back(self, count: u64, until: u64, ours: impl Fn() -> bool) {
        self.change(count, ours, |old| (old == until).then_some(0));
    }

    /// Takes `count` units once more for a period after that for which they are taken, the soonest free first, as far as
    /// the table keeps the entry.
    fn postpone(self, count: u64, at: u64, period: u64, most_periods: u64, ours: impl Fn() -> bool) {
        let last = at.saturating_add(most_periods.saturating_mul(period));
        let mut left = count;
        while left > 0 {
            // All that are free within a period of the soonest come before any of them comes a second time.
            let soonest = self.each().map(|(_, until)| until.max(at)).min().unwrap_or(last);
            let end = soonest.saturating_add(period);
            let round = left.min(self.count(|until| until.max(at) < end));
            let up_to = self.when_free(round, at, end);
            let later = |until: u64| until.max(at).checked_add(period).filter(|&later| later <= last);
            let changed = self.change(round, &ours, |until| if until.max(at) < up_to { later(until) } else { None });
            let changed = changed
                + self.change(round - changed, &ours, |until| if until.max(at) == up_to { later(until) } else { None });
            // Else another thread was faster.
            if changed == 0 && (!ours() || self.count(|until| later(until).is_some()) == 0) {
                return;
            }
            left -= changed;
        }
    }

    /// Takes `count` units for a period from the moment at which that many are free, the soonest free first. Tells that
    /// moment, and which they are: fewer if the table does not keep the entry for long enough, or it is not `ours`.
    fn book(self, count: u64, at: u64, period: u64, most_periods: u64, ours: impl Fn() -> bool) -> (u64, Vec<Taken>) {
        let last = at.saturating_add(most_periods.saturating_mul(period));
        let mut taken = Vec::new();
        loop {
            let begin = self.when_free(count, at, self.tally(at).latest.max(at));
            let Some(until) = begin.checked_add(period).filter(|&until| until <= last) else { return (begin, taken) };
            self.take_for(&mut taken, count, until, &ours, |old| old.max(at) < begin);
            self.take_for(&mut taken, count, until, &ours, |old| old.max(at) == begin);
            if taken.len() as u64 == count || !ours() {
                return (begin, taken);
            }
            // Another thread was faster.
            self.restore(&taken, &ours);
            taken.clear();
        }
    }

    /// Takes `which` units until there are `count`.
    fn take_for(
        self,
        taken: &mut Vec<Taken>,
        count: u64,
        new: u64,
        ours: impl Fn() -> bool,
        which: impl Fn(u64) -> bool,
    ) {
        for (index, (unit, old)) in self.each().enumerate() {
            if taken.len() as u64 == count {
                return;
            }
            if which(old) && ours() && Self::swap(unit, old, new) {
                taken.push(Taken { index, old, new });
            }
        }
    }

    /// Puts units back to what they were before they were taken, if they have not been taken again.
    fn restore(self, taken: &[Taken], ours: impl Fn() -> bool) {
        for &Taken { index, old, new } in taken.iter().rev() {
            let Some(unit) = self.0.get(index) else { return };
            if unit.load(Ordering::Acquire) == new && ours() {
                Self::swap(unit, new, old);
            }
        }
    }

    /// Frees the `count` units that were taken last, or takes a period off those that are taken for several.
    fn free_newest(self, count: u64, at: u64, period: u64, ours: impl Fn() -> bool) {
        let mut left = count;
        while left > 0 {
            // All that are free within a period of the last come before any of them comes a second time.
            let Tally { latest, .. } = self.tally(at);
            let begin = latest.saturating_sub(period).max(at);
            let round = left.min(self.count(|until| until > begin));
            let from = self.when_free((self.0.len() as u64 + 1).saturating_sub(round), at, latest);
            let freed = |until: u64| Some(if until > at + period { until - period } else { 0 });
            let changed = self.change(round, &ours, |until| if until > from { freed(until) } else { None });
            let changed =
                changed + self.change(round - changed, &ours, |until| if until == from { freed(until) } else { None });
            // Else another thread was faster.
            if changed == 0 && (!ours() || self.count(|until| until > at) == 0) {
                return;
            }
            left -= changed;
        }
    }

    fn count(self, which: impl Fn(u64) -> bool) -> u64 {
        self.each().filter(|(_, until)| which(*until)).count() as u64
    }

    /// By swaps, whatever the units are: a thread that takes one and then looks whether the slot is still its key's must
    /// either be cleared away by this or see by it that the slot is not. A load and a store would let both go unseen.
    fn free_all(self) {
        for unit in self.0 {
            // AcqRel: as in `swap`.
            unit.swap(0, Ordering::AcqRel);
        }
    }

    /// The first moment at which `count` units are free, of those from `at` to `latest`; found by halving.
    fn when_free(self, count: u64, at: u64, latest: u64) -> u64 {
        let (mut early, mut late) = (at, latest);
        while early < late {
            let middle = early.midpoint(late);
            if self.count(|until| until <= middle) >= count { late = middle } else { early = middle + 1 }
        }
        early
    }
}
