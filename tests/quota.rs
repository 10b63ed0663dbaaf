//! Quotas from outside: constructors, the text form there and back, what is impossible, and that rates are honoured.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

use std::error::Error;
use std::time::Duration;

use proptest::prelude::*;
use tollgate::{Algorithm, GlobalLimiter, Limiter, ManualClock, Quota, QuotaError};

/// The longest period, and the longest time for a burst to come back, in nanoseconds.
const MAX_SPAN: u64 = 1 << 61;

const SHAPE: &str = "; write a quota as LIMIT/PERIOD [burst=N] [algorithm=NAME], like 100/min";

fn parse(text: &str) -> Quota {
    text.parse().unwrap()
}

fn error(text: &str) -> QuotaError {
    text.parse::<Quota>().unwrap_err()
}

#[track_caller]
fn assert_text_error(text: &str, message: &str) {
    let error = error(text);
    assert!(matches!(error, QuotaError::Text { .. }), "{text:?}: {error:?}");
    assert_eq!(error.to_string(), format!("{message}{SHAPE}"), "{text:?}");
}

#[test]
fn constructors_set_the_period_and_a_burst_of_the_limit() {
    const IN_A_CONSTANT: Quota = Quota::with_period(7, Duration::from_millis(250)).with_burst(3);
    let seconds = |quota: Quota| (quota.limit(), quota.period().as_secs(), quota.burst(), quota.algorithm());
    assert_eq!(seconds(Quota::per_second(1)), (1, 1, 1, Algorithm::TokenBucket));
    assert_eq!(seconds(Quota::per_minute(2)), (2, 60, 2, Algorithm::TokenBucket));
    assert_eq!(seconds(Quota::per_hour(3)), (3, 3_600, 3, Algorithm::TokenBucket));
    assert_eq!(seconds(Quota::per_day(4)), (4, 86_400, 4, Algorithm::TokenBucket));
    assert_eq!((IN_A_CONSTANT.limit(), IN_A_CONSTANT.burst()), (7, 3));
    assert_eq!(IN_A_CONSTANT.period(), Duration::from_millis(250));
    for &algorithm in Algorithm::ALL {
        let quota = Quota::per_second(9).with_algorithm(algorithm);
        assert_eq!((quota.algorithm(), quota.burst()), (algorithm, 9));
        assert_eq!(quota.validate(), Ok(()));
        assert_eq!(GlobalLimiter::with_clock(quota, ManualClock::new()).unwrap().quota(), quota);
    }
}

#[test]
fn algorithms_have_names_and_say_whether_they_take_a_burst() {
    let told: Vec<_> = Algorithm::ALL.iter().map(|algorithm| (algorithm.name(), algorithm.takes_burst())).collect();
    assert_eq!(told[..2], [("token-bucket", true), ("leaky-bucket", true)]);
    assert_eq!(told[2..], ["fixed-window", "sliding-window-counter", "sliding-window-log"].map(|name| (name, false)));
    assert_eq!(Algorithm::default(), Algorithm::TokenBucket);
    assert_eq!(format!("[{:>14}]", Algorithm::FixedWindow), "[  fixed-window]");
}

#[test]
fn the_emission_interval_is_rounded_up() {
    let interval = |limit, period| Quota::with_period(limit, period).emission_interval();
    assert_eq!(interval(3, Duration::from_secs(1)), Duration::from_nanos(333_333_334));
    assert_eq!(interval(100, Duration::from_secs(60)), Duration::from_millis(600));
    assert_eq!(interval(1, Duration::from_nanos(1)), Duration::from_nanos(1));
    assert_eq!(interval(0, Duration::from_secs(1)), Duration::ZERO);
    assert_eq!(interval(1, Duration::ZERO), Duration::ZERO);
    assert_eq!(interval(1, Duration::MAX), Duration::from_nanos(u64::MAX));
    assert_eq!(interval(u64::MAX, Duration::MAX), Duration::from_secs(1) + Duration::from_nanos(1));
}

#[test]
fn every_unit_is_read_with_and_without_a_count() {
    let units = [
        ("ns", Duration::from_nanos(1)),
        ("us", Duration::from_micros(1)),
        ("ms", Duration::from_millis(1)),
        ("s", Duration::from_secs(1)),
        ("sec", Duration::from_secs(1)),
        ("min", Duration::from_secs(60)),
        ("h", Duration::from_secs(3_600)),
        ("d", Duration::from_secs(86_400)),
    ];
    for (unit, period) in units {
        assert_eq!(parse(&format!("1/{unit}")), Quota::with_period(1, period));
        assert_eq!(parse(&format!("1/1{unit}")), Quota::with_period(1, period));
        assert_eq!(parse(&format!("5/15{unit}")), Quota::with_period(5, period * 15));
        assert_eq!(parse(&format!("005/0015{unit}")), Quota::with_period(5, period * 15));
    }
}

#[test]
fn burst_and_algorithm_may_stand_in_any_order_or_be_left_out() {
    let plain = Quota::per_minute(100);
    assert_eq!(parse("100/min"), plain);
    assert_eq!(parse("  100/min\t\n"), plain);
    for text in ["100/min burst=20 algorithm=token-bucket", "100/min   algorithm=gcra burst=20", "100/min burst=20"] {
        assert_eq!(parse(text), plain.with_burst(20), "{text}");
    }
    assert_eq!(parse("100/min burst=500").burst(), 500);
    assert_eq!(parse("100/min algorithm=gcra"), plain);
    for &algorithm in Algorithm::ALL {
        assert_eq!(parse(&format!("100/min algorithm={algorithm}")), plain.with_algorithm(algorithm));
    }
}

#[test]
fn text_that_is_no_rate_is_told_what_a_quota_looks_like() {
    for empty in ["", " ", "\t\n"] {
        assert_text_error(empty, "the quota is empty");
    }
    assert_text_error("100", "\"100\" has no '/' between limit and period");
    assert_text_error("100 / s", "\"100\" has no '/' between limit and period");
    assert_text_error("burst=5", "\"burst=5\" has no '/' between limit and period");
    let units = "has no unit of ns, us, ms, s, sec, min, h or d";
    for period in ["", "60", "fortnight", "S", "2m", "3seconds", "s/s"] {
        assert_text_error(&format!("100/{period}"), &format!("the period {period:?} {units}"));
    }
}

#[test]
fn only_whole_numbers_without_a_sign_count() {
    for limit in ["-5", "+5", "1.5", "1e3", "", "5_000", "five", "٣"] {
        assert_text_error(&format!("{limit}/s"), &format!("the limit {limit:?} is not a whole number"));
        assert_text_error(&format!("5/s burst={limit}"), &format!("the burst {limit:?} is not a whole number"));
    }
    let huge = "18446744073709551616";
    assert_text_error(&format!("{huge}/s"), &format!("the limit {huge} is larger than 18446744073709551615"));
    assert_text_error(&format!("5/{huge}s"), &format!("the period {huge} is larger than 18446744073709551615"));
    assert_text_error(&format!("5/s burst={huge}"), &format!("the burst {huge} is larger than 18446744073709551615"));
}

/// A period with a sign or a fraction has a unit; what is wrong is its number.
#[test]
fn a_period_that_is_no_whole_number_is_told_so() {
    for period in ["1.5s", "-1s", "+1s"] {
        let told = error(&format!("5/{period}")).to_string();
        assert!(told.contains(period), "{told}");
        assert!(told.contains("whole number"), "{told}");
    }
}

#[test]
fn unknown_and_repeated_words_are_errors() {
    for word in ["fast", "burst", "Burst=5", "=", "bursts=5", "#"] {
        assert_text_error(&format!("5/s {word}"), &format!("{word:?} is neither burst=N nor algorithm=NAME"));
    }
    for name in ["leaky", "", "GCRA", "token-bucket=1"] {
        let known = "only token-bucket, leaky-bucket, fixed-window, \
             sliding-window-counter, sliding-window-log";
        assert_text_error(&format!("5/s algorithm={name}"), &format!("there is no algorithm {name:?}, {known}"));
    }
    assert_text_error("5/s burst=1 burst=1", "burst is given twice");
    assert_text_error("5/s algorithm=gcra burst=1 algorithm=gcra", "algorithm is given twice");
}

#[test]
fn what_is_impossible_is_told_with_what_is_possible() {
    let told = |text: &str| error(text).to_string();
    assert_eq!(told("0/s"), "the limit is 0; it must be at least 1");
    assert_eq!(told("5/0s"), "the period is 0; it must be at least 1 ns");
    assert_eq!(told("5/s burst=0"), "the burst is 0; it must be at least 1");
    for (name, burst) in [("fixed-window", 5), ("fixed-window", 0), ("sliding-window-counter", 9)] {
        let message = "takes no burst: its limit is the most that it admits at once; leave the burst out";
        assert_eq!(told(&format!("5/s burst={burst} algorithm={name}")), format!("{name} {message}"));
    }
    assert_eq!(
        told("1000000001/s"),
        "1000000001 in 1s is more than one a nanosecond; the limit can be at most 1000000000"
    );
    assert_eq!(parse("1000000000/s").limit(), 1_000_000_000);
    assert_eq!(
        told("1/d burst=26688"),
        "a burst of 26688 would take over 73 years to come back at this rate; it can be at most 26687"
    );
    assert_eq!(parse("1/d burst=26687").burst(), 26_687);
    assert_eq!(told("1/30000d"), "the period of 2592000000 s is too long; it can be at most 2305843009 s");
    assert_eq!(parse("1/2305843009s").burst(), 1);
    assert!(matches!(error("1/18446744073709551615d"), QuotaError::PeriodTooLong { .. }));
    let build = GlobalLimiter::new(Quota::per_second(0)).map(drop).unwrap_err();
    assert_eq!(build.to_string(), "impossible quota: the limit is 0; it must be at least 1");
    assert_eq!(build.source().unwrap().to_string(), QuotaError::ZeroLimit.to_string());
}

#[test]
fn the_limits_of_what_is_possible_are_exact() {
    let span = Duration::from_nanos(MAX_SPAN);
    let check = |limit, period, burst| Quota::with_period(limit, period).with_burst(burst).validate();
    assert_eq!(check(1, span, 1), Ok(()));
    assert_eq!(check(1, span, 2), Err(QuotaError::BurstTooLong { burst: 2, max: 1 }));
    assert_eq!(check(MAX_SPAN, span, MAX_SPAN), Ok(()));
    assert_eq!(
        check(MAX_SPAN, span, MAX_SPAN + 1),
        Err(QuotaError::BurstTooLong { burst: MAX_SPAN + 1, max: MAX_SPAN })
    );
    let longer = span + Duration::from_nanos(1);
    assert_eq!(check(1, longer, 1), Err(QuotaError::PeriodTooLong { period: longer }));
    let limit = MAX_SPAN + 1;
    assert_eq!(check(limit, span, 1), Err(QuotaError::RateTooHigh { limit, period: span }));
    for algorithm in Algorithm::ALL.iter().copied().filter(|algorithm| !algorithm.takes_burst()) {
        let quota = Quota::per_second(5).with_algorithm(algorithm);
        assert_eq!(quota.with_burst(4).validate(), Err(QuotaError::NoBurst { algorithm }));
        assert_eq!(quota.with_burst(5).validate(), Ok(()));
    }
}

#[test]
fn quotas_are_written_in_their_largest_whole_unit() {
    let seconds = |limit, seconds| Quota::with_period(limit, Duration::from_secs(seconds));
    let nanos = |limit, nanos| Quota::with_period(limit, Duration::from_nanos(nanos));
    let golden = [
        (Quota::per_second(5), "5/s"),
        (Quota::per_minute(100), "100/min"),
        (Quota::per_hour(1), "1/h"),
        (Quota::per_day(9), "9/d"),
        (seconds(5, 900), "5/15min"),
        (seconds(5, 90), "5/90s"),
        (seconds(5, 604_800), "5/7d"),
        (seconds(5, 7_200), "5/2h"),
        (nanos(5, 1_500_000_000), "5/1500ms"),
        (nanos(5, 1_000_000), "5/ms"),
        (nanos(5, 2_000), "5/2us"),
        (nanos(1, 1), "1/ns"),
        (nanos(5, 1_000_000_001), "5/1000000001ns"),
        (Quota::per_second(5).with_burst(10), "5/s burst=10"),
        (Quota::per_second(5).with_burst(5), "5/s"),
        (Quota::per_second(5).with_algorithm(Algorithm::TokenBucket), "5/s"),
        (Quota::per_second(5).with_algorithm(Algorithm::FixedWindow), "5/s algorithm=fixed-window"),
        (seconds(5, 60).with_algorithm(Algorithm::SlidingWindowCounter), "5/min algorithm=sliding-window-counter"),
    ];
    for (quota, text) in golden {
        assert_eq!(quota.to_string(), text);
        assert_eq!(parse(text), quota);
    }
    assert_eq!(Quota::with_period(0, Duration::ZERO).to_string(), "0/0s", "an impossible quota can be shown too");
}

/// Any quota that is possible, of small and large numbers alike.
fn possible() -> impl Strategy<Value = Quota> {
    let upto = |largest: u64, bits: u32, seed: u64| (seed >> bits) % largest + 1;
    let numbers = (0..64_u32, any::<u64>(), 0..64_u32, any::<u64>(), 0..64_u32, any::<u64>());
    (numbers, 0..=Algorithm::ALL.len()).prop_map(
        move |((bits, period, limit_bits, limit, burst_bits, burst), which)| {
            let period = upto(MAX_SPAN, bits, period);
            let limit = upto(period, limit_bits, limit);
            let quota = Quota::with_period(limit, Duration::from_nanos(period));
            match Algorithm::ALL.get(which).copied() {
                Some(algorithm) if !algorithm.takes_burst() => quota.with_algorithm(algorithm),
                Some(algorithm) => {
                    let largest = u128::from(MAX_SPAN) * u128::from(limit) / u128::from(period);
                    let burst = upto(u64::try_from(largest).unwrap(), burst_bits, burst);
                    quota.with_algorithm(algorithm).with_burst(burst)
                }
                None => quota,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read_back(quota in possible()) {
        prop_assert_eq!(quota.validate(), Ok(()));
        prop_assert_eq!(quota.to_string().parse::<Quota>(), Ok(quota));
    }

    #[test]
    fn any_text_is_a_quota_or_an_error(text in any::<String>()) {
        if let Err(error) = text.parse::<Quota>() {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn text_that_looks_like_a_quota_is_one_or_an_error(text in "[0-9/a-z= ]{0,40}") {
        match text.parse::<Quota>() {
            Ok(quota) => prop_assert_eq!(quota.to_string().parse::<Quota>(), Ok(quota)),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn text_of_the_right_shape_is_a_quota_or_an_error(
        text in "[0-9]{1,21}/[0-9]{0,21}(ns|us|ms|s|sec|min|h|d)( burst=[0-9]{1,21})?( algorithm=(gcra|fixed-window))?",
    ) {
        match text.parse::<Quota>() {
            Ok(quota) => prop_assert_eq!(quota.to_string().parse::<Quota>(), Ok(quota)),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn any_numbers_are_possible_or_an_error(
        (limit, burst, seconds, nanos) in (any::<u64>(), any::<u64>(), any::<u64>(), 0..1_000_000_000_u32),
        (limit_bits, burst_bits, second_bits) in (0..64_u32, 0..64_u32, 0..64_u32),
    ) {
        let period = Duration::new(seconds >> second_bits, nanos);
        for &algorithm in Algorithm::ALL {
            let quota = Quota::with_period(limit >> limit_bits, period).with_algorithm(algorithm);
            for quota in [quota, quota.with_burst(burst >> burst_bits)] {
                let _ = quota.emission_interval();
                let text = quota.to_string();
                match quota.validate() {
                    Ok(()) => prop_assert_eq!(text.parse::<Quota>(), Ok(quota)),
                    Err(error) => {
                        prop_assert!(!error.to_string().is_empty());
                        prop_assert!(text.parse::<Quota>().is_err());
                    }
                }
            }
        }
    }

    #[test]
    fn any_rate_is_honoured(quota in possible()) {
        // Of the periods only those of which a few fit into the life of a limiter.
        let interval = u64::try_from(quota.emission_interval().as_nanos()).unwrap();
        prop_assume!(interval <= MAX_SPAN / 64);
        assert_honoured(quota.limit(), quota.period(), 1, 30);
    }
}

/// Uses up the burst and then `units` more, each at the moment that the limiter named, and compares the time that they
/// took with `units * period / limit`: never less, and more by at most a millionth and two nanoseconds, those two for
/// each unit where a full bucket waits for whole nanoseconds (a burst of one).
fn assert_honoured(limit: u64, period: Duration, burst: u64, units: u64) {
    let quota = Quota::with_period(limit, period).with_burst(burst);
    let span = quota.emission_interval().as_nanos() * u128::from(units + burst + 1);
    let horizon = Duration::from_nanos(u64::try_from(span).unwrap()).max(Duration::from_secs(3_600));
    let clock = ManualClock::new();
    let limiter = GlobalLimiter::with_horizon(quota, clock.clone(), horizon).unwrap();
    assert!(limiter.check_n(burst).unwrap().is_allowed());
    let mut elapsed = Duration::ZERO;
    for _ in 0..units {
        let refused = limiter.check();
        assert!(!refused.is_allowed(), "{quota}: more than its rate after {elapsed:?}");
        assert!(refused.retry_after() > Duration::ZERO);
        elapsed += refused.retry_after();
        clock.advance(refused.retry_after());
        assert!(limiter.check().is_allowed(), "{quota}: refused when it said to come back, after {elapsed:?}");
    }
    let (took, owed) = (elapsed.as_nanos(), u128::from(units) * period.as_nanos());
    assert!(took * u128::from(limit) >= owed, "{quota}: {units} more units in only {took} ns");
    let slack = if burst == 1 { 2 * u128::from(units) } else { 2 };
    let most = owed.div_ceil(u128::from(limit)) + owed / u128::from(limit) / 1_000_000 + slack;
    assert!(took <= most, "{quota}: {units} more units took {took} ns, not {most}");
}

#[test]
fn rates_from_one_in_ten_years_to_one_a_nanosecond_are_honoured() {
    const SECOND: Duration = Duration::from_secs(1);
    const DAY: Duration = Duration::from_secs(86_400);
    let years = |years| DAY * 365 * years;
    for burst in [1, 2, 3] {
        assert_honoured(1, years(10), burst, 5);
        assert_honoured(1, years(1), burst, 50);
        assert_honoured(7, years(3), burst, 50);
    }
    for burst in [1, 2, 10, 1_000] {
        for limit in [1, 7, 86_399, 1_000_003] {
            assert_honoured(limit, DAY, burst, 1_000);
        }
        for limit in [1, 3, 13, 1_000, 999_983, 3_000_000, 400_000_001, 666_666_667, 999_999_937, 1_000_000_000] {
            assert_honoured(limit, SECOND, burst, 5_000);
        }
    }
}

/// The same with the horizon that a limiter has unless told otherwise, where ticks are coarser.
#[test]
fn rates_are_honoured_with_the_usual_horizon() {
    for limit in [3, 17, 999_983, 400_000_001, 666_666_667, 999_999_937, 1_000_000_000] {
        let clock = ManualClock::new();
        let quota = Quota::per_second(limit).with_burst(100);
        let limiter = GlobalLimiter::with_clock(quota, clock.clone()).unwrap();
        assert!(limiter.check_n(100).unwrap().is_allowed());
        let (units, mut took) = (10_000_u64, 0);
        for _ in 0..units {
            let wait = limiter.peek().retry_after();
            took += wait.as_nanos();
            clock.advance(wait);
            assert!(limiter.check().is_allowed());
        }
        let owed = u128::from(units) * 1_000_000_000;
        assert!(took * u128::from(limit) >= owed, "{quota}: {units} units in only {took} ns");
        assert!(took <= owed / u128::from(limit) * 1_000_001 / 1_000_000 + 3, "{quota}: {units} units took {took} ns");
    }
}

/// Case A23 from the field.
#[test]
fn extreme_quotas_are_errors_or_work_but_never_panic() {
    let spans = [0, 1, 1_000_000_000, 1 << 58, 1 << 61, u64::MAX].map(Duration::from_nanos);
    let spans = || spans.into_iter().chain([Duration::MAX]);
    let numbers = [0, 1, 2, 1_000_000_000, 1 << 31, 1 << 61, 1 << 62, u64::MAX];
    for &algorithm in Algorithm::ALL {
        let quotas = spans().flat_map(|period| {
            let limits = numbers.into_iter().map(move |limit| Quota::with_period(limit, period));
            limits.flat_map(|quota| numbers.into_iter().map(move |burst| quota.with_burst(burst)).chain([quota]))
        });
        for quota in quotas.map(|quota| quota.with_algorithm(algorithm)) {
            for horizon in spans() {
                let clock = ManualClock::new();
                let builder = Limiter::<str>::builder(quota).capacity(8).shards(1).clock(clock.clone());
                let Ok(limiter) = builder.horizon(horizon).build() else { continue };
                assert_eq!(quota.validate(), Ok(()));
                for now in [0, 1, 1 << 40, 1 << 61, 1 << 63, u64::MAX, 0] {
                    clock.set(now);
                    for cost in [1, 0, quota.burst(), quota.limit(), u64::MAX] {
                        if let Ok(decision) = limiter.check_n("key", cost) {
                            let _ = format!("{decision:?} {:?}", decision.available_after());
                        }
                    }
                    limiter.sweep();
                }
            }
        }
    }
}

/// Cases A22 and M01 from the field.
#[test]
fn per_second_is_how_many_a_second_from_a_burst_of_as_many() {
    for quota in [Quota::per_second(2), Quota::per_day(5), Quota::per_second(4_000)] {
        let clock = ManualClock::new();
        let limiter = GlobalLimiter::with_clock(quota, clock.clone()).unwrap();
        assert!((0..quota.limit()).all(|_| limiter.check().is_allowed()) && !limiter.check().is_allowed());
        for _ in 0..10_000 {
            clock.advance(quota.emission_interval());
            assert!(limiter.check().is_allowed() && !limiter.check().is_allowed(), "{quota}");
        }
    }
}

/// Case A06 from the field.
#[test]
fn a_fresh_key_is_admitted_at_every_rate() {
    let fresh = |quota, cost, now| {
        let limiter = GlobalLimiter::with_clock(quota, ManualClock::at(now)).unwrap();
        limiter.check_n(cost).unwrap().is_allowed()
    };
    for (seconds, algorithm) in
        [1, 7, 13, 60, 86_400].into_iter().flat_map(|s| Algorithm::ALL.iter().map(move |&a| (s, a)))
    {
        for limit in 1..=1_000 {
            let quota = Quota::with_period(limit, Duration::from_secs(seconds)).with_algorithm(algorithm);
            let now = limit * 1_234_567_891;
            assert!(fresh(quota, 1, 0) && fresh(quota, 1, now) && fresh(quota, limit, now), "{quota}");
            assert!(!algorithm.takes_burst() || fresh(quota.with_burst(1), 1, now), "{quota} burst=1");
        }
    }
}
