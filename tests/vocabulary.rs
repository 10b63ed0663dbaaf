//! Everything that can be said to a limiter, in any order, by all algorithms and several quotas at once, against a model
//! in exact integers that shares nothing with the library.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

use std::time::Duration;

use proptest::prelude::*;
use tollgate::{Algorithm, Decision, Limiter, ManualClock, Quota};

/// One quota of one key.
trait Model {
    fn limit(&self) -> i128;
    /// The units that would be admitted at `now`.
    fn remaining(&self, now: i128) -> i128;
    /// The first moment from `now` on at which `cost` is admitted.
    fn admitted_at(&self, now: i128, cost: i128) -> i128;
    /// The first moment from `now` on at which nothing is used any more.
    fn idle_at(&self, now: i128) -> i128;
    /// Uses `cost` units, whether they are there or not.
    fn charge(&mut self, now: i128, cost: i128);
    fn refund(&mut self, now: i128, units: i128);
    fn reset(&mut self);
}

/// Debt that leaks out at a rate, in units times the period, so that a nanosecond pays off `rate`. Time is kept as the
/// moment at which all is paid off, times the rate.
struct Bucket {
    rate: i128,
    period: i128,
    /// The most units at once.
    size: i128,
    /// When all is paid off, times the rate.
    paid: i128,
}

impl Bucket {
    fn debt(&self, now: i128) -> i128 {
        (self.paid - now * self.rate).max(0)
    }
}

impl Model for Bucket {
    fn limit(&self) -> i128 {
        self.size
    }

    fn remaining(&self, now: i128) -> i128 {
        (self.size * self.period - self.debt(now)).max(0) / self.period
    }

    fn admitted_at(&self, now: i128, cost: i128) -> i128 {
        now.max(ceil(self.paid + cost * self.period - self.size * self.period, self.rate))
    }

    fn idle_at(&self, now: i128) -> i128 {
        now.max(ceil(self.paid, self.rate))
    }

    fn charge(&mut self, now: i128, cost: i128) {
        self.paid = self.paid.max(now * self.rate) + cost * self.period;
    }

    fn refund(&mut self, _now: i128, units: i128) {
        self.paid -= units * self.period;
    }

    fn reset(&mut self) {
        self.paid = 0;
    }
}

/// A window's count and that of the window before, moved on one window at a time; what is above the limit moves on too.
#[derive(Clone)]
struct Windows {
    sliding: bool,
    limit: i128,
    period: i128,
    index: i128,
    previous: i128,
    current: i128,
}

impl Windows {
    fn at(&self, now: i128) -> Self {
        let mut then = self.clone();
        if then.previous == 0 && then.current == 0 {
            then.index = now.div_euclid(self.period);
        }
        while then.index < now.div_euclid(self.period) {
            then.previous = then.current.min(self.limit);
            then.current -= then.previous;
            then.index += 1;
        }
        if !then.sliding {
            then.previous = 0;
        }
        then
    }

    /// The units used, times the period; of a window that is ahead of the clock all of those before.
    fn used(&self, now: i128) -> i128 {
        let then = self.at(now);
        let elapsed = (now - then.index * self.period).max(0);
        then.previous * (self.period - elapsed) + then.current * self.period
    }

    /// The first moment at which `holds`, which then holds for ever; found by halving.
    fn first(&self, now: i128, holds: impl Fn(i128) -> bool) -> i128 {
        let windows = 3 + (self.current + self.previous) / self.limit;
        let (mut early, mut late) = (now - 1, self.period * (self.at(now).index + windows));
        while late - early > 1 {
            let middle = i128::midpoint(early, late);
            if holds(middle) { late = middle } else { early = middle }
        }
        late
    }
}

impl Model for Windows {
    fn limit(&self) -> i128 {
        self.limit
    }

    fn remaining(&self, now: i128) -> i128 {
        (self.limit - ceil(self.used(now), self.period)).max(0)
    }

    fn admitted_at(&self, now: i128, cost: i128) -> i128 {
        self.first(now, |at| self.used(at) + cost * self.period <= self.limit * self.period)
    }

    fn idle_at(&self, now: i128) -> i128 {
        self.first(now, |at| self.at(at).previous + self.at(at).current == 0)
    }

    fn charge(&mut self, now: i128, cost: i128) {
        *self = self.at(now);
        self.current += cost;
    }

    fn refund(&mut self, now: i128, units: i128) {
        *self = self.at(now);
        let of_current = units.min(self.current);
        self.current -= of_current;
        self.previous -= (units - of_current).min(self.previous);
    }

    fn reset(&mut self) {
        (self.previous, self.current) = (0, 0);
    }
}

/// From when on each unit is free again.
struct Log {
    period: i128,
    units: Vec<i128>,
    /// The latest moment of a charge, before which time does not go back.
    last: i128,
}

/// The longest for which a log is kept with so short a horizon, in periods.
const LOG_PERIODS: i128 = 256;

impl Log {
    fn sorted(&self) -> Vec<i128> {
        let mut sorted = self.units.clone();
        sorted.sort_unstable();
        sorted
    }
}

impl Model for Log {
    fn limit(&self) -> i128 {
        self.units.len() as i128
    }

    fn remaining(&self, now: i128) -> i128 {
        self.units.iter().filter(|unit| **unit <= now.max(self.last)).count() as i128
    }

    fn admitted_at(&self, now: i128, cost: i128) -> i128 {
        // What was free by the latest charge is free, even where the clock has stepped back.
        if self.remaining(now) >= cost { now } else { now.max(self.sorted()[cost as usize - 1]) }
    }

    fn idle_at(&self, now: i128) -> i128 {
        now.max(*self.units.iter().filter(|unit| **unit > self.last).max().unwrap_or(&0))
    }

    fn charge(&mut self, now: i128, cost: i128) {
        let at = now.max(self.last);
        self.last = at;
        for _ in 0..cost {
            let soonest = self.units.iter_mut().min().unwrap();
            let until = at.max(*soonest) + self.period;
            if until <= at + LOG_PERIODS * self.period {
                *soonest = until;
            }
        }
    }

    fn refund(&mut self, now: i128, units: i128) {
        let at = now.max(self.last);
        for _ in 0..units {
            let latest = self.units.iter_mut().max().unwrap();
            if *latest > at {
                *latest = if *latest > at + self.period { *latest - self.period } else { 0 };
            }
        }
    }

    fn reset(&mut self) {
        self.units.fill(0);
    }
}

fn ceil(number: i128, by: i128) -> i128 {
    number.div_euclid(by) + i128::from(number.rem_euclid(by) != 0)
}

fn model(quota: &Quota) -> Box<dyn Model> {
    let (limit, burst) = (i128::from(quota.limit()), i128::from(quota.burst()));
    let period = quota.period().as_nanos() as i128;
    match quota.algorithm() {
        Algorithm::TokenBucket => Box::new(Bucket { rate: limit, period, size: burst, paid: 0 }),
        // One unit leaves at once.
        Algorithm::LeakyBucket => Box::new(Bucket { rate: limit, period, size: burst + 1, paid: 0 }),
        Algorithm::SlidingWindowLog => Box::new(Log { period, units: vec![0; limit as usize], last: 0 }),
        other => {
            let sliding = other == Algorithm::SlidingWindowCounter;
            Box::new(Windows { sliding, limit, period, index: 0, previous: 0, current: 0 })
        }
    }
}

#[derive(Clone, Debug)]
enum Said {
    Check(u64),
    UpTo(u64),
    Charge(u64),
    Refund(u64),
    Block(u64),
    Peek,
    Reset,
}

fn said() -> impl Strategy<Value = Said> {
    prop_oneof![
        10 => (0_u64..15).prop_map(Said::Check),
        4 => (0_u64..15).prop_map(Said::UpTo),
        3 => (0_u64..60).prop_map(Said::Charge),
        3 => (0_u64..15).prop_map(Said::Refund),
        1 => (0_u64..2_000).prop_map(Said::Block),
        2 => Just(Said::Peek),
        1 => Just(Said::Reset),
    ]
}

fn quota() -> impl Strategy<Value = Quota> {
    (1_u64..12, 1_u64..2_000, 1_u64..12, prop::sample::select(Algorithm::ALL)).prop_map(|(limit, period, burst, by)| {
        let quota = Quota::with_period(limit, Duration::from_nanos(period.max(limit))).with_algorithm(by);
        if by.takes_burst() { quota.with_burst(burst) } else { quota }
    })
}

const START: u64 = 1_000_000_000_000;

/// A limiter, and a model of each of its quotas.
struct Subject {
    limiter: Limiter<str, ManualClock>,
    models: Vec<Box<dyn Model>>,
    blocked_until: i128,
    now: i128,
}

impl Subject {
    fn new(quotas: &[Quota]) -> Self {
        let first = Limiter::<str>::builder(quotas[0]).clock(ManualClock::at(START)).capacity(10);
        // So short that buckets are exact, and blocks end at any nanosecond.
        let builder = first.horizon(Duration::from_secs(3_600));
        let builder = quotas[1..].iter().fold(builder, |builder, quota| builder.and(*quota));
        let models = quotas.iter().map(model).collect();
        Self { limiter: builder.build().unwrap(), models, blocked_until: 0, now: START.into() }
    }

    fn remaining(&self) -> i128 {
        self.models.iter().map(|model| model.remaining(self.now)).min().unwrap()
    }

    /// What is told of the key beside whether it is admitted.
    fn check_numbers(&self, decision: &Decision) -> Result<(), TestCaseError> {
        let model = &self.models[decision.quota_index()];
        prop_assert_eq!(i128::from(decision.remaining()), model.remaining(self.now), "remaining");
        prop_assert_eq!(i128::from(decision.limit()), model.limit());
        prop_assert_eq!(decision.reset_after().as_nanos() as i128, model.idle_at(self.now) - self.now, "reset");
        Ok(())
    }

    /// A request for `cost` is admitted if all quotas have it; who is refused waits for the last of them.
    fn check_verdict(&mut self, decision: &Decision, cost: i128) -> Result<(), TestCaseError> {
        if cost > 0 && self.now < self.blocked_until {
            prop_assert!(decision.is_blocked() && !decision.is_allowed());
            prop_assert_eq!(decision.retry_after().as_nanos() as i128, self.blocked_until - self.now, "blocked");
            return Ok(());
        }
        let wait = self.models.iter().map(|model| model.admitted_at(self.now, cost.max(1)) - self.now).max().unwrap();
        let allowed = cost == 0 || wait == 0;
        prop_assert_eq!(decision.is_allowed(), allowed, "allowed");
        prop_assert_eq!(decision.retry_after().as_nanos() as i128, if allowed { 0 } else { wait }, "wait");
        Ok(())
    }

    fn charge(&mut self, units: i128) {
        if units == 0 {
            return;
        }
        self.models.iter_mut().for_each(|model| model.charge(self.now, units));
    }

    fn hear(&mut self, said: &Said) -> Result<(), TestCaseError> {
        let key = "key";
        match *said {
            Said::Check(cost) => match self.limiter.check_n(key, cost) {
                Err(error) => prop_assert!(self.models.iter().any(|model| model.limit() < i128::from(error.cost))),
                Ok(decision) if self.blocked_until > self.now && cost == 0 => prop_assert!(decision.is_blocked()),
                Ok(decision) => {
                    self.check_verdict(&decision, cost.into())?;
                    if decision.is_allowed() {
                        self.charge(cost.into());
                        prop_assert_eq!(i128::from(decision.remaining()), self.remaining());
                    }
                    if !decision.is_blocked() {
                        self.check_numbers(&decision)?;
                    }
                }
            },
            Said::UpTo(most) => {
                let due = if self.blocked_until > self.now { 0 } else { self.remaining().min(most.into()) };
                let decision = self.limiter.check_up_to(key, most);
                prop_assert_eq!(i128::from(decision.granted()), due);
                prop_assert_eq!(decision.is_allowed(), due > 0 || (most == 0 && !decision.is_blocked()));
                self.charge(due);
            }
            Said::Charge(units) => {
                self.limiter.charge(key, units);
                self.charge(units.into());
                if self.now >= self.blocked_until {
                    let decision = self.limiter.peek(key);
                    self.check_verdict(&decision, 1)?;
                    self.check_numbers(&decision)?;
                }
            }
            Said::Refund(units) => {
                self.limiter.refund(key, units);
                // Of nothing does nothing: not even a window is over by it, should the clock step back.
                if units > 0 {
                    self.models.iter_mut().for_each(|model| model.refund(self.now, units.into()));
                }
            }
            Said::Block(nanos) => {
                self.limiter.block(key, Duration::from_nanos(nanos));
                // For no time at all is no block.
                if nanos > 0 {
                    self.blocked_until = self.blocked_until.max(self.now + i128::from(nanos));
                }
            }
            Said::Peek => {
                let decision = self.limiter.peek(key);
                self.check_verdict(&decision, 1)?;
                if !decision.is_blocked() {
                    self.check_numbers(&decision)?;
                }
            }
            Said::Reset => {
                self.limiter.reset(key);
                self.models.iter_mut().for_each(|model| model.reset());
                self.blocked_until = 0;
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_said_is_done_as_the_model_does(
        quotas in prop::collection::vec(quota(), 1..4),
        story in prop::collection::vec((prop_oneof![4 => 0_i64..400, 1 => 0_i64..5_000, 1 => -1_500_i64..0], said()), 1..60),
    ) {
        let mut subject = Subject::new(&quotas);
        for (step, said) in story {
            subject.now += i128::from(step);
            subject.limiter.clock().set(subject.now as u64);
            if let Err(error) = subject.hear(&said) {
                let quotas: Vec<String> = quotas.iter().map(Quota::to_string).collect();
                return Err(TestCaseError::fail(format!("{said:?} at {} by {quotas:?}: {error}", subject.now)));
            }
        }
    }
}
