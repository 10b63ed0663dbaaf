//! Token bucket, as GCRA in its virtual scheduling form (ITU-T I.371, annex A), and leaky bucket as a queue.
//!
//! The state of both is the theoretical arrival time (TAT): the moment at which all that was admitted will have come back,
//! or leaked out. With `T` the emission interval, the new TAT is `max(TAT, now) + cost * T`, and
//!
//! - a token bucket admits what makes it at most `now + burst * T`;
//! - a leaky bucket admits what has to wait at most `burst * T`. A request waits until all but the last of its units have
//!   leaked out, `max(TAT, now) - now + (cost - 1) * T`. So it admits what a token bucket with one unit more of burst does,
//!   but what it admits is held back for as long as it waits.
//!
//! Time is counted in ticks, chosen for the quota so that `T` is a whole number of them and nothing is ever rounded
//! while units are added:
//!
//! 1. Where they fit, ticks of `1 / L` ns for a limit `L` in lowest terms of the period make every decision exact in
//!    rational arithmetic.
//! 2. Else, as many ticks a nanosecond as fit, and `T` rounded up to a whole number of them, if that makes the rate at
//!    most a millionth too slow.
//! 3. Else (odd rates of more than some 15,000 units a second, or states of few bits), ticks that are a fraction of `T`.
//!    The clock's nanoseconds are then rounded to ticks, down when a decision asks and up when a bucket begins to fill.
//!    So a burst that comes unit by unit within one tick gets its last unit with the next tick.
//!
//! In none of them is anything admitted early.

use crate::error::BuildError;
use crate::quota::{Algorithm, Quota};
use crate::timeline::Timeline;

use super::repaced::Repaced;
use super::{Cell, STATE_BITS, Words};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    /// Ticks a unit.
    interval: u64,
    /// Ticks of a full burst.
    capacity: u64,
    /// Ticks a nanosecond, times 2^`shift`.
    rate: u64,
    /// Zero where moments are never rounded.
    shift: u32,
    /// The bits that a state may have.
    bits: u8,
    /// Whether what is admitted waits: whether it is a leaky bucket.
    queues: bool,
}

impl Bucket {
    /// A bucket that holds nothing, and takes for ever to give a unit.
    pub(super) const EMPTY: Self =
        Self { interval: u64::MAX, capacity: 0, rate: 1, shift: 0, bits: STATE_BITS as u8, queues: false };

    /// A bucket whose states have at most `bits` bits, no more than [`STATE_BITS`](super::STATE_BITS).
    pub(crate) fn new(quota: &Quota, timeline: &Timeline, bits: u32) -> Result<Self, BuildError> {
        let (limit, period) = (u128::from(quota.limit()), u128::from(quota.period_ns()));
        let queues = quota.algorithm() == Algorithm::LeakyBucket;
        let burst = quota.burst() + u64::from(queues);
        let burst_ns = (u128::from(burst) * period).div_ceil(limit);
        // The nanoseconds that a TAT may span, and the ticks that it can count.
        let span = u128::from(timeline.end()) + burst_ns;
        let ticks = (1_u128 << bits) - 2;
        let longest_span = (ticks * period / limit).min((1 << STATE_BITS) - 2);
        if span > longest_span {
            return Err(too_long(quota, burst_ns, longest_span));
        }
        let (interval, rate, shift) = exact_ticks(quota, span, ticks)
            .or_else(|| whole_ticks(quota, span, ticks))
            .map_or_else(|| fitted_ticks(quota, span, ticks), |(interval, rate)| (interval, rate, 0));
        Ok(Self { interval, capacity: interval * burst, rate, shift, bits: bits as u8, queues })
    }

    /// Ticks a unit.
    pub(super) fn interval(&self) -> u64 {
        self.interval
    }

    /// A state that owes `ticks`, or as many of them as fit.
    pub(super) fn owing(&self, now: u64, ticks: u64) -> u64 {
        self.ticks(now).1.saturating_add(ticks).min((1 << self.bits) - 1)
    }

    /// The bucket of another quota from `now` on, for the same states.
    pub(super) fn repaced(&self, quota: &Quota, now: u64) -> Result<Repaced, BuildError> {
        Repaced::new(quota, (self.interval, self.bits), (self.tick(now), self.part(now)), now)
    }

    pub(super) fn to_words(self, tag: u64) -> Words {
        let Self { interval, capacity, rate, shift, bits, queues } = self;
        let rest = tag | u64::from(queues) << 2 | u64::from(bits) << 8 | u64::from(shift) << 16;
        [rest, interval, capacity, rate, 0, 0, 0]
    }

    pub(super) fn from_words([rest, interval, capacity, rate, ..]: Words) -> Self {
        let (bits, shift) = ((rest >> 8) as u8, (rest >> 16) as u32);
        Self { interval, capacity, rate, shift, bits, queues: rest & 4 != 0 }
    }

    /// The ticks at `now`, rounded down and up. Rounding the rate and the tick down can only delay a refill.
    #[inline]
    fn ticks(&self, now: u64) -> (u64, u64) {
        // A branch rather than a shift by zero: it is always predicted, and takes the 128-bit shift out of the chain
        // between reading the clock and the compare-and-swap.
        if self.shift == 0 {
            let tick = now * self.rate;
            return (tick, tick);
        }
        let product = u128::from(now) * u128::from(self.rate);
        let down = (product >> self.shift) as u64;
        let rest = product as u64 & ((1 << self.shift) - 1);
        (down, down + u64::from(rest != 0))
    }

    /// The part of a tick that has gone by at `now`, in 2^32ths, rounded down.
    fn part(&self, now: u64) -> u32 {
        let rest = (u128::from(now) * u128::from(self.rate)) & ((1 << self.shift) - 1);
        // Below 2^32: the rest is less than 2^`shift`.
        ((rest << 32) >> self.shift) as u32
    }

    /// Where a charge at `now` begins to count from, and what is owed by then.
    #[inline]
    fn start(&self, tat: u64, now: u64) -> (u64, u64) {
        let (tick, begin) = self.ticks(now);
        // A new bucket has its whole burst, though its time may begin a tick later than it is asked.
        if tat > tick { (tat, tat - tick) } else { (begin, 0) }
    }

    /// The tick at `now`, rounded down.
    #[inline]
    fn tick(&self, now: u64) -> u64 {
        self.ticks(now).0
    }

    /// The first nanosecond at which [`tick`](Self::tick) is at least `tick`.
    fn first_ns(&self, tick: u64) -> u64 {
        let nanos = (u128::from(tick) << self.shift).div_ceil(u128::from(self.rate));
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }
}

impl Cell for Bucket {
    #[inline]
    fn limit(&self) -> u64 {
        self.capacity / self.interval
    }

    #[inline]
    fn charge(&self, tat: u64, now: u64, cost: u64) -> Option<u64> {
        let (from, debt) = self.start(tat, now);
        let price = cost * self.interval;
        (debt + price <= self.capacity).then_some(from + price)
    }

    fn force(&self, tat: u64, now: u64, cost: u64) -> u64 {
        let (from, _) = self.start(tat, now);
        from.saturating_add(cost.saturating_mul(self.interval)).min((1 << self.bits) - 1)
    }

    fn refund(&self, tat: u64, _now: u64, cost: u64) -> u64 {
        tat.saturating_sub(cost.saturating_mul(self.interval))
    }

    /// What has come back of it already is not given once more. As far as is known: if others have charged since, they may
    /// have done so before anything came back, or after.
    fn undo(&self, tat: u64, now: u64, charged: u64, cost: u64) -> u64 {
        let price = cost.saturating_mul(self.interval);
        tat.saturating_sub(if tat == charged { price } else { price.min(self.debt(charged, now)) })
    }

    #[inline]
    fn is_idle(&self, tat: u64, now: u64) -> bool {
        tat <= self.tick(now)
    }

    fn debt(&self, tat: u64, now: u64) -> u64 {
        tat.saturating_sub(self.tick(now))
    }

    fn remaining(&self, tat: u64, now: u64) -> u64 {
        self.capacity.saturating_sub(self.debt(tat, now)) / self.interval
    }

    fn admitted_at(&self, tat: u64, _now: u64, cost: u64) -> u64 {
        self.first_ns((tat + cost * self.interval).saturating_sub(self.capacity))
    }

    fn idle_at(&self, tat: u64, _now: u64) -> u64 {
        self.first_ns(tat)
    }

    /// Until all but the last of its units have leaked out.
    fn delay(&self, tat: u64, now: u64, cost: u64) -> u64 {
        let queues = self.queues && cost > 0;
        if queues { self.first_ns(tat.saturating_sub(self.interval)).saturating_sub(now) } else { 0 }
    }
}

/// What is to be shortened where a horizon and a burst together are longer than states can span: the burst if it takes
/// more than half of that by itself.
fn too_long(quota: &Quota, burst_ns: u128, longest_span: u128) -> BuildError {
    let largest = longest_span / 2 * u128::from(quota.limit()) / u128::from(quota.period_ns());
    let besides = u64::from(quota.algorithm() == Algorithm::LeakyBucket);
    let largest = u64::try_from(largest).unwrap_or(u64::MAX).saturating_sub(besides).max(1);
    if quota.burst() > largest {
        return BuildError::BurstTooLong { burst: quota.burst(), largest };
    }
    BuildError::HorizonTooLong { longest: Timeline::horizon(longest_span.saturating_sub(burst_ns)) }
}

/// Ticks a unit and ticks a nanosecond with which nothing is ever rounded, if `ticks` of them cover `span` nanoseconds. No
/// longer than it takes for a unit to be fine enough, if that can be had, so that little is lost if the quota is changed.
fn exact_ticks(quota: &Quota, span: u128, ticks: u128) -> Option<(u64, u64)> {
    let divisor = gcd(quota.limit(), quota.period_ns());
    let (rate, interval) = (quota.limit() / divisor, quota.period_ns() / divisor);
    let finer = (ticks / (u128::from(rate) * span)).min(FINE.div_ceil(interval.into())) as u64;
    (finer > 0).then_some((interval * finer, rate * finer))
}

/// The least ticks a unit with which rounding it up makes the rate at most a millionth too slow.
const FINE: u128 = 1_000_000;

/// Whole ticks a nanosecond, as many as possible, and a unit rounded up to a whole number of them; if it is still fine
/// enough. A moment is never rounded, so a burst is whole whenever it comes.
fn whole_ticks(quota: &Quota, span: u128, ticks: u128) -> Option<(u64, u64)> {
    // A burst is longer by its rounding, at most one in FINE - 1.
    let rate = ticks / (span + span / (FINE - 1) + 1);
    let interval = (rate * u128::from(quota.period_ns())).div_ceil(u128::from(quota.limit()));
    (interval >= FINE).then_some((interval as u64, rate as u64))
}

/// Ticks of such a length that a unit is a whole number of them, and `ticks` cover `span` nanoseconds: ticks a unit,
/// and ticks a nanosecond times a power of two.
fn fitted_ticks(quota: &Quota, span: u128, ticks: u128) -> (u64, u64, u32) {
    let (limit, period) = (u128::from(quota.limit()), u128::from(quota.period_ns()));
    // At least 1, since the span is not too long; a burst of them is at most `ticks`.
    let interval = (ticks * period / (limit * span)) as u64;
    let (rate, shift) = fixed_point(u128::from(interval) * limit, quota.period_ns());
    (interval, rate, shift)
}

pub(super) const fn gcd(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// `numerator / denominator`, rounded down, as a number of at most 63 bits and a power of two to divide it by.
fn fixed_point(numerator: u128, denominator: u64) -> (u64, u32) {
    let denominator = u128::from(denominator);
    // Below 2^62: the quotient is a number of ticks a nanosecond.
    let whole = numerator / denominator;
    let shift = 63 - (u128::BITS - whole.leading_zeros());
    let fraction = ((numerator % denominator) << shift) / denominator;
    (((whole << shift) | fraction) as u64, shift)
}
