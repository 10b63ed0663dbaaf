//! Waiting in turn: places in time, futures and threads, in virtual time throughout.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tollgate::{Algorithm, Limiter, ManualClock, Memory, Quota, Reservation, WaitError};

const SECOND: u64 = 1_000_000_000;

type Waits = Limiter<str, ManualClock>;

fn limiter(quota: Quota) -> (Waits, ManualClock) {
    let clock = ManualClock::new();
    (Limiter::builder(quota).capacity(100).clock(clock.clone()).build().unwrap(), clock)
}

fn milliseconds(place: &Reservation<'_, str, ManualClock, impl std::hash::BuildHasher>) -> u128 {
    place.wait().as_millis()
}

/// F03: places that are given back leave nothing, in whatever order.
#[test]
fn reservations_that_are_cancelled_leave_no_trace() {
    for order in [[2, 1, 0], [0, 1, 2], [1, 0, 2], [1, 2, 0]] {
        let (limiter, clock) = limiter(Quota::per_minute(60).with_burst(1));
        let mut places = [(); 3].map(|()| Some(limiter.reserve("key", 1).unwrap()));
        let waits = places.each_ref().map(|place| milliseconds(place.as_ref().unwrap()));
        assert_eq!(waits, [0, 1_000, 2_000]);
        for index in order {
            places[index].take().unwrap().cancel();
        }
        assert_eq!(limiter.waiting(), 0);
        assert!(limiter.check("key").is_allowed(), "{order:?}");
        assert_eq!(limiter.check("key").retry_after(), Duration::from_secs(1));
        clock.set(SECOND);
        assert!(limiter.check("key").is_allowed());
    }
}

/// F03, the middle one only: the last moves up, and the state is that of two.
#[test]
fn those_behind_a_cancelled_place_move_up() {
    for algorithm in Algorithm::ALL {
        let quota = match algorithm {
            Algorithm::TokenBucket => Quota::per_second(1),
            Algorithm::LeakyBucket => Quota::per_second(1).with_algorithm(*algorithm).with_burst(0),
            _ => Quota::per_second(1).with_algorithm(*algorithm),
        };
        let (limiter, clock) = limiter(quota);
        let first = limiter.reserve("key", 1).unwrap();
        let middle = limiter.reserve("key", 1).unwrap();
        let last = limiter.reserve("key", 1).unwrap();
        let behind = limiter.reserve("key", 1).unwrap();
        let wait_of_last = last.wait();
        assert!(first.wait() < middle.wait() && middle.wait() < wait_of_last && wait_of_last < behind.wait());
        let wait_of_middle = middle.wait();
        drop(middle);
        assert_eq!((last.wait(), behind.wait()), (wait_of_middle, wait_of_last), "{algorithm}");
        let refused = limiter.check("key");
        assert!(!refused.is_allowed() && refused.retry_after() > wait_of_last, "{algorithm}");
        clock.advance(wait_of_last);
        [first, last, behind].into_iter().for_each(drop);
        assert_eq!(limiter.waiting(), 0);
        assert!(!limiter.check("key").is_allowed(), "their time had come, so they were used");
        clock.advance(Duration::from_secs(5));
        assert!(limiter.check("key").is_allowed());
    }
}

#[test]
fn a_place_is_used_when_its_time_has_come_or_it_is_kept() {
    let (limiter, clock) = limiter(Quota::per_second(1));
    drop(limiter.reserve("key", 1).unwrap());
    assert!(!limiter.check("key").is_allowed(), "its time was at once");
    limiter.reserve("key", 1).unwrap().keep();
    assert_eq!(limiter.peek("key").retry_after(), Duration::from_secs(2));
    let place = limiter.reserve("key", 1).unwrap();
    clock.set(2 * SECOND);
    drop(place);
    assert_eq!(limiter.peek("key").retry_after(), Duration::from_secs(1));
}

/// F02: a place that is cancelled when its time has come is given back.
#[test]
fn a_place_is_given_back_after_its_time_as_far_as_it_has_not_come_back() {
    let (limiter, clock) = limiter(Quota::per_second(1).with_burst(10));
    assert_eq!(limiter.check_n("key", 10).unwrap().remaining(), 0);
    let place = limiter.reserve("key", 1).unwrap();
    clock.set(SECOND);
    assert_eq!(limiter.peek("key").remaining(), 0);
    place.cancel();
    assert_eq!(limiter.peek("key").remaining(), 1);
    // 9 owed, 10 with the place: at 10.5 s a half of its unit has come back by itself.
    let place = limiter.reserve("key", 1).unwrap();
    clock.set(10 * SECOND + SECOND / 2);
    assert!(limiter.check("key").is_allowed());
    place.cancel();
    assert!(limiter.peek("key").reset_after() >= Duration::from_secs(1));
}

/// F06, and a deadline: what fails leaves no trace.
#[test]
fn a_wait_that_is_too_long_fails_at_once() {
    let (limiter, clock) = limiter(Quota::per_second(1));
    assert!(limiter.check("key").is_allowed());
    for longest in [Duration::ZERO, Duration::from_nanos(SECOND - 1)] {
        let error = limiter.reserve_within("key", 1, longest).unwrap_err();
        assert!(matches!(error, WaitError::TooLong { wait } if wait == Duration::from_secs(1)), "{error}");
        let error = limiter.wait_n("key", 1, longest).unwrap_err();
        assert!(matches!(error, WaitError::TooLong { wait } if wait == Duration::from_secs(1)), "{error}");
    }
    assert_eq!(limiter.peek("key").retry_after(), Duration::from_secs(1));
    assert_eq!(limiter.reserve_within("key", 1, Duration::from_secs(1)).unwrap().wait(), Duration::from_secs(1));
    clock.set(SECOND);
    assert!(limiter.check("key").is_allowed());
    assert_eq!(limiter.stats().refused, 4);
}

/// A14: what can never be is said at once, and takes nothing.
#[test]
fn a_cost_beyond_the_burst_does_not_wait() {
    let (limiter, _) = limiter(Quota::per_second(10));
    for error in [limiter.reserve("key", 11).unwrap_err(), limiter.wait_n("key", 11, Duration::MAX).unwrap_err()] {
        assert!(matches!(error, WaitError::Cost(error) if (error.cost, error.limit) == (11, 10)));
    }
    assert!(limiter.wait_n("key", 10, Duration::MAX).unwrap().decision().is_allowed());
    assert_eq!(limiter.waiting(), 0);
}

/// F08: three go, five wait, two are refused.
#[test]
fn the_number_of_those_who_wait_is_bounded() {
    let clock = ManualClock::new();
    let builder = Limiter::<str>::builder(Quota::per_second(10).with_burst(3)).waiting(5, 7).clock(clock.clone());
    let limiter = builder.build().unwrap();
    let mut waits = Vec::new();
    let mut places = Vec::new();
    for _ in 0..10 {
        match limiter.reserve("key", 1) {
            Ok(place) => {
                waits.push(place.wait().as_millis());
                places.push(place);
            }
            Err(error) => {
                assert!(matches!(error, WaitError::TooManyWaiting { wait } if wait == Duration::from_millis(600)));
            }
        }
    }
    assert_eq!(waits, [0, 0, 0, 100, 200, 300, 400, 500]);
    assert_eq!(limiter.waiting(), 5);
    // Two more in all.
    let others = [(); 6].map(|()| limiter.reserve("other", 1).ok());
    assert_eq!(others.iter().flatten().count(), 5);
    assert!(matches!(limiter.reserve("other", 1), Err(WaitError::TooManyWaiting { .. })));
    // F01: who gives up makes room at once.
    drop(places.pop());
    assert_eq!(limiter.reserve("key", 1).unwrap().wait(), Duration::from_millis(500));
}

/// F09: who waits is not overtaken, by a check or otherwise.
#[test]
fn a_large_cost_is_not_starved_by_small_ones() {
    let (limiter, clock) = limiter(Quota::per_second(10));
    assert_eq!(limiter.check_n("key", 10).unwrap().remaining(), 0);
    let large = limiter.reserve("key", 10).unwrap();
    for tenth in 0..10 {
        clock.set(tenth * SECOND / 10);
        assert!(!limiter.check("key").is_allowed());
        assert!(limiter.reserve("key", 1).unwrap().wait() > large.wait());
    }
    clock.set(SECOND);
    assert_eq!(large.wait(), Duration::ZERO);
}

#[test]
fn blocked_keys_and_full_tables_do_not_wait() {
    let (limiter, _) = limiter(Quota::per_second(1));
    limiter.block("mallory", Duration::from_secs(9));
    let error = limiter.reserve("mallory", 1).unwrap_err();
    assert!(matches!(&error, WaitError::Refused(decision) if decision.is_blocked()), "{error}");
    let builder = Limiter::<u64>::builder(Quota::per_hour(1)).capacity(1).when_full(tollgate::WhenFull::Refuse);
    let limiter = builder.clock(ManualClock::new()).build().unwrap();
    let refused = (0..100).filter(|key| matches!(limiter.reserve(key, 1), Err(WaitError::Refused(_)))).count();
    assert!(refused > 80, "{refused}");
}

/// All quotas are booked, and the latest of the times counts.
#[test]
fn a_place_is_one_of_all_quotas() {
    let clock = ManualClock::new();
    let builder = Limiter::<str>::builder(Quota::per_second(2)).and(Quota::per_minute(3)).clock(clock.clone());
    let limiter = builder.build().unwrap();
    let places = [(); 5].map(|()| limiter.reserve("key", 1).unwrap());
    assert_eq!(places.each_ref().map(|place| place.wait().as_millis()), [0, 0, 500, 20_000, 40_000]);
    let [first, second, third, fourth, fifth] = places;
    drop((first, second));
    drop(fourth);
    assert_eq!((third.wait().as_millis(), fifth.wait().as_millis()), (500, 20_000));
}

/// Those whom the minute's quota lets go all at once keep the pace of the second's.
#[test]
fn what_one_quota_held_back_another_lets_go_one_by_one() {
    let window = Quota::per_minute(5).with_algorithm(Algorithm::FixedWindow);
    let clock = ManualClock::new();
    let builder = Limiter::<str>::builder(Quota::per_second(1).with_burst(2)).and(window).clock(clock.clone());
    let limiter = Arc::new(builder.build().unwrap());
    limiter.charge("key", 5);
    clock.set(20 * SECOND);
    let (sender, receiver) = std::sync::mpsc::channel();
    let threads = (0..4_usize).map(|number| {
        let (shared, sender, clock) = (Arc::clone(&limiter), sender.clone(), clock.clone());
        let thread = thread::spawn(move || {
            shared.wait("key").unwrap();
            sender.send((number, tollgate::Clock::now(&clock) / SECOND)).unwrap();
        });
        while limiter.waiting() <= number {
            thread::yield_now();
        }
        thread
    });
    let threads = threads.collect::<Vec<_>>();
    let mut left = Vec::new();
    for second in [60, 60, 61, 62] {
        clock.set(second * SECOND);
        left.push(receiver.recv().unwrap());
    }
    assert_eq!(left.iter().map(|(_, second)| *second).collect::<Vec<_>>(), [60, 60, 61, 62]);
    // The first two went at the same moment, in whatever order they were woken.
    left[..2].sort_unstable();
    assert_eq!(left.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1, 2, 3]);
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Who waits does so at the rate of the quota as it stands.
#[test]
fn a_new_quota_moves_those_who_wait() {
    let (limiter, clock) = limiter(Quota::per_minute(1));
    let places = [(); 3].map(|()| limiter.reserve("key", 1).unwrap());
    limiter.set_quota(&Quota::per_minute(60).with_burst(1)).unwrap();
    assert_eq!(places.each_ref().map(milliseconds), [0, 1_000, 2_000]);
    limiter.set_quota(&Quota::per_minute(6).with_burst(1)).unwrap();
    clock.set(5 * SECOND);
    assert_eq!(places.each_ref().map(milliseconds), [0, 5_000, 15_000]);
}

#[test]
fn threads_leave_in_order_at_the_pace_of_the_quota() {
    let (limiter, clock) = limiter(Quota::per_second(1));
    let limiter = Arc::new(limiter);
    let (sender, receiver) = std::sync::mpsc::channel();
    let threads = (0..10_usize).map(|number| {
        let (shared, sender, clock) = (Arc::clone(&limiter), sender.clone(), clock.clone());
        let thread = thread::spawn(move || {
            assert!(shared.wait("key").unwrap().decision().is_allowed());
            sender.send((number, tollgate::Clock::now(&clock) / SECOND)).unwrap();
        });
        // The first goes at once; the others come one after the other.
        while limiter.peek("key").is_allowed() || limiter.waiting() < number {
            thread::yield_now();
        }
        thread
    });
    let threads = threads.collect::<Vec<_>>();
    for second in 0..10 {
        clock.set(second * SECOND);
        assert_eq!(receiver.recv().unwrap(), (usize::try_from(second).unwrap(), second));
    }
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(limiter.waiting(), 0);
}

/// Nothing panics, wraps or hangs, whatever is asked for.
#[test]
fn extremes_are_survived() {
    let years = Duration::from_nanos(1 << 58);
    let periods = [1, 1_000_000_007, 1 << 61];
    let quotas = || {
        periods.into_iter().flat_map(|nanos| {
            [1, nanos, 1_000].into_iter().flat_map(move |limit| {
                let quota = Quota::with_period(limit, Duration::from_nanos(nanos));
                Algorithm::ALL.iter().map(move |&algorithm| quota.with_algorithm(algorithm))
            })
        })
    };
    for (others, memory, horizon, start) in [
        (0, Memory::Exact, years, 0),
        (3, Memory::Exact, years, u64::MAX),
        (255, Memory::Exact, Duration::from_secs(60), 1 << 60),
        (1, Memory::Compact, Duration::from_secs(60), 0),
        (0, Memory::Exact, Duration::ZERO, 7),
    ] {
        for quota in quotas() {
            // A log takes time in proportion to its limit.
            if quota.algorithm() == Algorithm::SlidingWindowLog && quota.limit() > 10 {
                continue;
            }
            let clock = ManualClock::at(start);
            let builder = Limiter::<u64>::builder(quota).and(quota).capacity(2).other_quotas(others).memory(memory);
            let Ok(limiter) = builder.waiting(3, 5).horizon(horizon).clock(clock.clone()).build() else { continue };
            let mut places = Vec::new();
            for (step, other) in quotas().enumerate() {
                clock.set([start, start.saturating_add(1 << (step % 63)), u64::MAX, 0][step % 4]);
                for cost in [0, 1, quota.limit(), u64::MAX] {
                    let _ = limiter.check_n_with(&1, cost, &other);
                    places.extend(limiter.reserve_within(&1, cost, Duration::from_nanos(u64::MAX >> (step % 64))).ok());
                }
                limiter.charge(&1, u64::MAX >> (step % 64));
                let _ = limiter.set_quota_at(step % 2, &other);
                let _ = (limiter.check(&1), limiter.peek_with(&2, &other), limiter.sweep());
                assert!(!format!("{:?} {:?}", limiter.peek(&1), places.last()).is_empty());
                match step % 3 {
                    0 => places.truncate(1),
                    1 => places.drain(..).for_each(Reservation::cancel),
                    _ => places.drain(..).for_each(Reservation::keep),
                }
                limiter.refund(&1, u64::MAX >> (step % 64));
            }
            drop(places);
            assert_eq!(limiter.waiting(), 0);
        }
    }
}

/// What has come back of a place by itself is not given back once more, to whom it belonged or to those behind it.
#[test]
fn a_place_given_up_late_lets_nobody_go_too_soon() {
    for change in [false, true] {
        let (limiter, clock) = limiter(Quota::per_second(1));
        if change {
            limiter.set_quota(&Quota::per_second(1)).unwrap();
        }
        let [first, late, third, fourth] = [(); 4].map(|()| limiter.reserve("key", 1).unwrap());
        first.keep();
        clock.set(SECOND * 3 / 2);
        late.cancel();
        // The third can go only now, and those behind it a second later each.
        assert_eq!([&third, &fourth].map(|place| milliseconds(place)), [0, 1_000], "{change}");
        assert_eq!(limiter.peek("key").retry_after(), Duration::from_secs(2));
    }
}

#[test]
fn a_window_that_is_over_is_not_given_back() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindowLog] {
        let (limiter, clock) = limiter(Quota::per_second(10).with_algorithm(algorithm));
        let [first, late, third] = [(); 3].map(|()| limiter.reserve("key", 10).unwrap());
        first.keep();
        clock.advance(third.wait());
        assert_eq!(third.wait(), Duration::ZERO);
        late.cancel();
        drop(third);
        assert!(!limiter.check("key").is_allowed(), "{algorithm}");
    }
}

/// The first of two that gives up at once leaves no trace, with any algorithm.
#[test]
fn the_first_of_two_gives_up() {
    for &algorithm in Algorithm::ALL {
        let quota = Quota::per_second(1).with_algorithm(algorithm);
        let quota = if algorithm == Algorithm::LeakyBucket { quota.with_burst(0) } else { quota };
        let (limiter, _) = limiter(quota);
        let [first, second] = [(); 2].map(|()| limiter.reserve("key", 1).unwrap());
        first.cancel();
        assert_eq!(second.wait(), Duration::ZERO, "{algorithm}");
        second.cancel();
        assert!(limiter.check("key").is_allowed(), "{algorithm}");
    }
}

/// What is booked at one moment is of one window.
#[test]
fn a_cost_that_does_not_fit_waits_for_the_next_window() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindowCounter, Algorithm::SlidingWindowLog] {
        let (limiter, clock) = limiter(Quota::per_second(10).with_algorithm(algorithm));
        assert!(limiter.check_n("key", 5).unwrap().is_allowed());
        let told = limiter.check_n("key", 10).unwrap().retry_after();
        let place = limiter.reserve("key", 10).unwrap();
        assert_eq!(place.wait(), told, "{algorithm}");
        clock.advance(told);
        drop(place);
        assert_eq!(limiter.check_up_to("key", 10).granted(), 0, "{algorithm}");
    }
}

/// Where a state has no bit to spare, a later window cannot be booked; that is said, and nothing is taken.
#[test]
fn a_full_state_has_no_room_for_a_later_window() {
    let quota = Quota::per_second((1 << 20) - 1).with_algorithm(Algorithm::SlidingWindowCounter);
    let (limiter, clock) = limiter(quota);
    assert!(limiter.check_n("key", quota.limit()).unwrap().is_allowed());
    assert!(matches!(limiter.reserve("key", 1), Err(WaitError::TooLong { wait: Duration::MAX })));
    clock.set(SECOND);
    assert_eq!(limiter.peek("key").remaining(), 0);
    // Within the window it can.
    let place = limiter.reserve("key", quota.limit() / 2).unwrap();
    assert!((499..=501).contains(&milliseconds(&place)));
    clock.advance(place.wait());
    drop(place);
    assert_eq!(limiter.peek("key").remaining(), 0);
}

/// A place whose time has come stays used, whatever becomes of the quota and the clock.
#[test]
fn what_was_used_is_not_given_back() {
    let (limiter, clock) = limiter(Quota::per_second(10));
    let place = limiter.reserve("key", 10).unwrap();
    limiter.set_quota(&Quota::per_second(10).with_burst(5)).unwrap();
    drop(place);
    assert_eq!(limiter.peek("key").retry_after(), Duration::from_millis(600));
    clock.set(10 * SECOND);
    assert!(limiter.check_n("key", 5).unwrap().is_allowed());
    let place = limiter.reserve("key", 1).unwrap();
    clock.advance(place.wait());
    assert_eq!(place.wait(), Duration::ZERO);
    clock.set(10 * SECOND);
    drop(place);
    assert_eq!(limiter.peek("key").retry_after(), Duration::from_millis(200));
}

/// What was forgotten, converted or never counted is not given back either.
#[test]
fn what_is_not_owed_is_not_given_back() {
    // After a reset those who wait begin anew.
    let (limiter, _) = limiter(Quota::per_second(10));
    assert!(limiter.check_n("key", 10).unwrap().is_allowed());
    let used = limiter.reserve_within("key", 10, Duration::from_secs(1)).unwrap();
    limiter.reset("key");
    assert_eq!((used.wait(), limiter.peek("key").remaining()), (Duration::ZERO, 0));
    limiter.reset("key");
    assert!(limiter.check_n("key", 10).unwrap().is_allowed());
    used.cancel();
    assert!(!limiter.check("key").is_allowed());

    // A faster quota has let the debt come back.
    let (clock, fast) = (ManualClock::new(), Quota::per_second(1_000));
    let builder = Limiter::<str>::builder(Quota::per_second(1).with_burst(10)).other_quotas(1).clock(clock.clone());
    let limiter = builder.build().unwrap();
    assert!(limiter.check_n("key", 10).unwrap().is_allowed());
    let place = limiter.reserve("key", 10).unwrap();
    assert!(limiter.check_with("key", &fast).unwrap().is_allowed());
    clock.set(SECOND / 10);
    assert!(limiter.check_n("key", 10).unwrap().is_allowed());
    place.cancel();
    assert!(!limiter.check("key").is_allowed());

    // A key that the table had no room for.
    let builder = Limiter::<u64>::builder(Quota::per_minute(10)).when_full(tollgate::WhenFull::AdmitUntracked);
    let limiter = builder.capacity(1).clock(ManualClock::new()).build().unwrap();
    (0..8).for_each(|key| assert!(limiter.check(&key).is_allowed()));
    let place = limiter.reserve(&99, 5).unwrap();
    (0..8).for_each(|key| limiter.reset(&key));
    limiter.sweep();
    assert!(limiter.check_n(&99, 10).unwrap().is_allowed());
    place.cancel();
    assert!(!limiter.check(&99).is_allowed());
}

/// A place that is given up restores the state as it was, be it that of another quota.
#[test]
fn a_key_of_another_quota_keeps_it() {
    let (clock, slow) = (ManualClock::new(), Quota::per_hour(10));
    let builder = Limiter::<str>::builder(Quota::per_second(10)).other_quotas(1).clock(clock.clone());
    let limiter = builder.build().unwrap();
    assert!(limiter.check_n_with("key", 10, &slow).unwrap().is_allowed());
    limiter.reserve("key", 10).unwrap().cancel();
    clock.set(SECOND);
    assert_eq!(limiter.peek_with("key", &slow).unwrap().remaining(), 0);
}

#[test]
fn a_refund_lets_those_who_wait_move_up() {
    for &algorithm in Algorithm::ALL {
        let (limiter, _) = limiter(Quota::per_second(1).with_algorithm(algorithm));
        while limiter.check("key").is_allowed() {}
        let [first, second] = [(); 2].map(|()| limiter.reserve("key", 1).unwrap());
        let before = first.wait();
        limiter.refund("key", 1);
        assert_eq!((first.wait(), second.wait()), (Duration::ZERO, before), "{algorithm}");
    }
}

#[test]
fn a_block_lets_nobody_go_and_refused_bookings_count() {
    let clock = ManualClock::new();
    let penalty = tollgate::Penalty::new(Duration::from_secs(10), Duration::from_secs(10)).after(3);
    let builder = Limiter::<str>::builder(Quota::per_second(1)).penalty(penalty).clock(clock.clone());
    let limiter = builder.build().unwrap();
    assert!(limiter.check("key").is_allowed());
    for _ in 0..3 {
        assert!(matches!(limiter.reserve_within("key", 1, Duration::ZERO), Err(WaitError::TooLong { .. })));
    }
    assert!(matches!(limiter.reserve("key", 1), Err(WaitError::Refused(decision)) if decision.is_blocked()));
    clock.set(11 * SECOND);
    let limiter = Arc::new(limiter);
    assert!(limiter.check("key").is_allowed());
    let waiting = Arc::clone(&limiter);
    let thread = thread::spawn(move || waiting.wait("key"));
    while limiter.waiting() == 0 {
        thread::yield_now();
    }
    limiter.block("key", Duration::from_secs(60));
    clock.advance(Duration::from_secs(1));
    assert!(matches!(thread.join().unwrap(), Err(WaitError::Refused(decision)) if decision.is_blocked()));
    assert_eq!(limiter.waiting(), 0);
}

/// Where the limiter's time ends nobody waits for what never comes.
#[test]
fn nobody_waits_beyond_the_end_of_time() {
    let clock = ManualClock::new();
    let builder = Limiter::<str>::builder(Quota::per_minute(1)).horizon(Duration::from_secs(10)).clock(clock.clone());
    let limiter = builder.build().unwrap();
    assert!(limiter.check("key").is_allowed());
    for now in [0, u64::MAX] {
        clock.set(now);
        assert!(matches!(limiter.wait("key"), Err(WaitError::TooLong { wait: Duration::MAX })));
    }
    assert_eq!(limiter.waiting(), 0);
}

/// Those who have a reservation with several quotas keep the pace of each if they ask until it is time.
#[test]
fn a_reservation_with_several_quotas_is_for_all_of_them() {
    let window = Quota::per_minute(10).with_algorithm(Algorithm::FixedWindow);
    let clock = ManualClock::new();
    let builder = Limiter::<str>::builder(Quota::per_second(1)).and(window).clock(clock.clone());
    let limiter = builder.build().unwrap();
    limiter.charge("key", 10);
    clock.set(30 * SECOND);
    let places = [(); 4].map(|()| limiter.reserve("key", 1).unwrap());
    assert_eq!(places.each_ref().map(milliseconds), [30_000; 4]);
    clock.set(60 * SECOND);
    assert_eq!(places.each_ref().map(milliseconds), [0, 1_000, 2_000, 3_000]);
    let [first, second, third, fourth] = places;
    drop((first, second));
    assert_eq!([&third, &fourth].map(|place| milliseconds(place)), [1_000, 2_000], "the second has given up");
}

/// A place for which a lowered limit has no room waits for a higher one; who waits without a reservation is told at once.
#[test]
fn a_place_beyond_a_lowered_limit_comes_when_the_limit_is_raised() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindowCounter] {
        let quota = |limit| Quota::per_second(limit).with_algorithm(algorithm);
        let (limiter, clock) = limiter(quota(4));
        let limiter = Arc::new(limiter);
        assert!(limiter.check_n("key", 4).unwrap().is_allowed());
        let place = limiter.reserve("key", 4).unwrap();
        let waiting = Arc::clone(&limiter);
        let thread = thread::spawn(move || waiting.wait_n("key", 4, Duration::MAX));
        while limiter.waiting() < 2 {
            thread::yield_now();
        }
        limiter.set_quota(&quota(3)).unwrap();
        let error = thread.join().unwrap().unwrap_err();
        assert!(matches!(error, WaitError::TooLong { wait: Duration::MAX }), "{algorithm}: {error}");
        assert_eq!(place.wait(), Duration::MAX);
        let behind = limiter.reserve("key", 1).unwrap();
        limiter.set_quota(&quota(5)).unwrap();
        assert!(behind.wait() <= place.wait() && place.wait() < Duration::from_secs(4), "{algorithm}: {place:?}");
        clock.advance(place.wait());
        assert_eq!((place.wait(), behind.wait()), (Duration::ZERO, Duration::ZERO), "{algorithm}");
    }
}

/// What was given up, kept or taken back before does not stand in the way of those behind.
#[test]
fn a_kept_place_moves_up_like_the_others() {
    let (limiter, clock) = limiter(Quota::per_second(1));
    let [first, second, kept, last] = [(); 4].map(|()| limiter.reserve("key", 1).unwrap());
    let nothing = limiter.reserve("key", 0).unwrap();
    kept.keep();
    assert_eq!((limiter.waiting(), nothing.wait()), (3, Duration::ZERO), "a kept place is one until its time");
    drop(second);
    assert_eq!(last.wait(), Duration::from_secs(2));
    clock.set(SECOND);
    assert_eq!(limiter.waiting(), 1);
    drop((first, last));
    assert_eq!(limiter.waiting(), 0);
    assert_eq!(limiter.peek("key").retry_after(), Duration::from_secs(1));
}
