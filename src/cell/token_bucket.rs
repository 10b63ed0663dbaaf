//! Token bucket as GCRA in its virtual scheduling form (ITU-T I.371, annex A).
//!
//! The state is the theoretical arrival time (TAT): the moment at which all that was admitted will have come back.
//! `new = max(TAT, now) + cost * T`, admitted when `new - now <= burst * T`, with `T` the emission interval.
//!
//! Time is counted in ticks, chosen for the quota so that `T` is a whole number of them and nothing is ever rounded
//! while units are added. Where the rate allows it a tick is `1 / L` ns for a limit `L` in lowest terms of the period,
//! which makes every decision exact in rational arithmetic. Elsewhere the clock's nanoseconds are rounded to ticks,
//! down when a decision asks and up when a bucket begins to fill, so that nothing is ever admitted early. Where a state
//! has few bits a tick may be many nanoseconds; a unit is a whole number of them all the same.

use crate::error::BuildError;
use crate::quota::Quota;
use crate::timeline::Timeline;

use super::{Cell, STATE_BITS};

#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBucket {
    /// Ticks a unit.
    interval: u64,
    /// Ticks of a full burst.
    capacity: u64,
    /// Ticks a nanosecond, times 2^`shift`.
    rate: u64,
    /// Zero where ticks are exact.
    shift: u32,
}

impl TokenBucket {
    /// A bucket that holds nothing, and takes for ever to give a unit.
    pub(super) const EMPTY: Self = Self { interval: u64::MAX, capacity: 0, rate: 1, shift: 0 };

    /// A bucket whose states have at most `bits` bits, no more than [`STATE_BITS`](super::STATE_BITS).
    pub(crate) fn new(quota: &Quota, timeline: &Timeline, bits: u32) -> Result<Self, BuildError> {
        let (limit, period) = (u128::from(quota.limit()), u128::from(quota.period_ns()));
        let burst_ns = (u128::from(quota.burst()) * period).div_ceil(limit);
        // The nanoseconds that a TAT may span, and the ticks that it can count.
        let span = u128::from(timeline.end()) + burst_ns;
        let ticks = (1_u128 << bits) - 2;
        let longest_span = (ticks * period / limit).min((1 << STATE_BITS) - 2);
        if span > longest_span {
            return Err(BuildError::HorizonTooLong {
                longest: Timeline::horizon(longest_span.saturating_sub(burst_ns)),
            });
        }
        let divisor = gcd(quota.limit(), quota.period_ns());
        let (exact_rate, exact_interval) = (quota.limit() / divisor, quota.period_ns() / divisor);
        let (interval, rate, shift) = if u128::from(exact_rate) * span <= ticks {
            (exact_interval, exact_rate, 0)
        } else {
            // At least 1, since the span is not too long; a burst of them is at most `ticks`.
            let interval = (ticks * period / (limit * span)) as u64;
            let (rate, shift) = fixed_point(u128::from(interval) * limit, quota.period_ns());
            (interval, rate, shift)
        };
        Ok(Self { interval, capacity: interval * quota.burst(), rate, shift })
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

impl Cell for TokenBucket {
    #[inline]
    fn limit(&self) -> u64 {
        self.capacity / self.interval
    }

    #[inline]
    fn charge(&self, tat: u64, now: u64, cost: u64) -> Option<u64> {
        let (tick, begin) = self.ticks(now);
        let price = cost * self.interval;
        // A new bucket has its whole burst, though its time may begin a tick later than it is asked.
        let (from, debt) = if tat > tick { (tat, tat - tick) } else { (begin, 0) };
        (debt + price <= self.capacity).then_some(from + price)
    }

    #[inline]
    fn refund(&self, tat: u64, cost: u64) -> u64 {
        tat.saturating_sub(cost.saturating_mul(self.interval))
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
}

const fn gcd(a: u64, b: u64) -> u64 {
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
