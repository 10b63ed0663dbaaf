//! Cases from the field: what went wrong in other limiters, each as a test of what is right. The number of the case
//! stands beside it.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::unchecked_time_subtraction)]

use std::net::IpAddr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::{
    Algorithm, ClientIp, Decision, IpLimiter, IpPrefix, Limiter, ManualClock, Penalty, Quota, WhenFull, check_all,
};

const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);

/// A limiter on a clock that begins at zero, asked for a key at a moment.
struct Scene<K: ?Sized> {
    limiter: Limiter<K, ManualClock>,
    clock: ManualClock,
}

impl<K: ?Sized + std::hash::Hash> Scene<K> {
    fn new(quota: Quota) -> Self {
        Self::with_capacity(quota, 1_000)
    }

    fn with_capacity(quota: Quota, capacity: usize) -> Self {
        let clock = ManualClock::new();
        let limiter = Limiter::builder(quota).capacity(capacity).clock(clock.clone()).build().unwrap();
        Self { limiter, clock }
    }

    fn at(&self, now: Duration) {
        self.clock.set(u64::try_from(now.as_nanos()).unwrap());
    }
}

impl Scene<str> {
    fn ask(&self, now: Duration, cost: u64) -> Decision {
        self.at(now);
        self.limiter.check_n("key", cost).unwrap()
    }

    #[track_caller]
    fn ok(&self, now: Duration, cost: u64, remaining: u64) {
        let decision = self.ask(now, cost);
        assert!(decision.is_allowed(), "at {now:?}: {decision:?}");
        assert_eq!(decision.remaining(), remaining, "at {now:?}");
        assert_eq!(decision.retry_after(), Duration::ZERO);
    }

    #[track_caller]
    fn no(&self, now: Duration, cost: u64, remaining: u64, wait: Duration) {
        let decision = self.ask(now, cost);
        assert!(!decision.is_allowed(), "at {now:?}: {decision:?}");
        assert_eq!((decision.remaining(), decision.retry_after()), (remaining, wait), "at {now:?}");
    }
}

/// The same quota by another algorithm. A leaky bucket admits one unit more at once than may wait in it.
fn by(algorithm: Algorithm, quota: Quota) -> Quota {
    let quota = quota.with_algorithm(algorithm);
    if algorithm == Algorithm::LeakyBucket { quota.with_burst(quota.burst() - 1) } else { quota }
}

/// A scene for each algorithm.
fn scenes<K: ?Sized + std::hash::Hash>(quota: Quota) -> impl Iterator<Item = (Algorithm, Scene<K>)> {
    Algorithm::ALL.iter().map(move |&algorithm| (algorithm, Scene::new(by(algorithm, quota))))
}

fn every(limit: u64, seconds: u64) -> Quota {
    Quota::with_period(limit, Duration::from_secs(seconds))
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn ns(nanos: u64) -> Duration {
    Duration::from_nanos(nanos)
}

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

/// D08
#[test]
fn of_a_debt_nothing_can_be_taken_and_it_stays_a_debt() {
    for (algorithm, scene) in scenes(Quota::per_second(10)) {
        scene.at(Duration::ZERO);
        scene.limiter.charge("key", 30);
        for _ in 0..100 {
            let decision = scene.limiter.check_up_to("key", 10);
            assert_eq!((decision.is_allowed(), decision.granted(), decision.remaining()), (false, 0, 0), "{algorithm}");
        }
        // It owes what two seconds give, and a unit more.
        let wait = scene.limiter.peek("key").retry_after();
        let due = match algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => ms(2_100),
            // The last of the thirty weigh a tenth of a window less.
            Algorithm::SlidingWindowCounter => ms(3_100),
            _ => SECOND * 3,
        };
        assert_eq!(wait, due, "{algorithm}");
        scene.no(wait - NANO, 1, 0, NANO);
        assert!(scene.ask(wait, 1).is_allowed(), "{algorithm}");
    }
}

/// E01
#[test]
fn whatever_threads_did_all_of_the_burst_comes_back() {
    for (algorithm, scene) in scenes::<str>(Quota::per_second(10)) {
        std::thread::scope(|scope| {
            for _ in 0..32 {
                scope.spawn(|| {
                    for step in 0..3_000_u64 {
                        let _ = scene.limiter.check("key");
                        if step % 100 == 0 {
                            scene.clock.advance(Duration::from_micros(10));
                        }
                    }
                });
            }
        });
        scene.clock.advance(SECOND * 2);
        assert!(scene.limiter.check_n("key", 10).unwrap().is_allowed(), "{algorithm}");
    }
}

/// G06
#[test]
fn refused_requests_do_not_make_the_wait_longer() {
    let log = |quota: Quota| Scene::<str>::new(quota.with_algorithm(Algorithm::SlidingWindowLog));
    let scene = log(every(2, 6));
    (0..6).for_each(|round| assert!(scene.ask(SECOND * 5 * round, 1).is_allowed()));
    let scene = log(every(2, 6));
    scene.ok(Duration::ZERO, 1, 1);
    scene.ok(Duration::ZERO, 1, 0);
    (1..6).for_each(|second| scene.no(SECOND * second, 1, 0, SECOND * (6 - second)));
    scene.ok(SECOND * 6, 1, 1);
}

/// The most units that were admitted in any span of `window`, each span beginning with one of them.
fn worst_window(admitted: &[(Duration, u64)], window: Duration) -> u64 {
    let from = |first: usize| {
        let end = admitted[first].0 + window;
        admitted[first..].iter().take_while(|(at, _)| *at < end).map(|(_, units)| units).sum()
    };
    (0..admitted.len()).map(from).max().unwrap_or(0)
}

/// G10
#[test]
fn a_log_never_gives_more_than_its_limit_in_any_window() {
    let scene = Scene::<str>::new(Quota::per_second(10).with_algorithm(Algorithm::SlidingWindowLog));
    let (mut now, mut random, mut admitted) = (Duration::ZERO, 1_u64, Vec::new());
    for _ in 0..100_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        now += ns((random >> 33) % 100_000_000);
        if scene.ask(now, 1).is_allowed() {
            admitted.push((now, 1));
        }
    }
    assert_eq!(worst_window(&admitted, SECOND), 10);
}

/// What the worst minute of each algorithm holds at 100 a minute: all that there is just before a minute ends, and then all
/// that comes back. The documentation has the same figures.
#[test]
fn the_worst_window_of_each_algorithm() {
    let minute = SECOND * 60;
    let worst = |quota: Quota| {
        let scene = Scene::<str>::new(quota);
        let mut admitted = Vec::new();
        let start = minute * 10 - NANO;
        for now in (0..1_300).map(|step| start + ms(100) * step) {
            scene.at(now);
            match scene.limiter.check_up_to("key", 1_000).granted() {
                0 => (),
                units => admitted.push((now, units)),
            }
        }
        worst_window(&admitted, minute)
    };
    let by_algorithm = Algorithm::ALL.iter().map(|&algorithm| worst(by(algorithm, every(100, 60))));
    // Spans end before the unit that would come a whole minute after the first.
    assert_eq!(by_algorithm.collect::<Vec<_>>(), [199, 199, 200, 199, 100]);
    assert_eq!(worst(Quota::at_most(100, minute, 20)), 99);
    assert_eq!(worst(Quota::at_most(100, minute, 40)), 99);
}

/// I01
#[test]
fn all_addresses_of_a_64_are_one_client() {
    let limiter = Limiter::<ClientIp>::builder(every(1, 60)).clock(ManualClock::new()).build().unwrap();
    let ask = |address: &str| limiter.check(&client(address)).is_allowed();
    assert!(ask("2001:db8::1"));
    assert!(!ask("2001:db8::ffff"));
    assert!(ask("2001:db8:0:1::1"));
}

/// I02
#[test]
fn mapped_addresses_are_the_ipv4_addresses_that_they_are() {
    let limiter = Limiter::<ClientIp>::builder(every(1, 60)).clock(ManualClock::new()).build().unwrap();
    let ask = |address: &str| limiter.check(&client(address)).is_allowed();
    assert!(ask("::ffff:192.0.2.1"));
    assert!(ask("::ffff:192.0.2.2"));
    assert!(!ask("192.0.2.1"));
}

/// I03
#[test]
fn clients_behind_a_nat64_are_the_ipv4_addresses_that_they_are() {
    let limiter = Limiter::<ClientIp>::builder(every(1, 60)).clock(ManualClock::new()).build().unwrap();
    let ask = |address: &str| limiter.check(&client(address)).is_allowed();
    assert!(ask("64:ff9b::808:808"));
    assert!(ask("64:ff9b::909:909"));
    assert!(!ask("8.8.8.8"));
}

fn client(address: &str) -> ClientIp {
    address.parse::<IpAddr>().unwrap().into()
}

/// J01
#[test]
fn what_one_quota_refuses_the_others_are_not_charged_for() {
    let (a, c) = (every(2, 60), every(1, 1));
    for quotas in [[a, c], [c, a]] {
        let clock = ManualClock::new();
        let limiter = Limiter::<str>::builder(quotas[0]).and(quotas[1]).clock(clock.clone()).build().unwrap();
        let scene = Scene { limiter, clock };
        scene.ok(Duration::ZERO, 1, 0);
        for _ in 0..100 {
            let refused = scene.ask(Duration::ZERO, 1);
            assert_eq!((refused.is_allowed(), refused.retry_after()), (false, SECOND));
            assert_eq!(quotas[refused.quota_index()], c);
        }
        scene.ok(SECOND, 1, 0);
        let refused = scene.ask(SECOND * 3, 1);
        assert_eq!((quotas[refused.quota_index()], refused.remaining()), (a, 0), "that one has been charged twice");
        assert_eq!(refused.retry_after(), SECOND * 27);
    }
}

/// J01, by sixteen threads
#[test]
fn each_quota_is_charged_as_often_as_requests_are_admitted() {
    let quotas = Algorithm::ALL.iter().map(|&algorithm| by(algorithm, every(1_000, 60)));
    for many in quotas {
        for small_first in [true, false] {
            let few = every(100, 60);
            let (first, second) = if small_first { (few, many) } else { (many, few) };
            let builder = Limiter::<str>::builder(first).and(second).clock(ManualClock::new());
            let limiter = builder.build().unwrap();
            let admitted: usize = std::thread::scope(|scope| {
                let work = || (0..500).filter(|_| limiter.check("key").is_allowed()).count();
                let threads: Vec<_> = (0..16).map(|_| scope.spawn(work)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert_eq!(admitted, 100, "{many}");
            // What is left of the larger quota shows once the smaller is out of the way.
            let left = limiter.peek("key");
            assert_eq!((left.is_allowed(), left.remaining()), (false, 0));
            limiter.refund("key", 100);
            assert_eq!(limiter.check_up_to("key", 10_000).granted(), 100);
            limiter.refund("key", 1_000);
            assert_eq!(limiter.peek("key").remaining(), 100, "all of both");
        }
    }
}

/// J02
#[test]
fn a_refund_comes_on_top_of_what_has_come_back() {
    let scene = Scene::<str>::new(Quota::per_second(1).with_burst(10));
    scene.ok(Duration::ZERO, 10, 0);
    scene.at(SECOND * 5);
    scene.limiter.refund("key", 3);
    assert_eq!(scene.limiter.peek("key").remaining(), 8);
    scene.ok(SECOND * 5, 8, 0);
    scene.no(SECOND * 5, 1, 0, SECOND);
    scene.ok(SECOND * 6, 1, 0);
}

/// J04
#[test]
fn refunds_never_fill_above_full() {
    for (algorithm, scene) in scenes::<str>(Quota::per_second(10)) {
        scene.ok(Duration::ZERO, 2, 8);
        scene.limiter.refund("key", 2);
        scene.limiter.refund("key", 2);
        scene.limiter.refund("nobody", 5);
        assert_eq!(scene.limiter.peek("key").remaining(), 10, "{algorithm}");
        scene.ok(Duration::ZERO, 10, 0);
        assert!(!scene.ask(Duration::ZERO, 1).is_allowed());
    }
}

/// Each refusal lengthens the wait, up to the longest; a request that is allowed begins anew.
#[test]
fn penalties_grow_with_each_row_of_refusals() {
    let penalty = Penalty::new(SECOND * 10, SECOND * 60).after(3);
    let clock = ManualClock::new();
    let limiter = Limiter::<str>::builder(Quota::per_second(1)).penalty(penalty).clock(clock.clone()).build().unwrap();
    let refused = |times: u32| {
        let last = (0..times).map(|_| limiter.check("key")).last().unwrap();
        assert!(!last.is_allowed());
        limiter.peek("key").retry_after()
    };
    assert!(limiter.check("key").is_allowed());
    assert_eq!(refused(2), SECOND, "not yet");
    let nearly = |wait: Duration, due: Duration| assert!(wait >= due && wait - due < ms(1), "{wait:?} for {due:?}");
    nearly(refused(1), SECOND * 10);
    nearly(refused(3), SECOND * 20);
    nearly(refused(3), SECOND * 40);
    nearly(refused(3), SECOND * 60);
    nearly(refused(30), SECOND * 60);
    assert!(limiter.check("somebody else").is_allowed());
    clock.advance(SECOND * 61);
    assert!(limiter.check("key").is_allowed());
    assert_eq!(refused(2), SECOND, "the row has ended");
    clock.advance(SECOND * 30);
    assert!(limiter.check("key").is_allowed());
    nearly(refused(3), SECOND * 10);
}

/// Others are not held up by it, and the key is let go to the nanosecond where blocks are short.
#[test]
fn a_blocked_key_is_refused_whatever_its_quota_says() {
    let clock = ManualClock::new();
    let builder = Limiter::<str>::builder(Quota::per_second(5)).and(Quota::per_hour(100)).clock(clock.clone());
    let limiter = builder.horizon(Duration::from_secs(3_600)).build().unwrap();
    limiter.block("key", SECOND * 10);
    limiter.block("key", SECOND);
    for _ in 0..10 {
        let refused = limiter.check("key");
        assert_eq!((refused.is_allowed(), refused.is_blocked(), refused.remaining()), (false, true, 0));
        assert_eq!(refused.retry_after(), SECOND * 10, "the longer of both");
    }
    assert!(limiter.check("other").is_allowed());
    let mut decisions = [Decision::default(); 2];
    limiter.check_many(["key", "other"], &mut decisions);
    assert_eq!(decisions.map(|decision| decision.is_allowed()), [false, true]);
    clock.advance(SECOND * 10 - NANO);
    assert!(!limiter.check("key").is_allowed());
    clock.advance(NANO);
    let allowed = limiter.check("key");
    assert_eq!((allowed.is_allowed(), allowed.remaining()), (true, 4), "nothing was charged meanwhile");
    limiter.block("key", Duration::MAX);
    assert!(!limiter.check("key").is_allowed());
    limiter.reset("key");
    assert!(limiter.check("key").is_allowed());
}

/// A limit for a client, one for the /56 and one for the /48 that it is in.
#[test]
fn networks_have_quotas_beside_those_of_their_clients() {
    let clock = ManualClock::new();
    let builder = IpLimiter::builder(every(2, 60)).and(IpPrefix::new(32, 56), every(3, 60));
    let limiter = builder.and(IpPrefix::new(24, 48), every(4, 60)).clock(clock.clone()).build().unwrap();
    let ask = |address: &str| {
        let decision = limiter.check(address.parse().unwrap());
        (decision.is_allowed(), decision.quota_index())
    };
    assert_eq!(ask("2001:db8::1"), (true, 0));
    assert_eq!(ask("2001:db8::2"), (true, 0));
    assert_eq!(ask("2001:db8::3"), (false, 0), "the /64 has none left");
    assert_eq!(ask("2001:db8:0:1::1"), (true, 1));
    assert_eq!(ask("2001:db8:0:2::1"), (false, 1), "the /56 has none left");
    assert!(ask("2001:db8:0:100::1").0, "another /56");
    assert_eq!(ask("2001:db8:0:200::1"), (false, 2), "the /48 has none left");
    assert!(ask("2001:db8:1::1").0, "another /48");
    let address = "2001:db8:0:200::1".parse().unwrap();
    limiter.refund(address, 1);
    assert!(limiter.check(address).is_allowed());
    assert!(limiter.check_n(address, 3).is_err(), "more than the client can ever have");
    limiter.charge(address, 50);
    assert_eq!(limiter.peek(address).quota_index(), 0);
    clock.advance(SECOND * 86_400);
    assert_eq!((limiter.peek(address).remaining(), limiter.sweep() > 0), (2, true));
}

/// Debts that come one by one are kept as long as one that comes at once.
#[test]
fn a_debt_is_never_swept() {
    for (algorithm, scene) in scenes::<u64>(every(1, 1)) {
        scene.at(Duration::ZERO);
        (0..4).for_each(|_| scene.limiter.charge(&1, 1));
        for second in 1..4 {
            scene.at(SECOND * second);
            assert_eq!(scene.limiter.sweep(), 0, "{algorithm} after {second} s");
            assert!(!scene.limiter.check(&1).is_allowed());
        }
    }
}

/// Whatever algorithm keeps it, the key that has used most is the last to be displaced.
#[test]
fn a_flood_does_not_displace_who_has_used_most() {
    for &algorithm in Algorithm::ALL {
        let scene = Scene::<u64>::with_capacity(by(algorithm, every(100, 60)), 1);
        scene.at(SECOND * 1_000);
        assert!(scene.limiter.check_n(&0, 100).unwrap().is_allowed());
        for key in 1..=100 {
            scene.at(SECOND * 1_000 + ms(1) * u32::try_from(key).unwrap());
            assert!(scene.limiter.check(&key).is_allowed());
        }
        assert!(!scene.limiter.check(&0).is_allowed(), "{algorithm}");
    }
}

#[test]
fn where_a_new_key_has_no_room_it_is_told_so_at_once_and_not_punished() {
    for &algorithm in Algorithm::ALL {
        let penalty = Penalty::new(SECOND * 600, SECOND * 600);
        let builder = Limiter::<u64>::builder(by(algorithm, every(10, 60))).capacity(1).when_full(WhenFull::Refuse);
        let limiter = builder.penalty(penalty).clock(ManualClock::new()).build().unwrap();
        (0..8).for_each(|key| assert!(limiter.check(&key).is_allowed()));
        let refused = limiter.check_up_to(&100, 5);
        assert_eq!((refused.is_allowed(), refused.granted()), (false, 0), "{algorithm}");
        assert!(!limiter.check(&100).is_blocked());
    }
}

#[test]
fn the_delay_of_a_leaky_bucket_is_told_whichever_quota_binds() {
    let leaky = every(1, 1).with_burst(5).with_algorithm(Algorithm::LeakyBucket);
    for (first, second) in [(leaky, Quota::per_day(3)), (Quota::per_day(3), leaky)] {
        let limiter = Limiter::<u64>::builder(first).and(second).clock(ManualClock::new()).build().unwrap();
        assert_eq!([(); 3].map(|()| limiter.check(&1).delay()), [Duration::ZERO, SECOND, SECOND * 2]);
    }
}

/// However long the row of refusals is.
#[test]
fn who_never_stops_asking_is_never_let_go() {
    let clock = ManualClock::new();
    let penalty = Penalty::new(SECOND * 10, SECOND * 3_600).after(20);
    let limiter = Limiter::<u64>::builder(Quota::per_day(1)).penalty(penalty).clock(clock.clone()).build().unwrap();
    (0..70_000).for_each(|_| _ = limiter.check(&1));
    for _ in 0..5_000 {
        clock.advance(SECOND);
        assert!(limiter.check(&1).is_blocked());
    }
}

/// Asking for nothing is no check.
#[test]
fn a_cost_of_nothing_leaves_no_trace() {
    let penalty = Penalty::new(SECOND, SECOND).after(3);
    let limiter =
        Limiter::<u64>::builder(Quota::per_day(1)).penalty(penalty).clock(ManualClock::new()).build().unwrap();
    (0..3).for_each(|_| _ = limiter.check(&1));
    let before = limiter.stats();
    let _ = check_all(&[&limiter.of(&1)], 0).unwrap();
    let _ = limiter.check_n(&1, 0).unwrap();
    limiter.block(&2, Duration::ZERO);
    assert_eq!(limiter.stats(), before);
    let _ = limiter.check(&1);
    assert!(limiter.check(&1).is_blocked(), "three in a row");
    assert!(limiter.check(&2).is_allowed());
    let networks = IpLimiter::builder(Quota::per_day(1)).clock(ManualClock::new()).build().unwrap();
    let _ = networks.check_n(IpAddr::from([192, 0, 2, 1]), 0).unwrap();
    assert_eq!(networks.stats().allowed, 0);
}

/// Whatever is asked for, however much, and wherever the clock stands, nothing overflows.
#[test]
fn extremes_are_survived() {
    let (costs, years) = ([u64::MAX, 1, 3, u64::MAX / 2], Duration::from_nanos(1 << 58));
    for (&algorithm, period) in
        Algorithm::ALL.iter().flat_map(|algorithm| [1_000, 1 << 61].map(|period| (algorithm, period)))
    {
        for (horizon, start) in
            [(Duration::ZERO, 0), (SECOND, u64::MAX), (years, 1 << 60), (Duration::MAX, 1_750 << 50)]
        {
            let quota = Quota::with_period(2, ns(period)).with_algorithm(algorithm);
            let clock = ManualClock::at(start);
            let builder = Limiter::<u64>::builder(quota).capacity(1).horizon(horizon).clock(clock.clone());
            // What does not fit is told.
            let Ok(limiter) = builder.build() else { continue };
            for (now, cost) in
                [0, u64::MAX, start, u64::MAX / 2].into_iter().flat_map(|now| costs.map(|cost| (now, cost)))
            {
                clock.set(now);
                limiter.charge(&1, cost);
                limiter.refund(&1, cost / 2);
                let said =
                    (limiter.peek(&1), limiter.check(&1), limiter.check_up_to(&1, cost), limiter.check_n(&1, cost));
                assert!(!format!("{said:?}").is_empty());
                limiter.block(&2, ns(cost));
                let _ = check_all(&[&limiter.of(&1), &limiter.of(&2)], 1);
                limiter.sweep();
            }
        }
    }
}
