//! A quota as the script sees it: what it is told, and what its answers mean.

use redis::Cmd;

use super::builder::RedisBuildError;
use crate::decision::{Decision, Numbers, Verdict};
use crate::quota::{Algorithm, Quota};

const MICROSECOND: u64 = 1_000;

/// A log has a member for each unit, which takes some 100 bytes.
const MOST_IN_LOG: u64 = 100_000;

/// The script's numbers are doubles, and it adds two of these.
const LARGEST: u64 = 1 << 52;

#[derive(Clone, Debug)]
pub(super) struct Terms {
    quota: Quota,
    /// The most units at once.
    limit: u64,
    /// In microseconds.
    period: u64,
    bucket: Bucket,
}

/// Ticks in which nothing is ever rounded: a whole number of them is a unit, and another a microsecond.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    unit: u128,
    microsecond: u128,
}

/// What the script tells of a quota.
pub(super) type Told = [u64; 4];

impl Terms {
    pub(super) fn new(quota: &Quota) -> Result<Self, RedisBuildError> {
        quota.validate()?;
        let (limit, period_ns) = (quota.limit(), quota.period_ns());
        let bucket = Bucket::new(limit, period_ns);
        let largest = match quota.algorithm() {
            Algorithm::SlidingWindowLog => MOST_IN_LOG,
            _ => LARGEST,
        };
        if limit > largest {
            return Err(RedisBuildError::LimitTooLarge { quota: *quota, largest });
        }
        let is_bucket = quota.algorithm().takes_burst();
        if is_bucket && bucket.microsecond > u128::from(LARGEST) {
            return Err(RedisBuildError::TooFine { quota: *quota });
        }
        if !is_bucket && !period_ns.is_multiple_of(MICROSECOND) {
            return Err(RedisBuildError::TooFine { quota: *quota });
        }
        let queues = u64::from(quota.algorithm() == Algorithm::LeakyBucket);
        Ok(Self { quota: *quota, limit: quota.burst() + queues, period: period_ns / MICROSECOND, bucket })
    }

    /// The most units at once.
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Whether nothing of a window counts when the next begins.
    pub(super) fn is_fixed(&self) -> bool {
        self.quota.algorithm() == Algorithm::FixedWindow
    }

    /// What the script reads.
    pub(super) fn write(&self, costs: &[u64], command: &mut Cmd) {
        let name = match self.quota.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => "bucket",
            Algorithm::FixedWindow => "fixed",
            Algorithm::SlidingWindowCounter => "counter",
            Algorithm::SlidingWindowLog => "log",
        };
        command.arg(name);
        if !self.quota.algorithm().takes_burst() {
            command.arg(self.limit).arg(self.period);
            return;
        }
        command.arg(self.bucket.microsecond as u64);
        for units in [1, self.limit].into_iter().chain(costs.iter().copied()) {
            let (us, part) = self.bucket.span(units);
            command.arg(us).arg(part);
        }
    }

    /// Whether this quota would have admitted a request of this cost.
    pub(super) fn admits(&self, told: &Told, cost: u64) -> bool {
        self.numbers(told, cost).remaining >= cost
    }

    fn numbers(&self, told: &Told, cost: u64) -> Numbers {
        match self.quota.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => self.of_debt(self.bucket.ticks(told), cost),
            Algorithm::FixedWindow => self.of_window(told[0], told[1], cost),
            Algorithm::SlidingWindowCounter => Count::of(self, told).numbers(cost),
            Algorithm::SlidingWindowLog => self.of_log(told),
        }
    }

    /// What an answer means for a request of this cost.
    pub(super) fn decision(&self, told: &Told, cost: u64, verdict: Verdict) -> Decision {
        let numbers = self.numbers(told, cost);
        let retry_after = if verdict == Verdict::Refused { nanos(numbers.retry_after).max(1) } else { 0 };
        let numbers = Numbers {
            retry_after,
            more_after: nanos(numbers.more_after),
            reset_after: nanos(numbers.reset_after),
            ..numbers
        };
        let is_queue = self.quota.algorithm() == Algorithm::LeakyBucket && verdict == Verdict::Allowed;
        let delay = if is_queue { self.bucket.delay(told) } else { 0 };
        Decision::of_numbers(numbers, 0, 0, cost, verdict).delayed(nanos(delay))
    }

    /// The refusal of a request that has to wait for so many nanoseconds, as far as that tells how the quota stands.
    pub(super) fn refusal(&self, wait: u64, cost: u64) -> Decision {
        let numbers = match self.quota.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                // All but the cost is owed when it is over.
                let Bucket { unit, microsecond } = self.bucket;
                let rest = u128::from(self.limit.saturating_sub(cost)) * unit;
                let numbers = self.of_debt(u128::from(wait.div_ceil(MICROSECOND)) * microsecond + rest, cost);
                let (more_after, reset_after) = (nanos(numbers.more_after), nanos(numbers.reset_after));
                Numbers { retry_after: wait, more_after: more_after.min(wait), reset_after, ..numbers }
            }
            _ => Numbers { limit: self.limit, remaining: 0, retry_after: wait, more_after: wait, reset_after: wait },
        };
        Decision::of_numbers(numbers, 0, 0, cost, Verdict::Refused)
    }

    /// Of a bucket that owes so many ticks.
    fn of_debt(&self, debt: u128, cost: u64) -> Numbers {
        let Bucket { unit, microsecond } = self.bucket;
        let capacity = u128::from(self.limit) * unit;
        // At most the limit.
        let remaining = (capacity.saturating_sub(debt) / unit) as u64;
        let wait = |units: u64| microseconds((debt + u128::from(units) * unit).saturating_sub(capacity), microsecond);
        Numbers {
            limit: self.limit,
            remaining,
            retry_after: wait(cost),
            more_after: if remaining < self.limit { wait(remaining + 1) } else { 0 },
            reset_after: microseconds(debt, microsecond),
        }
    }

    fn of_window(&self, count: u64, end: u64, cost: u64) -> Numbers {
        let remaining = self.limit.saturating_sub(count);
        // Until so many windows are over, the current one included.
        let over = |windows: u64| {
            windows.checked_sub(1).map_or(0, |more| end.saturating_add(more.saturating_mul(self.period)))
        };
        let wait = |units: u64| over((count + units).saturating_sub(self.limit).div_ceil(self.limit));
        Numbers {
            limit: self.limit,
            remaining,
            retry_after: wait(cost),
            more_after: if remaining < self.limit { wait(remaining + 1) } else { 0 },
            reset_after: over(count.div_ceil(self.limit)),
        }
    }

    fn of_log(&self, &[count, retry_after, more_after, reset_after]: &Told) -> Numbers {
        Numbers { limit: self.limit, remaining: self.limit.saturating_sub(count), retry_after, more_after, reset_after }
    }
}

impl Bucket {
    fn new(limit: u64, period_ns: u64) -> Self {
        let (unit, microsecond) = (u128::from(period_ns), u128::from(limit) * u128::from(MICROSECOND));
        let divisor = gcd(unit, microsecond).max(1);
        Self { unit: unit / divisor, microsecond: microsecond / divisor }
    }

    /// The time of so many units: microseconds, and ticks below that.
    fn span(&self, units: u64) -> (u64, u64) {
        let ticks = u128::from(units) * self.unit;
        let us = u64::try_from(ticks / self.microsecond).unwrap_or(u64::MAX).min(LARGEST);
        (us, (ticks % self.microsecond) as u64)
    }

    fn ticks(&self, told: &Told) -> u128 {
        u128::from(told[0]) * self.microsecond + u128::from(told[1])
    }

    /// Until all but the last of its units have leaked out.
    fn delay(&self, told: &Told) -> u64 {
        microseconds(self.ticks(told).saturating_sub(self.unit), self.microsecond)
    }
}

/// What a sliding-window counter has counted.
struct Count<'a> {
    terms: &'a Terms,
    previous: u64,
    current: u64,
    /// Until the end of the window; longer than a period if that has not begun, as the clock has stepped back.
    end: u64,
}

impl<'a> Count<'a> {
    fn of(terms: &'a Terms, &[previous, current, end, _]: &Told) -> Self {
        Self { terms, previous, current, end }
    }

    fn numbers(&self, cost: u64) -> Numbers {
        let &Terms { limit, period, .. } = self.terms;
        let left = self.end.min(period);
        let weight = (u128::from(self.previous) * u128::from(left)).div_ceil(u128::from(period));
        // At most the count of the window before.
        let remaining = limit.saturating_sub(self.current.saturating_add(weight as u64));
        let reset_after = match (self.previous, self.current) {
            (0, 0) => 0,
            (_, current) => self.end.saturating_add(current.div_ceil(limit).saturating_mul(period)),
        };
        let more_after = if remaining < limit { self.wait(remaining + 1) } else { 0 };
        Numbers { limit, remaining, retry_after: self.wait(cost), more_after, reset_after }
    }

    /// As in process: in the first window in which its own count leaves room, or in one of the two after it, in which that
    /// weighs less.
    fn wait(&self, units: u64) -> u64 {
        let &Terms { limit, period, .. } = self.terms;
        let first = (self.current.saturating_add(units)).saturating_sub(limit).div_ceil(limit);
        let at = |windows: u64, elapsed: u64| {
            let since_begin = windows.saturating_mul(period).saturating_add(elapsed);
            (since_begin.saturating_add(self.end)).saturating_sub(period)
        };
        for windows in [first, first + 1] {
            let (previous, current) = self.later(windows);
            let free = limit.saturating_sub(current.saturating_add(units));
            let now = if windows == 0 { period.saturating_sub(self.end) } else { 0 };
            let elapsed = light_enough(previous, free, period).max(now);
            if elapsed < period {
                return at(windows, elapsed);
            }
        }
        at(first + 2, 0)
    }

    /// The two counts some windows later: of more than the limit, what is above it goes on to the next.
    fn later(&self, windows: u64) -> (u64, u64) {
        let limit = self.terms.limit;
        let Some(more) = windows.checked_sub(1) else { return (self.previous, self.current) };
        let owed = self.current.saturating_sub(more.saturating_mul(limit));
        (owed.min(limit), owed.saturating_sub(limit))
    }
}

/// The first moment into a window at which `previous` weighs so little that `free` units are enough.
fn light_enough(previous: u64, free: u64, period: u64) -> u64 {
    if previous == 0 {
        return 0;
    }
    let tail = u128::from(free) * u128::from(period) / u128::from(previous);
    u64::try_from(tail).map_or(0, |tail| period.saturating_sub(tail))
}

/// Whole ones, rounded up.
fn microseconds(ticks: u128, microsecond: u128) -> u64 {
    u64::try_from(ticks.div_ceil(microsecond)).unwrap_or(u64::MAX)
}

fn nanos(microseconds: u64) -> u64 {
    microseconds.saturating_mul(MICROSECOND)
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
