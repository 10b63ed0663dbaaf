//! What ledgers do beyond the protocol of the table, under loom: the units of a log, several quotas as one, and refunds
//! and resets against checks. Tables of one set of two slots.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use loom::thread;

use super::{Ledger, Link, Memory, Room, WhenFull};
use crate::quota::{Algorithm, Quota};
use crate::terms::FIRST;
use crate::timeline::Timeline;
use crate::together::{self, Share};

const SECOND: u64 = 1_000_000_000;

/// For a set of two slots.
const ROOM: Room =
    Room { capacity: 1, memory: Memory::Exact, shards: 1, when_full: WhenFull::DisplaceLeast, others: 0 };

fn model(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    // Enough for all of nearly every model; the largest would go on for minutes.
    builder.max_permutations = Some(300_000);
    builder.check(test);
}

/// Room for two keys, each with `limit` units a second.
fn ledger(algorithm: Algorithm, limit: u64) -> Arc<Ledger> {
    let quota = Quota::per_second(limit).with_algorithm(algorithm);
    Arc::new(Ledger::new(&quota, &Timeline::new(0, Duration::from_secs(3_600)), ROOM).unwrap())
}

fn check(ledger: &Ledger, id: u64, now: u64) -> u64 {
    ledger.decide_at(FIRST, id, 1, now).granted()
}

/// Asks `ledger` for the second key of each pair at the first's moment, each on a thread of its own.
fn race(ledger: &Arc<Ledger>, asked: &[(u64, u64)]) -> Vec<u64> {
    let ask = |&(now, id): &(u64, u64)| {
        let ledger = Arc::clone(ledger);
        thread::spawn(move || check(&ledger, id, now))
    };
    let threads: Vec<_> = asked[1..].iter().map(ask).collect();
    let first = check(ledger, asked[0].1, asked[0].0);
    std::iter::once(first).chain(threads.into_iter().map(|thread| thread.join().unwrap())).collect()
}

#[test]
fn a_log_gives_a_new_key_no_more_than_there_is() {
    model(3, || {
        let log = ledger(Algorithm::SlidingWindowLog, 1);
        assert_eq!(race(&log, &[(0, 1), (0, 1)]).iter().sum::<u64>(), 1);
        assert_eq!(log.look(FIRST, 1, 1, 0).remaining(), 0);
        assert_eq!(log.look(FIRST, 1, 1, SECOND).remaining(), 1);
    });
}

#[test]
fn three_threads_want_the_two_units_of_a_log() {
    model(2, || {
        let log = ledger(Algorithm::SlidingWindowLog, 2);
        // The key is known, but all of its units are free again.
        assert_eq!(check(&log, 1, 0), 1);
        assert_eq!(race(&log, &[(SECOND, 1), (SECOND, 1), (SECOND, 1)]).iter().sum::<u64>(), 2);
        assert_eq!(log.look(FIRST, 1, 1, SECOND).remaining(), 0);
    });
}

#[test]
fn all_or_none_of_the_units_of_a_log() {
    model(3, || {
        let log = ledger(Algorithm::SlidingWindowLog, 3);
        assert_eq!(check(&log, 1, 0), 1);
        let other = Arc::clone(&log);
        let thread = thread::spawn(move || other.decide_at(FIRST, 1, 2, 0).granted());
        let granted = log.decide_at(FIRST, 1, 2, 0).granted() + thread.join().unwrap();
        // Both may be refused for what the other has taken and gives back, but nothing is lost by that.
        assert!(granted == 2 || granted == 0, "{granted}");
        assert_eq!(log.look(FIRST, 1, 1, 0).remaining(), 2 - granted);
    });
}

#[test]
fn a_log_is_never_swept_under_a_charge() {
    model(3, || {
        // By the sweeper's clock the entry is idle, by the other's it becomes so at the same moment.
        let log = ledger(Algorithm::SlidingWindowLog, 1);
        assert_eq!(check(&log, 1, 0), 1);
        let other = Arc::clone(&log);
        let sweep = thread::spawn(move || other.sweep(1, SECOND));
        assert_eq!(check(&log, 1, SECOND), 1);
        sweep.join().unwrap();
        assert_eq!(check(&log, 1, SECOND), 0);
        assert_eq!(log.look(FIRST, 1, 1, 2 * SECOND - 1).remaining(), 0);
    });
}

#[test]
fn a_log_that_is_displaced_is_handed_over_empty() {
    model(2, || {
        // Both slots are live. Key 3 displaces one while its key is charged once more, and may be displaced by that again;
        // but it is never charged for what others have used.
        let log = ledger(Algorithm::SlidingWindowLog, 2);
        for id in [1, 2] {
            assert_eq!(check(&log, id, 0), 1);
        }
        assert_eq!(race(&log, &[(0, 3), (0, 1)]), [1, 1]);
        let left = [1, 2, 3].map(|id| log.look(FIRST, id, 1, 0).remaining());
        assert!(left[2] >= 1, "{left:?}");
    });
}

fn check_all(ledgers: &[Arc<Ledger>]) -> u64 {
    let share = |index: usize| Some(Share { number: FIRST, ledger: ledgers.get(index)?, id: 1, now: 0 });
    together::decide(share, 1).granted()
}

/// Two threads check a key whose second quota has one unit only: it is admitted once, and the first is charged for that.
fn charged_by_all_or_by_none(preemptions: usize, algorithms: [Algorithm; 2], limits: [u64; 2]) {
    model(preemptions, move || {
        let ledgers = [ledger(algorithms[0], limits[0]), ledger(algorithms[1], limits[1])];
        let others = ledgers.clone();
        let thread = thread::spawn(move || check_all(&others));
        let granted = check_all(&ledgers) + thread.join().unwrap();
        assert!(granted <= 1);
        for (ledger, limit) in ledgers.iter().zip(limits) {
            assert_eq!(ledger.look(FIRST, 1, 1, 0).remaining(), limit - granted);
        }
        if limits[0] > 1 {
            assert_eq!(granted, 1, "only the last quota refuses, so nobody stands in the other's way for nothing");
        }
    });
}

#[test]
fn two_buckets_are_charged_as_one() {
    charged_by_all_or_by_none(2, [Algorithm::TokenBucket; 2], [2, 1]);
    charged_by_all_or_by_none(2, [Algorithm::TokenBucket; 2], [1, 2]);
}

#[test]
fn a_window_and_a_log_are_charged_as_one() {
    charged_by_all_or_by_none(1, [Algorithm::FixedWindow, Algorithm::SlidingWindowLog], [2, 1]);
    charged_by_all_or_by_none(1, [Algorithm::SlidingWindowLog, Algorithm::SlidingWindowCounter], [2, 1]);
}

/// Does something to a used up key while it is checked; then as much is left as was given back and not taken.
fn against_a_check(algorithm: Algorithm, given_back: u64, deed: fn(&Ledger)) {
    model(3, move || {
        let ledger = ledger(algorithm, 2);
        assert_eq!(ledger.decide_at(FIRST, 1, 2, 0).granted(), 2);
        let other = Arc::clone(&ledger);
        let thread = thread::spawn(move || check(&other, 1, 0));
        deed(&ledger);
        let granted = thread.join().unwrap();
        assert_eq!(ledger.look(FIRST, 1, 1, 0).remaining(), given_back - granted);
    });
}

#[test]
fn refunds_against_checks() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindowLog] {
        against_a_check(algorithm, 1, |ledger| ledger.refund(1, 1, 0));
    }
}

#[test]
fn resets_against_checks() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::SlidingWindowCounter] {
        against_a_check(algorithm, 2, |ledger| ledger.forget(1, 0));
    }
}

/// Does something to key 1 while key 3 displaces it (key 2 has used more): key 3 is given and charged nothing by that.
fn against_a_displacement(preemptions: usize, deed: fn(&Ledger)) {
    model(preemptions, move || {
        let log = ledger(Algorithm::SlidingWindowLog, 2);
        assert_eq!(check(&log, 1, 0), 1);
        assert_eq!(log.decide_at(FIRST, 2, 2, 0).granted(), 2);
        let other = Arc::clone(&log);
        let thread = thread::spawn(move || deed(&other));
        // At another moment, for units of the same nanosecond are alike.
        let granted = check(&log, 3, 1);
        thread.join().unwrap();
        let left = log.look(FIRST, 3, 1, 1).remaining();
        // It may be refused for what is in flight; and displaced in turn by key 1, it has used nothing.
        let displaced = left == 2 && log.look(FIRST, 1, 1, 1).remaining() < 2;
        assert!(left == 2 - granted || displaced, "{left} after {granted}");
    });
}

#[test]
fn refunds_and_resets_against_a_displacement() {
    against_a_displacement(2, |log| log.refund(1, 1, 0));
    against_a_displacement(1, |log| log.forget(1, 0));
}

#[test]
fn debts_against_a_displacement() {
    against_a_displacement(2, |log| log.force(1, 2, 0));
}

/// Changes the quota of a key while it is checked: what was charged is charged, by whatever quota.
fn a_new_quota_against_a_check(algorithm: Algorithm, limit: u64) {
    model(3, move || {
        let ledger = ledger(algorithm, 2);
        let other = Arc::clone(&ledger);
        let quota = Quota::per_second(limit).with_algorithm(algorithm);
        let thread = thread::spawn(move || other.set_quota(&quota, 0).unwrap());
        let granted = check(&ledger, 1, 0) + check(&ledger, 1, 0);
        thread.join().unwrap();
        assert!(limit < 2 || granted == 2);
        assert_eq!(ledger.look(FIRST, 1, 1, 0).remaining(), limit.saturating_sub(granted));
        assert_eq!(ledger.quota().limit(), limit);
    });
}

#[test]
fn new_quotas_against_checks() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindowCounter] {
        a_new_quota_against_a_check(algorithm, 5);
        a_new_quota_against_a_check(algorithm, 1);
    }
}

/// Room for one quota besides that of three units.
fn ledger_for_two_quotas() -> Arc<Ledger> {
    let room = Room { others: 1, ..ROOM };
    Arc::new(Ledger::new(&Quota::per_second(3), &Timeline::new(0, Duration::from_secs(3_600)), room).unwrap())
}

#[test]
fn a_key_of_two_quotas_owes_the_sum() {
    model(3, || {
        let ledger = ledger_for_two_quotas();
        let other = Arc::clone(&ledger);
        let thread = thread::spawn(move || {
            let number = other.number(&Quota::per_minute(9)).unwrap().unwrap();
            other.decide_at(number, 1, 1, 0).granted()
        });
        let granted = check(&ledger, 1, 0) + thread.join().unwrap();
        assert_eq!((granted, ledger.look(FIRST, 1, 1, 0).remaining()), (2, 1));
    });
}

#[test]
fn of_two_new_quotas_one_takes_the_last_room() {
    for quotas in [[7, 9], [9, 9]] {
        model(3, move || {
            let ledger = ledger_for_two_quotas();
            let check = move |ledger: &Ledger, limit| {
                let number = ledger.number(&Quota::per_minute(limit)).unwrap()?;
                let decision = ledger.decide_at(number, limit, 1, 0);
                assert_eq!(decision.limit(), limit);
                Some(decision.granted())
            };
            let other = Arc::clone(&ledger);
            let thread = thread::spawn(move || check(&other, quotas[0]));
            let granted = [check(&ledger, quotas[1]), thread.join().unwrap()];
            let expected = if quotas[0] == quotas[1] { 2 } else { 1 };
            assert_eq!(granted.into_iter().flatten().sum::<u64>(), expected);
        });
    }
}

/// Books a place and gives it up while a check goes on: nothing is left of it.
#[test]
fn places_given_up_against_checks() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindowLog] {
        for used in [0, 2] {
            model(2, move || {
                let ledger = ledger(algorithm, 2);
                assert!(used == 0 || ledger.decide_at(FIRST, 1, used, 0).is_allowed());
                let other = Arc::clone(&ledger);
                let thread = thread::spawn(move || check(&other, 1, 0));
                let place = ledger.book(FIRST, 1, 1, 0).unwrap();
                ledger.replay(1, Some((&place, 1)), &mut [], 0);
                let granted = thread.join().unwrap();
                assert!(used == 0 || granted == 0);
                assert_eq!(ledger.look(FIRST, 1, 1, 0).remaining(), 2 - used - granted);
            });
        }
    }
}

/// Two book a place each, and a check comes between them or not: no two get the same time.
#[test]
fn places_are_distinct() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindowLog] {
        model(2, move || {
            let ledger = ledger(algorithm, 1);
            let other = Arc::clone(&ledger);
            let thread = thread::spawn(move || {
                let place = other.book(FIRST, 1, 1, 0).unwrap();
                other.wait(&place, 0)
            });
            let granted = check(&ledger, 1, 0);
            let place = ledger.book(FIRST, 1, 1, 0).unwrap();
            let mut waits = [ledger.wait(&place, 0), thread.join().unwrap()].map(|wait| wait / SECOND);
            waits.sort_unstable();
            assert_eq!(waits, [granted, granted + 1]);
        });
    }
}

/// The first of two gives up while a check goes on: the second has its time, and nobody has more than there is.
#[test]
fn those_behind_move_up_against_checks() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindowLog] {
        model(2, move || {
            let ledger = ledger(algorithm, 1);
            assert_eq!(check(&ledger, 1, 0), 1);
            let first = ledger.book(FIRST, 1, 1, 0).unwrap();
            let mut second = ledger.book(FIRST, 1, 1, 0).unwrap();
            let other = Arc::clone(&ledger);
            let thread = thread::spawn(move || check(&other, 1, 0));
            let link = Link { place: &mut second, cost: 1, at: 0, came: false };
            ledger.replay(1, Some((&first, 1)), &mut [link], 0);
            assert_eq!(thread.join().unwrap(), 0);
            assert_eq!(ledger.wait(&second, 0), SECOND);
            let third = ledger.book(FIRST, 1, 1, 0).unwrap();
            assert_eq!(ledger.wait(&third, 0), 2 * SECOND);
        });
    }
}

/// Of two that set the quota at once one is the last, and the quota is known by what it is.
#[test]
fn two_set_the_quota() {
    model(3, || {
        let ledger = ledger_for_two_quotas();
        let quotas = [7, 9].map(Quota::per_minute);
        let other = Arc::clone(&ledger);
        let thread = thread::spawn(move || other.set_quota(&quotas[0], 0).unwrap());
        ledger.set_quota(&quotas[1], 0).unwrap();
        thread.join().unwrap();
        for quota in quotas {
            let number = ledger.number(&quota).unwrap().unwrap();
            assert_eq!(ledger.limit(number), quota.limit());
            assert_eq!(number == FIRST, quota == ledger.quota());
        }
    });
}
