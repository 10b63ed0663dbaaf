//! Random quotas, costs and times against models in exact integers that share nothing with the library.
#![allow(clippy::unwrap_used, clippy::cast_possible_wrap, clippy::unchecked_time_subtraction)]

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use tollgate::{Algorithm, Clock, Decision, GlobalLimiter, Limiter, ManualClock, Memory, Quota};

/// What a model says: allowed, remaining, `retry_after`, `reset_after`; the times in nanoseconds.
type Answer = (bool, u64, u64, u64);

trait Model {
    /// Charges `cost` (at most the limit) at `now`.
    fn ask(&mut self, now: u64, cost: u64) -> Answer;
}

fn int(number: u64) -> i128 {
    i128::from(number)
}

fn nat(number: i128) -> u64 {
    u64::try_from(number.max(0)).unwrap()
}

fn ceil_div(number: i128, by: i128) -> i128 {
    number.div_euclid(by) + i128::from(number.rem_euclid(by) != 0)
}

/// The definition of GCRA, with all times multiplied by the limit, so that the emission interval is the period.
struct TokenBucket {
    limit: i128,
    period: i128,
    burst: i128,
    tat: i128,
}

impl Model for TokenBucket {
    fn ask(&mut self, now: u64, cost: u64) -> Answer {
        let (scaled, full) = (int(now) * self.limit, self.burst * self.period);
        let new = self.tat.max(scaled) + int(cost) * self.period;
        let allowed = cost == 0 || new - scaled <= full;
        if allowed && cost > 0 {
            self.tat = new;
        }
        let debt = (self.tat - scaled).max(0);
        let wait = if allowed { 0 } else { ceil_div(new - full, self.limit) - int(now) };
        let reset = if debt == 0 { 0 } else { ceil_div(self.tat, self.limit) - int(now) };
        (allowed, nat((full - debt).div_euclid(self.period)), nat(wait), nat(reset))
    }
}

/// Counts of windows by number. The latest window that counts is where a clock that has stepped back stands.
struct Windows {
    sliding: bool,
    limit: i128,
    period: i128,
    counts: BTreeMap<i128, i128>,
}

impl Windows {
    /// The units used in the sliding window that ends `elapsed` into window `index`, times the period.
    fn used(&self, index: i128, elapsed: i128) -> i128 {
        let count = |index| self.counts.get(&index).copied().unwrap_or(0);
        let previous = if self.sliding { count(index - 1) * (self.period - elapsed) } else { 0 };
        previous + count(index) * self.period
    }

    /// Where the moment `at` counts: a window and the time into it.
    fn place(&self, at: i128) -> (i128, i128) {
        let (index, elapsed) = (at.div_euclid(self.period), at.rem_euclid(self.period));
        match self.counts.last_key_value() {
            Some((&last, _)) if last > index => (last, 0),
            _ => (index, elapsed),
        }
    }

    fn fits(&self, at: i128, cost: i128) -> bool {
        let (index, elapsed) = self.place(at);
        self.used(index, elapsed) + cost * self.period <= self.limit * self.period
    }
}

impl Model for Windows {
    fn ask(&mut self, now: u64, cost: u64) -> Answer {
        let (at, cost) = (int(now), int(cost));
        let allowed = cost == 0 || self.fits(at, cost);
        if allowed && cost > 0 {
            *self.counts.entry(self.place(at).0).or_default() += cost;
        }
        let (index, elapsed) = self.place(at);
        let remaining = self.limit - ceil_div(self.used(index, elapsed), self.period);
        let start = |windows: i128| (index + windows) * self.period;
        // Use only falls while nothing is admitted, so the first moment that fits is found by halving.
        let (mut early, mut late) = (at, start(3));
        while !allowed && late - early > 1 {
            let middle = i128::midpoint(early, late);
            if self.fits(middle, cost) { late = middle } else { early = middle }
        }
        let counts = |windows: i128| self.counts.contains_key(&(index + windows));
        let reset = match (counts(0), self.sliding && counts(-1)) {
            (true, _) => start(1 + i128::from(self.sliding)) - at,
            (false, true) => start(1) - at,
            (false, false) => 0,
        };
        (allowed, nat(remaining), nat(if allowed { 0 } else { late - at }), nat(reset))
    }
}

/// The definition of the sliding-window log: the moments of all units admitted, of which those less than a period old
/// count. Time is never before the last of them.
struct Log {
    limit: i128,
    period: i128,
    moments: Vec<i128>,
}

impl Model for Log {
    fn ask(&mut self, now: u64, cost: u64) -> Answer {
        let (now, cost) = (int(now), int(cost));
        let at = self.moments.last().map_or(now, |&last| last.max(now));
        let counts = |moments: &[i128]| moments.iter().copied().filter(|moment| moment + self.period > at).collect();
        let counted: Vec<i128> = counts(&self.moments);
        let excess = counted.len() as i128 + cost - self.limit;
        let allowed = cost == 0 || excess <= 0;
        if allowed {
            self.moments.extend((0..cost).map(|_| at));
        }
        let wait = if allowed { 0 } else { counted[usize::try_from(excess).unwrap() - 1] + self.period - now };
        let counted: Vec<i128> = counts(&self.moments);
        let reset = counted.last().map_or(0, |last| last + self.period - now);
        (allowed, nat(self.limit - counted.len() as i128), nat(wait), nat(reset))
    }
}

fn model(quota: &Quota) -> Box<dyn Model> {
    let (limit, period) = (int(quota.limit()), i128::try_from(quota.period().as_nanos()).unwrap());
    match quota.algorithm() {
        Algorithm::TokenBucket => {
            Box::new(TokenBucket { limit, period, burst: int(quota.burst()), tat: i128::MIN / 4 })
        }
        // It admits what a token bucket does in which one unit more fits.
        Algorithm::LeakyBucket => {
            Box::new(TokenBucket { limit, period, burst: int(quota.burst()) + 1, tat: i128::MIN / 4 })
        }
        Algorithm::SlidingWindowLog => Box::new(Log { limit, period, moments: Vec::new() }),
        other => {
            let sliding = other == Algorithm::SlidingWindowCounter;
            Box::new(Windows { sliding, limit, period, counts: BTreeMap::new() })
        }
    }
}

fn algorithms() -> impl Strategy<Value = Algorithm> {
    prop::sample::select(Algorithm::ALL)
}

fn quotas() -> impl Strategy<Value = Quota> {
    let period =
        prop_oneof![1_000_u64..10_000, Just(1_000_000_000), Just(60_000_000_000), 1_000_000_000_u64..3_600_000_000_000];
    (1_u64..=1_000, period, 1_u64..40, algorithms()).prop_map(|(limit, period, burst, algorithm)| {
        // The model of a log takes its time.
        let limit = if algorithm == Algorithm::SlidingWindowLog { limit % 50 + 1 } else { limit };
        let quota = Quota::with_period(limit, Duration::from_nanos(period)).with_algorithm(algorithm);
        if algorithm.takes_burst() { quota.with_burst(burst) } else { quota }
    })
}

/// A step: how far time moves, in thousandths of the period, back in one of eight; and the cost as a fraction.
fn steps() -> impl Strategy<Value = Vec<(i64, u64)>> {
    let forward = prop_oneof![Just(0_i64), 0_i64..300, 0_i64..3_000];
    let moves = prop_oneof![7 => forward, 1 => -2_500_i64..0];
    prop::collection::vec((moves, 0_u64..100), 1..80)
}

/// Costs: mostly small, sometimes all there is.
fn cost_of(quota: &Quota, dice: u64) -> u64 {
    match dice {
        0 => 0,
        1..60 => 1,
        60..90 => quota.burst().min(dice - 58),
        _ => quota.burst(),
    }
}

const START: u64 = 1_700_000_000_000_000_000;

struct Subject {
    quota: Quota,
    clock: ManualClock,
    limiter: Limiter<str, ManualClock>,
    model: Box<dyn Model>,
}

impl Subject {
    fn new(quota: Quota, memory: Memory, horizon: Duration) -> Self {
        let clock = ManualClock::at(START);
        let builder = Limiter::builder(quota).capacity(10).memory(memory).clock(clock.clone()).horizon(horizon);
        Self { quota, clock, limiter: builder.build().unwrap(), model: model(&quota) }
    }

    /// Asks both, and returns the wait.
    fn ask(&mut self, now: u64, cost: u64) -> Result<u64, TestCaseError> {
        self.clock.set(now);
        let decision = self.limiter.check_n("key", cost).unwrap();
        let times = (decision.retry_after().as_nanos() as u64, decision.reset_after().as_nanos() as u64);
        let got = (decision.is_allowed(), decision.remaining(), times.0, times.1);
        prop_assert_eq!(got, self.model.ask(now, cost), "{} at {} cost {}", self.quota, now - START, cost);
        let peeked = self.limiter.peek("key");
        prop_assert_eq!(peeked.remaining(), decision.remaining());
        prop_assert_eq!(peeked.is_allowed(), decision.remaining() > 0);
        prop_assert_eq!(peeked.retry_after(), decision.available_after());
        Ok(times.0)
    }
}

/// Follows the model through all `steps`; who is refused is admitted after exactly the wait that was named.
fn follow(mut subject: Subject, steps: Vec<(i64, u64)>) -> Result<(), TestCaseError> {
    let period = subject.quota.period().as_nanos() as i64;
    let mut now = START;
    for (thousandths, dice) in steps {
        now = now.saturating_add_signed(period / 1_000 * thousandths + thousandths % 7);
        let cost = cost_of(&subject.quota, dice);
        let wait = subject.ask(now, cost)?;
        if wait == 0 {
            continue;
        }
        let early = subject.ask(now + wait - 1, cost)?;
        prop_assert_eq!(early, 1, "a nanosecond before its turn");
        if dice % 2 == 0 {
            now += wait;
            prop_assert_eq!(subject.ask(now, cost)?, 0, "at its turn");
        }
    }
    Ok(())
}

/// Where the memory is compact an hour's horizon gives ticks of some 7 ns, else nine years' one of about 0.1 ns.
fn with_coarse_ticks(quota: Quota, memory: Memory) -> (Limiter<str, ManualClock>, ManualClock) {
    let clock = ManualClock::at(START);
    let builder = Limiter::builder(quota).capacity(10).clock(clock.clone()).memory(memory);
    let builder = if memory == Memory::Compact { builder.horizon(Duration::from_secs(3_600)) } else { builder };
    (builder.build().unwrap(), clock)
}

/// The most units a second that fit into compact memory for an hour.
const MOST_COMPACT: u64 = 100_000_000;

fn memories() -> impl Strategy<Value = Memory> {
    prop_oneof![Just(Memory::Exact), Just(Memory::Compact)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// The library and the model decide alike, whatever is asked and wherever time goes; and who is refused is
    /// admitted after exactly the wait that was named.
    #[test]
    fn decides_like_the_model(quota in quotas(), steps in steps()) {
        follow(Subject::new(quota, Memory::Exact, Duration::from_secs(400 * 3_600)), steps)?;
    }

    /// So do they in compact memory, where the horizon is so short that its ticks are exact too.
    #[test]
    fn decides_like_the_model_in_compact_memory(
        limit in 1_u64..10,
        period in 1_000_u64..1_000_000,
        burst in 1_u64..40,
        steps in steps(),
    ) {
        let quota = Quota::with_period(limit, Duration::from_nanos(period)).with_burst(burst);
        follow(Subject::new(quota, Memory::Compact, Duration::from_secs(10)), steps)?;
    }

    /// A batch decides as single checks at the same moment would, keys that come more than once included.
    #[test]
    fn batches_decide_like_single_checks(
        quota in quotas(),
        memory in memories(),
        batches in prop::collection::vec((prop::collection::vec(0_u8..20, 0..90), 0_u64..3_000), 1..8),
    ) {
        let memory = if quota.algorithm().takes_burst() { memory } else { Memory::Exact };
        let clock = ManualClock::at(START);
        let build = || {
            let builder = Limiter::<u8>::builder(quota).capacity(10_000).memory(memory).clock(clock.clone());
            builder.horizon(Duration::from_secs(300)).build().unwrap()
        };
        let (batched, single) = (build(), build());
        for (keys, thousandths) in batches {
            clock.advance(quota.period() / 1_000 * thousandths as u32);
            let mut decisions = vec![Decision::default(); keys.len()];
            prop_assert_eq!(batched.check_many(&keys, &mut decisions), keys.len());
            for (key, decision) in keys.iter().zip(&decisions) {
                prop_assert_eq!(format!("{decision:?}"), format!("{:?}", single.check(key)));
            }
        }
        prop_assert_eq!(batched.stats(), single.stats());
    }

    /// One thread that leases gets at most the rest of a lease beyond its quota, in any window.
    #[test]
    fn a_lease_is_all_that_is_admitted_beyond_the_quota(
        burst in 1_u64..50,
        units in 0_u64..60,
        steps in prop::collection::vec((0_u64..4, 1_u64..4), 1..200),
    ) {
        let (quota, clock) = (Quota::per_second(1_000).with_burst(burst), ManualClock::at(START));
        let limiter = GlobalLimiter::with_clock(quota, clock.clone()).unwrap().leasing(units);
        let mut admitted: Vec<(u64, u64)> = Vec::new();
        for (step, cost) in steps {
            clock.advance(Duration::from_millis(step));
            let cost = cost.min(burst);
            if limiter.check_n(cost).unwrap().is_allowed() {
                admitted.push((clock.now(), cost));
            }
        }
        for from in 0..admitted.len() {
            let mut sum = 0;
            for &(at, cost) in &admitted[from..] {
                sum += cost;
                let millis = (at - admitted[from].0) / 1_000_000;
                prop_assert!(sum < burst + millis + units.max(1), "{sum} in {millis} ms");
            }
        }
    }

    /// No window of any length holds more than the algorithm allows, however odd the rate and coarse the tick: the
    /// horizon is the default of nine years.
    #[test]
    fn no_window_holds_too_much(
        limit in prop_oneof![1_u64..1_000_000_000, Just(999_999_937)],
        burst in 1_u64..20,
        algorithm in algorithms(),
        memory in memories(),
        steps in prop::collection::vec((0_u64..4, 1_u64..4), 1..200),
    ) {
        let memory = if algorithm.takes_burst() { memory } else { Memory::Exact };
        let limit = if memory == Memory::Compact { limit % MOST_COMPACT + 1 } else { limit };
        let limit = match algorithm {
            Algorithm::SlidingWindowCounter => limit % 1_000_000 + 1,
            Algorithm::SlidingWindowLog => limit % 100 + 1,
            _ => limit,
        };
        let quota = Quota::per_second(limit).with_algorithm(algorithm);
        let quota = if algorithm.takes_burst() { quota.with_burst(burst) } else { quota };
        let (limiter, clock) = with_coarse_ticks(quota, memory);
        let interval = 1_000_000_000 / limit;
        let mut admitted = Vec::new();
        let mut now = START;
        for (intervals, cost) in steps {
            now += intervals * interval + intervals % 2;
            clock.set(now);
            let cost = cost.min(quota.burst());
            if limiter.check_n("key", cost).unwrap().is_allowed() {
                admitted.push((now, cost));
            }
        }
        for (first, &(from, _)) in admitted.iter().enumerate() {
            let mut sum = 0;
            for &(to, cost) in &admitted[first..] {
                sum += cost;
                let elapsed = to - from;
                let bound = match algorithm {
                    Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                        let at_once = quota.burst() + u64::from(algorithm == Algorithm::LeakyBucket);
                        u128::from(at_once) + u128::from(elapsed) * u128::from(limit) / 1_000_000_000
                    }
                    Algorithm::SlidingWindowLog => u128::from(limit) * (1 + u128::from(elapsed) / 1_000_000_000),
                    // A window that is not aligned to theirs holds parts of two.
                    _ => u128::from(limit) * (2 + u128::from(elapsed) / 1_000_000_000),
                };
                prop_assert!(u128::from(sum) <= bound, "{quota}: {sum} within {elapsed} ns");
            }
        }
    }

    /// A strict quota never gives more than its limit in any window, the first moment and the last included.
    #[test]
    fn at_most_is_at_most(
        limit in 2_u64..60,
        burst in 1_u64..60,
        millis in 1_u64..100_000,
        steps in prop::collection::vec((0_u64..40, 1_u64..4), 1..300),
    ) {
        let window = Duration::from_millis(millis);
        let quota = Quota::at_most(limit, window, burst % (limit - 1) + 1);
        let clock = ManualClock::at(START);
        let limiter = GlobalLimiter::with_clock(quota, clock.clone()).unwrap();
        let mut admitted = Vec::new();
        for (step, most) in steps {
            clock.advance(window * u32::try_from(step).unwrap() / 200);
            admitted.push((clock.now(), limiter.check_up_to(most).granted()));
        }
        for first in 0..admitted.len() {
            let end = admitted[first].0 + u64::try_from(window.as_nanos()).unwrap();
            let units = admitted[first..].iter().take_while(|(at, _)| *at <= end).map(|(_, units)| units).sum::<u64>();
            prop_assert!(units <= limit, "{units} in {window:?} by {quota}");
        }
    }

    /// Odd rates keep their promise too where ticks are coarse: admitted at the wait, not a nanosecond earlier.
    #[test]
    fn waits_are_exact_with_coarse_ticks(
        limit in 1_u64..500_000_000,
        memory in memories(),
        burst in 1_u64..20,
        cost in 1_u64..20,
    ) {
        let limit = if memory == Memory::Compact { limit % MOST_COMPACT + 1 } else { limit };
        let quota = Quota::per_second(limit).with_burst(burst);
        let (limiter, clock) = with_coarse_ticks(quota, memory);
        let cost = cost.min(burst);
        prop_assert!(limiter.check_n("key", burst).unwrap().is_allowed(), "a new key has its whole burst");
        let refused = limiter.check_n("key", cost).unwrap();
        let wait = refused.retry_after();
        // The exact wait, and at most two ticks and a millionth more.
        let ticks = if memory == Memory::Compact { 2 * 8 } else { 2 };
        let exact = u128::from(cost) * 1_000_000_000 / u128::from(limit);
        prop_assert!((exact..=exact + ticks + exact / 1_000_000).contains(&wait.as_nanos()), "{wait:?} for {exact} ns");
        clock.advance(wait - Duration::from_nanos(1));
        prop_assert_eq!(limiter.check_n("key", cost).unwrap().retry_after(), Duration::from_nanos(1));
        clock.advance(Duration::from_nanos(1));
        prop_assert!(limiter.check_n("key", cost).unwrap().is_allowed());
    }

    /// A new key, and one that is idle again, gets its whole burst at any one moment, unit by unit, however odd the rate.
    #[test]
    fn a_burst_is_whole(
        limit in prop_oneof![1_u64..=15_000, Just(17), Just(100), Just(9_973)],
        per in prop_oneof![Just(1_u64), Just(60), Just(3_600), Just(86_400), 1_u64..100_000],
        burst in 1_u64..300,
        start in START..START + 1_000_000_000_000,
        pauses in prop::collection::vec(0_u64..1_000_000_000, 1..4),
    ) {
        let quota = Quota::with_period(limit, Duration::from_secs(per)).with_burst(burst);
        let clock = ManualClock::at(start);
        let limiter = Limiter::<str, _>::builder(quota).capacity(10).clock(clock.clone()).build().unwrap();
        for pause in pauses {
            clock.advance(Duration::from_nanos(pause));
            for left in (0..burst).rev() {
                let decision = limiter.check("key");
                prop_assert!(decision.is_allowed(), "{quota}: {left} of the burst are left");
                prop_assert_eq!(decision.remaining(), left);
            }
            let refused = limiter.check("key");
            prop_assert!(!refused.is_allowed(), "{quota} gave more than its burst");
            clock.advance(refused.reset_after());
        }
    }

    /// A key that is idle and swept is as good as one that was never swept.
    #[test]
    fn sweeping_changes_no_decision(quota in quotas(), steps in steps()) {
        let mut subject = Subject::new(quota, Memory::Exact, Duration::from_secs(400 * 3_600));
        let period = quota.period().as_nanos() as u64;
        let mut now = START;
        for (thousandths, dice) in steps {
            now += period / 1_000 * thousandths.unsigned_abs();
            subject.ask(now, cost_of(&quota, dice))?;
            subject.limiter.sweep();
        }
    }
}
