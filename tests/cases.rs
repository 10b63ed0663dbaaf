//! Cases from the field: what went wrong in other limiters, each as a test of what is right. The number of the case
//! stands beside it.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::unchecked_time_subtraction)]

#[path = "support/scene.rs"]
mod scene;

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use scene::{NANO, SECOND, Scene, by, every, ms, ns, scenes};
use tollgate::{Algorithm, Limiter, ManualClock, Quota, WhenFull};

/// A03
#[test]
fn a_large_limit_counts_down_one_by_one() {
    for (limit, seconds) in [(6_000, 1), (1_000, 60)] {
        for (_, scene) in scenes(every(limit, seconds)) {
            (1..=3).for_each(|used| scene.ok(Duration::ZERO, 1, limit - used));
        }
    }
}

/// A05, A12
#[test]
fn a_cost_beyond_the_burst_is_never_admitted_and_takes_nothing() {
    let scene = Scene::<str>::new(every(1, 86_400).with_burst(5));
    for cost in [6, 200_000_000, u64::from(u32::MAX), u64::MAX / 86_400, u64::MAX] {
        let error = scene.limiter.check_n("key", cost).unwrap_err();
        assert_eq!((error.cost, error.limit), (cost, 5));
    }
    scene.ok(Duration::ZERO, 1, 4);
    let scene = Scene::<str>::new(Quota::per_second(5));
    assert!(scene.limiter.check_n("key", 6).is_err());
    assert_eq!(scene.limiter.peek("key").remaining(), 5);
    scene.ok(Duration::ZERO, 5, 0);
    scene.no(Duration::ZERO, 1, 0, ms(200));
}

/// A06
#[test]
fn a_rate_that_is_no_whole_number_is_exact() {
    let scene = Scene::new(every(10, 13).with_burst(1));
    scene.ok(Duration::ZERO, 1, 0);
    scene.no(ns(1_299_999_999), 1, 0, NANO);
    scene.ok(ms(1_300), 1, 0);
}

/// A11
#[test]
fn polling_keeps_the_fractions() {
    let scene = Scene::new(Quota::per_second(3));
    scene.ok(Duration::ZERO, 3, 0);
    scene.no(ms(100), 1, 0, ns(233_333_334));
    scene.no(ms(200), 1, 0, ns(133_333_334));
    scene.no(ms(300), 1, 0, ns(33_333_334));
    scene.no(ns(333_333_333), 1, 0, NANO);
    scene.ok(ns(333_333_334), 1, 0);
    scene.no(ns(666_666_666), 1, 0, NANO);
    scene.ok(ns(666_666_667), 1, 0);
    scene.ok(SECOND, 1, 0);

    let scene = Scene::new(Quota::per_second(20));
    scene.ok(Duration::ZERO, 20, 0);
    scene.no(ms(40), 1, 0, ms(10));
    (80..=200).step_by(40).for_each(|millis| scene.ok(ms(millis), 1, 0));
}

/// A11
#[test]
fn polled_every_100_ms_three_a_second_are_three_a_second_and_never_more() {
    for (algorithm, scene) in scenes(Quota::per_second(3)) {
        scene.ok(Duration::ZERO, 3, 0);
        for second in 0..1_000 {
            // From just after a boundary to just after the next for the bucket, so that its third unit is counted.
            let first = u64::from(algorithm.takes_burst());
            let polls = (first..first + 10).map(|poll| ms(second * 1_000 + poll * 100));
            let admitted = polls.filter(|&now| scene.ask(now, 1).is_allowed()).count();
            match algorithm {
                Algorithm::TokenBucket | Algorithm::LeakyBucket => assert_eq!(admitted, 3, "second {second}"),
                Algorithm::FixedWindow | Algorithm::SlidingWindowLog => {
                    assert_eq!(admitted, if second == 0 { 0 } else { 3 }, "second {second}");
                }
                // The window before is weighed as if evenly used, which costs a greedy client one of three.
                _ => assert!(admitted <= 3 && (second < 2 || admitted >= 2), "{admitted} in second {second}"),
            }
        }
    }
}

/// A16
#[test]
fn five_used_up_two_seconds_pass_then_exactly_five() {
    for (algorithm, scene) in scenes(Quota::per_second(5)) {
        let wait = match algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => ms(200),
            Algorithm::FixedWindow | Algorithm::SlidingWindowLog => SECOND,
            // One of the five of the window before has fallen away a fifth into the next.
            _ => ms(1_200),
        };
        for now in [Duration::ZERO, SECOND * 2] {
            (0..5).for_each(|used| scene.ok(now, 1, 4 - used));
            scene.no(now, 1, 0, wait);
        }
    }
}

/// B12
#[test]
fn a_clock_that_steps_back_and_forth_neither_locks_out_nor_lets_more_in() {
    let step = SECOND * 11;
    for (algorithm, scene) in scenes(Quota::per_second(5)) {
        // What a refusal takes without any step, and what may be admitted in the time that passes in all.
        let ordinary = SECOND * if algorithm == Algorithm::SlidingWindowCounter { 2 } else { 1 };
        let (mut admitted, rounds) = (0, 1_000);
        for round in 0..rounds {
            let now = SECOND * 100 + ms(100) * round;
            for now in [now + step, now, now + step / 2, now] {
                let decision = scene.ask(now, 1);
                admitted += u32::from(decision.is_allowed());
                let longest = step + ordinary;
                assert!(decision.retry_after() <= longest && decision.available_after() <= longest, "{decision:?}");
                scene.limiter.sweep();
            }
        }
        let seconds = rounds / 10 + 11;
        assert!(admitted <= 5 * (seconds + 2), "{algorithm}: {admitted} in {seconds} s");
        assert!(admitted >= 5 * seconds / 2, "{algorithm}: only {admitted} in {seconds} s");
        let last = SECOND * 100 + ms(100) * rounds;
        let refused = (0..20).map(|_| scene.ask(last, 1)).find(|decision| !decision.is_allowed()).unwrap();
        assert!(!scene.ask(last + refused.retry_after() - NANO, 1).is_allowed());
        assert!(scene.ask(last + refused.retry_after(), 1).is_allowed());
    }
}

/// C02
#[test]
fn who_comes_back_on_time_is_admitted_and_a_nanosecond_earlier_is_not() {
    for (limit, seconds) in [(1, 1), (1, 10), (3, 1), (7, 13), (10, 60), (999, 7)] {
        for (algorithm, scene) in scenes(every(limit, seconds)) {
            let mut now = ns(123_456_789);
            for cost in (1..=limit).cycle().step_by(limit.div_ceil(7) as usize).take(200) {
                let decision = scene.ask(now, cost);
                let wait = decision.retry_after();
                assert_eq!(wait.is_zero(), decision.is_allowed());
                if !decision.is_allowed() {
                    let early = scene.ask(now + wait - NANO, cost);
                    assert!(!early.is_allowed(), "{algorithm} {limit}/{seconds}s: {early:?}");
                    assert_eq!(early.retry_after(), NANO);
                    now += wait;
                    assert!(scene.ask(now, cost).is_allowed(), "{algorithm}, cost {cost} at {now:?}");
                }
            }
        }
    }
}

/// C08
#[test]
fn who_took_the_last_unit_is_told_when_the_next_comes() {
    let scene = Scene::new(Quota::per_second(5).with_burst(1));
    let last = scene.ask(Duration::ZERO, 1);
    assert!(last.is_allowed());
    assert_eq!((last.remaining(), last.retry_after(), last.available_after()), (0, Duration::ZERO, ms(200)));
    for (_, scene) in scenes::<str>(Quota::per_second(2)) {
        assert_eq!(scene.ask(Duration::ZERO, 1).available_after(), Duration::ZERO, "one is left");
        let wait = scene.ask(Duration::ZERO, 1).available_after();
        assert!(!scene.ask(wait - NANO, 1).is_allowed());
        assert!(scene.ask(wait, 1).is_allowed());
    }
}

/// D05
#[test]
fn a_refused_request_takes_nothing() {
    for (algorithm, scene) in scenes(every(10, 60)) {
        let wait = match algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => Duration::from_secs(18),
            Algorithm::SlidingWindowCounter => ms(82_500),
            _ => Duration::from_secs(60),
        };
        scene.ok(Duration::ZERO, 8, 2);
        (0..100).for_each(|_| scene.no(Duration::ZERO, 5, 2, wait));
        scene.ok(Duration::ZERO, 1, 1);
    }
}

/// D10
#[test]
fn one_in_ten_seconds_works_with_every_algorithm() {
    for (algorithm, scene) in scenes(every(1, 10)) {
        let wait = Duration::from_secs(if algorithm == Algorithm::SlidingWindowCounter { 20 } else { 10 });
        for round in 0..20 {
            let now = wait * round;
            scene.ok(now, 1, 0);
            scene.no(now, 1, 0, wait);
            scene.no(now + SECOND * 9, 1, 0, wait - SECOND * 9);
            scene.no(now + wait - NANO, 1, 0, NANO);
        }
    }
}

/// Lets all threads ask twice for each of the same keys at the same time, ten keys from one barrier to the next, and says how
/// often each was admitted. Between two batches the clock moves on by `pause`.
fn race(scene: &Scene<u64>, threads: usize, batches: u64, keys: u64, pause: Duration) -> Vec<u64> {
    let admitted: Vec<_> = (0..batches * 10).map(|_| AtomicU64::new(0)).collect();
    let (barrier, racing) = (Barrier::new(threads), AtomicU64::new(threads as u64));
    std::thread::scope(|scope| {
        // The sweeper.
        scope.spawn(|| {
            while racing.load(Ordering::Relaxed) > 0 {
                scene.limiter.sweep();
            }
        });
        for _ in 0..threads {
            scope.spawn(|| {
                for batch in 0..batches {
                    if barrier.wait().is_leader() {
                        scene.clock.advance(pause);
                    }
                    barrier.wait();
                    for round in batch * 10..batch * 10 + 10 {
                        for _ in 0..2 {
                            let allowed = scene.limiter.check(&(round % keys)).is_allowed();
                            admitted[round as usize].fetch_add(u64::from(allowed), Ordering::Relaxed);
                        }
                    }
                }
                racing.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
    admitted.into_iter().map(AtomicU64::into_inner).collect()
}

/// E03
#[test]
fn of_sixteen_that_ask_at_once_one_passes_a_limit_of_one() {
    for &algorithm in Algorithm::ALL {
        let scene = Scene::with_capacity(by(algorithm, every(1, 60)), 20_000);
        let admitted = race(&scene, 16, 1_000, 10_000, Duration::ZERO);
        assert!(admitted.iter().all(|&admitted| admitted == 1), "{algorithm}");
    }
}

/// E04
#[test]
fn sweeping_while_a_key_is_asked_for_admits_no_more() {
    // Fresh keys, and keys that come to rest before each batch, so that the sweep has entries to take away.
    for (keys, pause) in [(5_000, Duration::ZERO), (50, SECOND)] {
        let scene = Scene::with_capacity(every(5, 1), 2 * keys as usize);
        let admitted = race(&scene, 8, 500, keys, pause);
        assert!(admitted.iter().all(|&admitted| admitted == 5), "{keys} keys");
    }
}

/// E01
#[test]
fn after_a_storm_and_a_rest_the_whole_burst_is_there() {
    let scene = Scene::<str>::new(Quota::per_second(1_000_000).with_burst(10));
    let ask = |turn: u32| {
        scene.clock.advance(ns(if turn.is_multiple_of(8) { 100 } else { 0 }));
        usize::from(scene.limiter.sweep_step(1) < 8 && scene.limiter.check("key").is_allowed())
    };
    let admitted: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..32).map(|_| scope.spawn(|| (0..10_000).map(ask).sum::<usize>())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    // 32 threads moved the clock 1,250 times by 100 ns: 4,000 units, and the burst.
    assert!((1_000..=4_010).contains(&admitted), "{admitted} admitted");
    scene.clock.advance(SECOND);
    assert_eq!(scene.limiter.peek("key").remaining(), 10);
    assert!(scene.limiter.check_n("key", 10).unwrap().is_allowed());
    assert!(!scene.limiter.check("key").is_allowed());
}

/// H01, H02
#[test]
fn a_million_keys_stay_within_the_table_and_are_gone_when_they_rest() {
    for swept in [false, true] {
        let scene = Scene::<u64>::with_capacity(Quota::per_second(1), 100_000);
        let bytes = scene.limiter.memory_bytes();
        for second in 0..10 {
            (0..100_000).for_each(|key| assert!(scene.limiter.check(&(second * 100_000 + key)).is_allowed()));
            // Unswept it fills all its slots: those of the capacity and at most half as many more.
            assert!(scene.limiter.len() <= if swept { 100_000 } else { 151_000 });
            scene.clock.advance(SECOND);
            assert!(!swept || (scene.limiter.sweep() > 99_000 && scene.limiter.is_empty()));
        }
        scene.clock.advance(SECOND * 10);
        scene.limiter.sweep();
        assert_eq!((scene.limiter.len(), scene.limiter.memory_bytes()), (0, bytes));
    }
}

/// H02, H03
#[test]
fn a_flood_of_fresh_keys_does_not_let_a_drained_one_back_in() {
    let scene = Scene::<u64>::with_capacity(Quota::per_minute(1).with_burst(5), 1_000);
    assert!((0..5).all(|_| scene.limiter.check(&0).is_allowed()));
    for key in 1..=1_000_000 {
        let _ = scene.limiter.check(&key);
        if key % 1_000 == 0 {
            scene.clock.advance(ms(1));
            assert!(!scene.limiter.check(&0).is_allowed(), "after {key} keys");
        }
    }
}

/// A table with as many drained keys as it was built for, less the few that found no room, and how many of them are let
/// back in after a flood of a million fresh keys.
fn let_back_in(when_full: WhenFull) -> usize {
    let builder = Limiter::<u64>::builder(Quota::per_minute(1).with_burst(5)).capacity(1_000);
    let limiter = builder.when_full(when_full).clock(ManualClock::new()).build().unwrap();
    let drain = |key: &u64| (0..5).all(|_| limiter.check(key).is_allowed()) && !limiter.peek(key).is_allowed();
    let drained: Vec<_> = (0..1_000).filter(drain).collect();
    assert!(drained.len() >= 990, "{when_full:?}: room for {} keys only", drained.len());
    assert!((1_000..1_001_000).all(|key| limiter.check(&key).limit() == 5));
    drained.iter().filter(|&key| limiter.peek(key).is_allowed()).count()
}

/// H02, H03
#[test]
fn a_flood_does_not_let_a_thousand_drained_keys_back_in_if_new_keys_must_wait_or_go_untracked() {
    assert_eq!((let_back_in(WhenFull::Refuse), let_back_in(WhenFull::AdmitUntracked)), (0, 0));
}

/// H02, H03: where all slots of a fresh key are held by drained ones, the first of the flood displaces one of them, and
/// each later one its forerunner. In a table that holds its capacity of drained keys few slots are so: 1 to 12 of 1,000
/// keys were let back in, over 30 seeds.
#[test]
fn a_flood_lets_hardly_any_of_a_thousand_drained_keys_back_in() {
    let let_in = let_back_in(WhenFull::DisplaceLeast);
    assert!(let_in <= 50, "{let_in}");
}

/// H05
#[test]
fn idle_keys_can_be_swept_while_all_is_refused() {
    for (_, scene) in scenes::<u64>(every(100, 100)) {
        (1..500).for_each(|key| assert!(scene.limiter.check(&key).is_allowed()));
        scene.at(SECOND * 300);
        assert!(scene.limiter.check_n(&0, 100).unwrap().is_allowed());
        for second in 300..399 {
            scene.at(SECOND * second);
            assert!(!scene.limiter.check_n(&0, 100).unwrap().is_allowed());
            scene.limiter.sweep_step(2);
        }
        assert_eq!(scene.limiter.len(), 1, "only the one that is refused");
    }
}

/// H07, H09
#[test]
fn empty_and_huge_keys_take_no_more_than_any_other() {
    let scene = Scene::<str>::with_capacity(every(1, 60), 100);
    let bytes = scene.limiter.memory_bytes();
    let huge = "x".repeat(1 << 20);
    for length in (0..2_000).chain((1 << 20) - 100..=1 << 20) {
        let _ = scene.limiter.check(&huge[..length]);
        assert!(scene.limiter.len() <= 160);
    }
    assert_eq!(scene.limiter.memory_bytes(), bytes);
}

/// H10
#[test]
fn limiters_do_not_forget_for_each_other() {
    let (second, hour) = (Scene::<str>::new(Quota::per_second(1)), Scene::<str>::new(Quota::per_hour(30)));
    for left in (25..30).rev() {
        let now = ms((29 - left) * 750);
        let _ = second.ask(now, 1);
        assert!(hour.ask(now, 1).is_allowed());
        second.limiter.sweep();
        hour.limiter.sweep();
        assert_eq!(hour.limiter.peek("key").remaining(), left);
    }
}

/// H12
#[test]
fn a_throttled_key_that_keeps_asking_is_not_forgotten() {
    for swept in [false, true] {
        let scene = Scene::<str>::new(every(1, 10).with_burst(2));
        let ask = |second| {
            let allowed = scene.ask(SECOND * second, 1).is_allowed();
            assert!(!swept || scene.limiter.sweep() == 0);
            allowed
        };
        assert_eq!((0..=100).filter(|&second| ask(second)).count(), 12);
    }
}
