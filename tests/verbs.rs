//! Debts, refunds, blocks, several quotas and clients as told by their addresses; and the worst window of each algorithm.
//! Where it is a case from the field its number stands beside it.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::unchecked_time_subtraction)]

#[path = "support/scene.rs"]
mod scene;

use std::net::IpAddr;
use std::time::Duration;

use scene::{NANO, SECOND, Scene, by, every, ms, ns, scenes};
use tollgate::{
    Algorithm, ClientIp, Decision, IpLimiter, IpPrefix, Limiter, ManualClock, Penalty, Quota, WhenFull, check_all,
};

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
