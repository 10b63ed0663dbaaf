//! A bucket of which the quota was changed while it ran.
//!
//! Its states count units, a fixed number of ticks each, on a clock that shows how many ticks have come back since it
//! began. A new quota changes the pace of that clock, and no state: so what a key owes, it owes in units, and from then on
//! they come back at the new rate.
//!
//! Nobody knows how often and how far the rate will be raised, so the clock goes round, and a state is owed for no longer
//! than an eighth of a round. One that nobody has touched or swept for the other seven eighths would be taken for one that
//! owes; see [`SHORTEST_ROUND_NS`].

use crate::error::BuildError;
use crate::quota::{Algorithm, Quota};

use super::bucket::gcd;
use super::{Cell, NEW, Words};

/// A round is never shorter than an hour, so that any sweep comes first.
const SHORTEST_ROUND_NS: u128 = 3_600_000_000_000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Repaced {
    /// Ticks a unit.
    interval: u64,
    /// Ticks of a full burst.
    capacity: u64,
    /// So many ticks ...
    rate: u64,
    /// ... come back in so many nanoseconds.
    divisor: u64,
    /// When the pace was changed, and what the clock showed then.
    since: u64,
    base: u64,
    /// The bits that a state has, and so those of the clock.
    bits: u8,
    queues: bool,
}

impl Repaced {
    /// The clock of states of `bits` bits that count units of `interval` ticks, when it shows `base` at `now`.
    pub(super) fn new(quota: &Quota, interval: u64, bits: u8, base: u64, now: u64) -> Result<Self, BuildError> {
        let queues = quota.algorithm() == Algorithm::LeakyBucket;
        let (limit, period) = (u128::from(quota.limit()), u128::from(quota.period_ns()));
        let out_of_reach = || BuildError::OutOfReach { quota: *quota };
        let burst = u128::from(quota.burst()) + u128::from(queues);
        let capacity = burst.checked_mul(interval.into()).ok_or_else(out_of_reach)?;
        let round = 1_u128 << bits;
        // No overflow: both are below 2^64.
        let ticks = u128::from(interval) * limit;
        let shortest = ticks.checked_mul(SHORTEST_ROUND_NS).ok_or_else(out_of_reach)? / period;
        if shortest > round || capacity > round / 16 {
            return Err(out_of_reach());
        }
        let divisor = gcd_wide(ticks, period);
        let (rate, divisor) = fitted(ticks / divisor, period / divisor);
        Ok(Self { interval, capacity: capacity as u64, rate, divisor, since: now, base, bits, queues })
    }

    /// Ticks a unit.
    pub(super) fn interval(&self) -> u64 {
        self.interval
    }

    /// A state that owes `ticks`, or as many of them as fit.
    pub(super) fn owing(&self, now: u64, ticks: u64) -> u64 {
        self.ahead(self.ticks(now).1, ticks.min(self.reach()))
    }

    pub(super) fn repaced(&self, quota: &Quota, now: u64) -> Result<Self, BuildError> {
        Self::new(quota, self.interval, self.bits, self.ticks(now).0, now.max(self.since))
    }

    pub(super) fn to_words(self, tag: u64) -> Words {
        let Self { interval, capacity, rate, divisor, since, base, bits, queues } = self;
        [tag | u64::from(queues) << 2 | u64::from(bits) << 8, interval, capacity, rate, divisor, since, base]
    }

    pub(super) fn from_words([rest, interval, capacity, rate, divisor, since, base]: Words) -> Self {
        Self { interval, capacity, rate, divisor, since, base, bits: (rest >> 8) as u8, queues: rest & 4 != 0 }
    }

    fn mask(&self) -> u64 {
        (1 << self.bits) - 1
    }

    /// The most ticks that can be owed.
    fn reach(&self) -> u64 {
        self.mask() / 8
    }

    /// The ticks that have come back since the pace was changed, and whether there is a part of one more. A moment before
    /// that counts as that moment.
    #[inline]
    fn passed(&self, now: u64) -> (u128, bool) {
        let product = u128::from(now.saturating_sub(self.since)) * u128::from(self.rate);
        // Divisions of 128 bits take longer than all the rest.
        match (u64::try_from(product), self.divisor) {
            (_, 1) => (product, false),
            (Ok(product), divisor) => (u128::from(product / divisor), product % divisor != 0),
            (Err(_), divisor) => (product / u128::from(divisor), product % u128::from(divisor) != 0),
        }
    }

    /// What the clock shows at `now`, rounded down and up.
    fn ticks(&self, now: u64) -> (u64, u64) {
        let (passed, more) = self.passed(now);
        // The clock goes round.
        let tick = self.base.wrapping_add(passed as u64);
        (tick & self.mask(), tick.wrapping_add(more.into()) & self.mask())
    }

    /// `ticks` after `tick`, but never [`NEW`], which owes nothing whatever the clock shows.
    fn ahead(&self, tick: u64, ticks: u64) -> u64 {
        (tick.wrapping_add(ticks) & self.mask()).max(NEW + 1)
    }

    /// A state that owes so many ticks less, if it owes any.
    fn without(&self, tat: u64, now: u64, ticks: u64) -> u64 {
        match self.debt(tat, now) {
            0 => tat,
            debt => self.ahead(tat, ticks.min(debt).wrapping_neg()),
        }
    }

    /// The first nanosecond at which `ticks` more than at `now` have come back.
    fn after(&self, now: u64, ticks: u64) -> u64 {
        let passed = self.passed(now).0 + u128::from(ticks);
        // No overflow: a state has at most 62 bits, and so have the nanoseconds of a period.
        let nanos = (passed * u128::from(self.divisor)).div_ceil(u128::from(self.rate));
        u64::try_from(nanos).unwrap_or(u64::MAX).saturating_add(self.since)
    }

    /// Where a charge at `now` begins to count from, and what is owed by then.
    fn start(&self, tat: u64, now: u64) -> (u64, u64) {
        let (tick, begin) = self.ticks(now);
        match self.owed(tat, tick) {
            0 => (begin, 0),
            debt => (tat, debt),
        }
    }

    /// What is owed when the clock shows `tick`.
    #[inline]
    fn owed(&self, tat: u64, tick: u64) -> u64 {
        let ahead = tat.wrapping_sub(tick) & self.mask();
        if tat == NEW || ahead > self.reach() { 0 } else { ahead }
    }
}

impl Cell for Repaced {
    fn limit(&self) -> u64 {
        self.capacity / self.interval
    }

    fn charge(&self, tat: u64, now: u64, cost: u64) -> Option<u64> {
        let (from, debt) = self.start(tat, now);
        let price = cost * self.interval;
        (debt + price <= self.capacity).then(|| self.ahead(from, price))
    }

    fn force(&self, tat: u64, now: u64, cost: u64) -> u64 {
        let (from, debt) = self.start(tat, now);
        self.ahead(from, cost.saturating_mul(self.interval).min(self.reach() - debt))
    }

    fn refund(&self, tat: u64, now: u64, cost: u64) -> u64 {
        self.without(tat, now, cost.saturating_mul(self.interval))
    }

    fn undo(&self, tat: u64, now: u64, charged: u64, cost: u64) -> u64 {
        let price = cost.saturating_mul(self.interval);
        self.without(tat, now, if tat == charged { price } else { price.min(self.debt(charged, now)) })
    }

    fn is_idle(&self, tat: u64, now: u64) -> bool {
        self.debt(tat, now) == 0
    }

    fn debt(&self, tat: u64, now: u64) -> u64 {
        self.owed(tat, self.ticks(now).0)
    }

    fn remaining(&self, tat: u64, now: u64) -> u64 {
        self.capacity.saturating_sub(self.debt(tat, now)) / self.interval
    }

    fn admitted_at(&self, tat: u64, now: u64, cost: u64) -> u64 {
        self.after(now, (self.debt(tat, now) + cost * self.interval).saturating_sub(self.capacity))
    }

    fn idle_at(&self, tat: u64, now: u64) -> u64 {
        match self.debt(tat, now) {
            0 => 0,
            debt => self.after(now, debt),
        }
    }

    fn delay(&self, tat: u64, now: u64, cost: u64) -> u64 {
        if !self.queues || cost == 0 {
            return 0;
        }
        match self.debt(tat, now).saturating_sub(self.interval) {
            0 => 0,
            ticks => self.after(now, ticks).saturating_sub(now),
        }
    }
}

fn gcd_wide(a: u128, b: u128) -> u128 {
    // The second is below 2^62.
    let rest = (a % b) as u64;
    gcd(b as u64, rest).into()
}

/// The fraction in numbers of 64 bits; where it does not fit, one that is a little less.
fn fitted(numerator: u128, denominator: u128) -> (u64, u64) {
    let excess = (u128::BITS - numerator.leading_zeros()).saturating_sub(u64::BITS);
    ((numerator >> excess) as u64, (denominator.div_ceil(1 << excess)) as u64)
}
