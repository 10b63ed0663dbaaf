//! Quotas that differ and change, against models in whole numbers; and batches against single checks.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use proptest::prelude::*;
use tollgate::{Algorithm, CheckError, Decision, Limiter, ManualClock, Quota, Request};

const MILLISECOND: u64 = 1_000_000;

fn per_seconds(limit: u64, seconds: u64, burst: u64) -> Quota {
    Quota::with_period(limit, Duration::from_secs(seconds)).with_burst(burst)
}

fn limiter(quota: Quota) -> (Limiter<str, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    (Limiter::builder(quota).capacity(100).clock(clock.clone()).build().unwrap(), clock)
}

/// Units in parts, of which every quota of the story gives a whole number back in a millisecond.
const PARTS: i128 = 7 * 60 * 1_000;

/// What a key owes, by the definition of a bucket: it falls at the rate of the quota, and never below nothing.
#[derive(Clone, Copy, Default)]
struct Debt {
    parts: i128,
    at_ms: u64,
}

impl Debt {
    fn pay(&mut self, quota: Quota, now_ms: u64) {
        let per_ms = i128::from(quota.limit()) * PARTS / i128::try_from(quota.period().as_millis()).unwrap();
        self.parts = (self.parts - per_ms * i128::from(now_ms - self.at_ms)).max(0);
        self.at_ms = now_ms;
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Wait(u64),
    /// By the quota of this number, this cost.
    Check(usize, u64),
    Charge(u64),
    Refund(u64),
    Set(Quota),
}

fn any_quota() -> impl Strategy<Value = Quota> {
    let limit = prop::sample::select(vec![1, 2, 3, 5, 10, 60, 100, 1_000]);
    (limit, prop::sample::select(vec![1, 7, 20, 60]), 1..30_u64)
        .prop_map(|(limit, seconds, burst)| per_seconds(limit, seconds, burst))
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..9_000_u64).prop_map(Step::Wait),
        8 => (0..3_usize, 1..6_u64).prop_map(|(number, cost)| Step::Check(number, cost)),
        1 => (1..40_u64).prop_map(Step::Charge),
        1 => (1..10_u64).prop_map(Step::Refund),
        2 => any_quota().prop_map(Step::Set),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// One key, checked by three quotas of which the first changes, owes what the definition says: to a millionth of a
    /// unit for each time that it went over to another quota.
    #[test]
    fn a_key_owes_the_same_units_whatever_its_quota(
        quotas in prop::array::uniform3(any_quota()),
        steps in prop::collection::vec(any_step(), 1..60),
    ) {
        let clock = ManualClock::new();
        let others = 2;
        let limiter = Limiter::<str>::builder(quotas[0])
            .capacity(4)
            .other_quotas(others)
            .clock(clock.clone())
            .build()
            .unwrap();
        let (mut quotas, mut last, mut debt, mut now_ms) = (quotas, 0, Debt::default(), 0);
        // Late by this much at most, in parts of a unit.
        let mut late = 1;
        for step in steps {
            match step {
                Step::Wait(ms) => {
                    now_ms += ms;
                    clock.set(now_ms * MILLISECOND);
                }
                Step::Check(number, cost) => {
                    let quota = quotas[number];
                    debt.pay(quotas[last], now_ms);
                    let Ok(decision) = limiter.check_n_with("key", cost, &quota) else {
                        prop_assert!(cost > quota.burst());
                        continue;
                    };
                    let room = i128::from(quota.burst()) * PARTS - debt.parts;
                    let fits = room - i128::from(cost) * PARTS;
                    prop_assert!(decision.is_allowed() == (fits >= 0) || (0..late).contains(&fits), "{step:?} {fits}");
                    if decision.is_allowed() {
                        debt.parts += i128::from(cost) * PARTS;
                        // The same quota may stand under several numbers.
                        last = quotas.iter().position(|&other| other == quota).unwrap();
                    }
                    late += 1;
                    let room = i128::from(quota.burst()) * PARTS - debt.parts;
                    let remaining = i128::from(decision.remaining());
                    prop_assert!(remaining <= room.max(0) / PARTS && remaining >= (room - late).max(0) / PARTS);
                    let wait = i128::try_from(decision.retry_after().as_nanos()).unwrap();
                    let parts_per_period = i128::from(quota.limit()) * PARTS;
                    let period = i128::try_from(quota.period().as_nanos()).unwrap();
                    if !decision.is_allowed() {
                        let missing = (i128::from(cost) * PARTS - room).max(0);
                        let least = missing * period / parts_per_period;
                        let most = (missing + late) * period / parts_per_period + 2;
                        prop_assert!((least..=most).contains(&wait), "{step:?}: {least} <= {wait} <= {most}");
                    }
                }
                Step::Charge(units) => {
                    debt.pay(quotas[last], now_ms);
                    // A key that owes nothing, not even what came late, has no quota but the first.
                    if debt.parts == 0 && limiter.peek("key").reset_after().is_zero() {
                        last = 0;
                    }
                    limiter.charge("key", units);
                    debt.parts += i128::from(units) * PARTS;
                }
                Step::Refund(units) => {
                    debt.pay(quotas[last], now_ms);
                    limiter.refund("key", units);
                    debt.parts = (debt.parts - i128::from(units) * PARTS).max(0);
                }
                Step::Set(quota) => {
                    debt.pay(quotas[last], now_ms);
                    late += 1;
                    // From 1 an hour or so on, a thousandfold is never too far.
                    limiter.set_quota(&quota).unwrap();
                    quotas[0] = quota;
                }
            }
        }
    }

    /// A batch with costs and quotas of its own decides what single checks at one moment do, keys that come again included.
    #[test]
    fn a_batch_decides_what_single_checks_do(
        algorithm in prop::sample::select(Algorithm::ALL),
        requests in prop::collection::vec((0..8_u64, 0..6_u64, prop::option::of(0..3_usize)), 0..150),
        room in 0..150_usize,
        two in any::<bool>(),
    ) {
        let own = Quota::per_minute(5).with_algorithm(algorithm);
        // A log shares its table with no other quota.
        let others = u8::from(algorithm != Algorithm::SlidingWindowLog);
        let quotas = [own, Quota::per_hour(12), Quota::per_second(3)];
        let build = || {
            let mut builder = Limiter::<u64>::builder(own).capacity(100).other_quotas(others).clock(ManualClock::new());
            if two {
                builder = builder.and(Quota::per_day(20));
            }
            builder.build().unwrap()
        };
        let (batch, single) = (build(), build());
        let asked = requests.iter().map(|(key, cost, quota)| {
            let request = Request::new(key).cost(*cost);
            quota.map_or(request, |number| request.quota(quotas[number]))
        });
        let mut results = (0..room).map(|_| Ok(Decision::default())).collect::<Vec<_>>();
        let checked = batch.check_requests(asked, &mut results);
        prop_assert_eq!(checked, room.min(requests.len()));
        for ((key, cost, quota), result) in requests.iter().zip(&results) {
            let expected = match quota {
                Some(number) => single.check_n_with(key, *cost, &quotas[*number]),
                None => single.check_n(key, *cost).map_err(CheckError::from),
            };
            prop_assert_eq!(format!("{result:?}"), format!("{expected:?}"));
        }
        prop_assert_eq!(batch.stats(), single.stats());
    }

    /// A fixed window counts on when its quota changes, and what is above the limit counts in the windows after it.
    #[test]
    fn a_window_keeps_its_count_whatever_its_quota(
        steps in prop::collection::vec(any_step(), 1..60),
    ) {
        let window = |quota: Quota| Quota::with_period(quota.limit(), quota.period()).with_algorithm(Algorithm::FixedWindow);
        let mut quota = window(per_seconds(10, 60, 10));
        let (limiter, clock) = limiter(quota);
        let (mut count, mut index, mut now_ms) = (0_u64, 0, 0);
        let place = |quota: Quota, now_ms: u64| now_ms / u64::try_from(quota.period().as_millis()).unwrap();
        for step in steps {
            let here = place(quota, now_ms);
            count = count.saturating_sub((here - index) * quota.limit());
            index = here;
            match step {
                Step::Wait(ms) => {
                    now_ms += ms;
                    clock.set(now_ms * MILLISECOND);
                }
                Step::Check(_, cost) => {
                    let Ok(decision) = limiter.check_n("key", cost) else {
                        prop_assert!(cost > quota.limit());
                        continue;
                    };
                    let fits = count + cost <= quota.limit();
                    prop_assert_eq!(decision.is_allowed(), fits);
                    count += if fits { cost } else { 0 };
                    prop_assert_eq!(decision.remaining(), quota.limit().saturating_sub(count));
                }
                Step::Charge(units) => {
                    limiter.charge("key", units);
                    count += units;
                }
                Step::Refund(units) => {
                    limiter.refund("key", units);
                    count = count.saturating_sub(units);
                }
                Step::Set(new) => {
                    // The entry is touched between any two changes: of a debt that is older, more may be forgiven.
                    limiter.charge("key", 1);
                    limiter.refund("key", 1);
                    limiter.set_quota(&window(new)).unwrap();
                    quota = window(new);
                    index = place(quota, now_ms);
                }
            }
        }
    }
}
