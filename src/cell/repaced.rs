//! A bucket of which the quota was changed while it ran.
//!
//! Its states count units, a fixed number of ticks each, on a clock that shows how many ticks have come back since it
//! began. A new quota changes the pace of that clock, and no state: so what a key owes, it owes in units, and from then on
//! they come back at the new rate.
//!
//! Nobody knows how often and how far the rate will be raised, so the clock goes round. In its first round every state that
//! is not behind it is ahead of it. After that a state is at most an eighth of a round ahead, and one that nobody has
//! touched or swept for the other seven eighths would be taken for one that owes; see [`SHORTEST_ROUND_NS`].

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
    /// When the pace was changed, and what the clock showed then: less than a round in the first, and between one and two
    /// ever after.
    since: u64,
    base: u64,
    /// The part of a tick beyond that, in 2^32ths.
    part: u32,
    /// The bits that a state has, and so those of the clock.
    bits: u8,
    queues: bool,
}

impl Repaced {
    /// The clock of states of `bits` bits that count units of `interval` ticks. At `now` it shows `base`, and `part` of a tick.
    pub(super) fn new(
        quota: &Quota,
        (interval, bits): (u64, u8),
        (base, part): (u64, u32),
        now: u64,
    ) -> Result<Self, BuildError> {
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
        Ok(Self { interval, capacity: capacity as u64, rate, divisor, since: now, base, part, bits, queues })
    }

    /// Ticks a unit.
    pub(super) fn interval(&self) -> u64 {
        self.interval
    }

    /// A state that owes `ticks`, or as many of them as fit.
    pub(super) fn owing(&self, now: u64, ticks: u64) -> u64 {
        let clock = self.clock(now);
        self.ahead(clock.up(), ticks.min(clock.reach))
    }

    pub(super) fn repaced(&self, quota: &Quota, now: u64) -> Result<Self, BuildError> {
        let now = now.max(self.since);
        let clock = self.clock(now);
        let base = if clock.total > u128::from(self.mask()) { clock.tick | (1 << self.bits) } else { clock.tick };
        // Below 2^32: the rest is less than the divisor.
        let part = ((u128::from(clock.rest) << 32) / u128::from(self.divisor)) as u32;
        Self::new(quota, (self.interval, self.bits), (base, part), now)
    }

    pub(super) fn to_words(self, tag: u64) -> Words {
        let Self { interval, capacity, rate, divisor, since, base, part, bits, queues } = self;
        let rest = tag | u64::from(queues) << 2 | u64::from(bits) << 8 | u64::from(part) << 32;
        [rest, interval, capacity, rate, divisor, since, base]
    }

    pub(super) fn from_words([rest, interval, capacity, rate, divisor, since, base]: Words) -> Self {
        let (bits, part, queues) = ((rest >> 8) as u8, (rest >> 32) as u32, rest & 4 != 0);
        Self { interval, capacity, rate, divisor, since, base, part, bits, queues }
    }

    fn mask(&self) -> u64 {
        (1 << self.bits) - 1
    }

    /// The part of a tick that had come back when the pace was changed, in parts of the divisor.
    #[inline]
    fn begun(&self) -> u128 {
        if self.part == 0 { 0 } else { (u128::from(self.part) * u128::from(self.divisor)) >> 32 }
    }

    /// The ticks that have come back since the pace was changed, and the rest in parts of the divisor. A moment before that
    /// counts as that moment.
    #[inline]
    fn passed(&self, now: u64) -> (u128, u64) {
        let divisor = u128::from(self.divisor);
        let product = u128::from(now.saturating_sub(self.since)) * u128::from(self.rate) + self.begun();
        // Divisions of 128 bits take longer than all the rest.
        match (u64::try_from(product), self.divisor) {
            (_, 1) => (product, 0),
            (Ok(product), divisor) => (u128::from(product / divisor), product % divisor),
            (Err(_), _) => (product / divisor, (product % divisor) as u64),
        }
    }

    #[inline]
    fn clock(&self, now: u64) -> Shown {
        let (passed, rest) = self.passed(now);
        let total = u128::from(self.base) + passed;
        let mask = self.mask();
        // In the first round nothing can be further behind than the clock has come.
        let ahead = u64::try_from(u128::from(mask).saturating_sub(total)).unwrap_or(0);
        Shown { total, tick: total as u64 & mask, rest, reach: ahead.max(mask / 8) }
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
        let divisor = u128::from(self.divisor);
        let passed = self.passed(now).0 + u128::from(ticks);
        // No overflow: a state has at most 62 bits, and so have the nanoseconds of a period.
        let nanos = (passed * divisor).saturating_sub(self.begun()).div_ceil(u128::from(self.rate));
        u64::try_from(nanos).unwrap_or(u64::MAX).saturating_add(self.since)
    }

    /// Where a charge at `now` begins to count from, what is owed by then, and how much can be owed at most.
    #[inline]
    fn start(&self, tat: u64, now: u64) -> (u64, u64, u64) {
        let clock = self.clock(now);
        match self.owed(tat, &clock) {
            0 => (clock.up() & self.mask(), 0, clock.reach),
            debt => (tat, debt, clock.reach),
        }
    }

    #[inline]
    fn owed(&self, tat: u64, clock: &Shown) -> u64 {
        let ahead = tat.wrapping_sub(clock.tick) & self.mask();
        if tat == NEW || ahead > clock.reach { 0 } else { ahead }
    }
}

/// What the clock shows at a moment.
struct Shown {
    /// All ticks since it began, or since the end of its first round if that is over.
    total: u128,
    /// The same within the round.
    tick: u64,
    /// Parts of one tick more.
    rest: u64,
    /// The most ticks that a state can be ahead.
    reach: u64,
}

impl Shown {
    /// The tick, rounded up.
    fn up(&self) -> u64 {
        self.tick + u64::from(self.rest != 0)
    }
}

impl Cell for Repaced {
    fn limit(&self) -> u64 {
        self.capacity / self.interval
    }

    fn charge(&self, tat: u64, now: u64, cost: u64) -> Option<u64> {
        let (from, debt, _) = self.start(tat, now);
        let price = cost * self.interval;
        (debt + price <= self.capacity).then(|| self.ahead(from, price))
    }

    fn force(&self, tat: u64, now: u64, cost: u64) -> u64 {
        let (from, debt, most) = self.start(tat, now);
        self.ahead(from, cost.saturating_mul(self.interval).min(most.saturating_sub(debt + 1)))
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
        self.owed(tat, &self.clock(now))
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
