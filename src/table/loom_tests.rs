//! The protocol under loom: tables of one or two sets of two slots, all interleavings up to the bounds given.
//!
//! Keys are chosen by where they go. Rules are the simplest there are: a state counts units up to a burst, and which
//! states are idle is each thread's own opinion, as it is when their clocks differ.

#![allow(clippy::unwrap_used)]

use super::set::{Kind, Set, Word as _};
use super::{CompactSet, ExactSet, NEW, Outcome, Rule, Table};
use loom::thread;
// std's: loom's would take each clone and drop for one more thing to interleave.
use std::sync::Arc;

/// Counts units: `burst` of them are admitted, and states up to `idle_up_to` are idle.
#[derive(Clone, Copy)]
struct Counter {
    burst: u64,
    idle_up_to: u64,
}

impl Rule for Counter {
    fn charge(&self, state: u64) -> Option<u64> {
        let used = if self.is_idle(state) { self.idle_up_to } else { state };
        (used < self.idle_up_to + self.burst).then_some(used + 1)
    }

    fn undo(&self, state: u64, _charged: u64) -> u64 {
        state.saturating_sub(1)
    }

    fn is_idle(&self, state: u64) -> bool {
        state <= self.idle_up_to
    }

    fn debt(&self, _position: usize, state: u64) -> u64 {
        state.saturating_sub(self.idle_up_to)
    }
}

/// At the beginning nothing but a new state is idle.
const fn at_start(burst: u64) -> Counter {
    Counter { burst, idle_up_to: 0 }
}

/// Later, what was charged up to `idle_up_to` has come back.
const fn later(burst: u64, idle_up_to: u64) -> Counter {
    Counter { burst, idle_up_to }
}

// With two sets the top bit of a hash picks the first set and bit 31 the second.
const LOW_LOW: u64 = 1;
const LOW_HIGH: u64 = 1 << 31;

/// A table of one set (two slots), or of two sets.
fn table<S: Set>(sets: usize) -> Table<S> {
    // Half as many slots again as keys, in sets of two.
    let table = Table::new(if sets == 1 { 1 } else { 2 }, 1).unwrap();
    assert_eq!(table.set_count(), sets);
    table
}

/// Checks all interleavings in which threads are preempted at most so many times.
fn model(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(test);
}

/// Checks the first `most` of those interleavings, where all of them take too long.
fn model_some(preemptions: usize, most: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_permutations = Some(most);
    builder.check(test);
}

fn charge<S: Set>(table: &Table<S>, id: u64, rule: Counter, displace: bool) -> Outcome {
    table.charge(table.approach(id), id, rule, displace)
}

fn admitted(outcome: Outcome) -> u64 {
    u64::from(matches!(outcome, Outcome::Charged(_)))
}

/// Makes each of `charges` on a thread of its own (the first on this one), and tells how many were admitted of each.
fn race<S: Set + 'static>(table: &Arc<Table<S>>, charges: &[(u64, Counter)], displace: bool) -> Vec<u64> {
    let start = |&(id, rule): &(u64, Counter)| {
        let table = Arc::clone(table);
        thread::spawn(move || admitted(charge(&table, id, rule, displace)))
    };
    let threads: Vec<_> = charges[1..].iter().map(start).collect();
    let (id, rule) = charges[0];
    let first = admitted(charge(table, id, rule, displace));
    std::iter::once(first).chain(threads.into_iter().map(|thread| thread.join().unwrap())).collect()
}

/// Each key is in at most one slot, no slot is left claimed or pending, and `len` counts what is there.
fn assert_consistent<S: Set>(table: &Table<S>, ids: &[u64]) {
    let mut entries = 0;
    for &id in ids {
        let found = table.candidates(id).filter(|slot| {
            let word = slot.word();
            word.kind() == Kind::Live && slot.set.shows(slot.place, word, id)
        });
        let found = found.count();
        assert!(found <= 1, "{id:x} is in {found} slots");
        entries += found;
    }
    for (number, set) in table.sets.iter().enumerate() {
        for place in 0..super::WIDTH {
            let kind = set.word(place).kind();
            assert!(matches!(kind, Kind::Live | Kind::Empty), "slot {place} of set {number} was left {kind:?}");
        }
    }
    assert_eq!(table.len(), entries);
}

/// Each model is checked for both ways of keeping keys.
macro_rules! models {
    ($($model:ident)*) => {
        mod exact {
            $(#[test]
            fn $model() {
                super::$model::<super::ExactSet>();
            })*
        }

        mod compact {
            $(#[test]
            fn $model() {
                super::$model::<super::CompactSet>();
            })*
        }
    };
}

models! {
    two_threads_insert_one_key
    three_threads_insert_one_key
    two_threads_insert_one_key_into_different_sets
    insert_while_the_slots_before_come_free
    charge_against_takeover
    a_charge_never_hits_another_key
    charge_against_sweep
    sweep_never_frees_a_live_entry
    charge_against_displacement
    two_keys_want_the_last_slot
    insert_insert_and_sweep
    peek_against_all
    a_refusal_is_never_another_keys
    a_peek_is_never_another_keys
    a_pending_entry_is_never_another_keys
}

fn two_threads_insert_one_key<S: Set + 'static>() {
    model(4, || {
        let table = Arc::new(table::<S>(2));
        let rule = at_start(1);
        let admitted = race(&table, &[(LOW_HIGH, rule), (LOW_HIGH, rule)], true);
        assert_eq!(admitted.iter().sum::<u64>(), 1);
        assert_consistent(&table, &[LOW_HIGH]);
    });
}

fn three_threads_insert_one_key<S: Set + 'static>() {
    model_some(2, 500_000, || {
        let table = Arc::new(table::<S>(1));
        let rule = at_start(2);
        let admitted = race(&table, &[(LOW_LOW, rule); 3], true);
        assert_eq!(admitted.iter().sum::<u64>(), 2);
        assert_consistent(&table, &[LOW_LOW]);
    });
}

fn two_threads_insert_one_key_into_different_sets<S: Set + 'static>() {
    model(3, || {
        // The first set is full of keys that only one of the threads takes for idle, so that one goes for the first
        // set and the other for the second.
        let table = Arc::new(table::<S>(2));
        charge(&table, LOW_LOW, at_start(1), false);
        charge(&table, LOW_LOW + 1, at_start(1), false);
        let admitted = race(&table, &[(LOW_HIGH, later(1, 1)), (LOW_HIGH, at_start(2))], false);
        // Whoever comes second finds the entry at its own burst: 2 units, with or without one come back.
        assert!(admitted.iter().sum::<u64>() <= 2);
        assert!(admitted.iter().sum::<u64>() >= 1);
        assert_consistent(&table, &[LOW_LOW, LOW_LOW + 1, LOW_HIGH]);
    });
}

fn insert_while_the_slots_before_come_free<S: Set + 'static>() {
    model(3, || {
        // One thread inserts behind a full first set; that set is swept, and another inserts in front.
        let table = Arc::new(table::<S>(2));
        charge(&table, LOW_LOW, at_start(1), false);
        charge(&table, LOW_LOW + 1, at_start(1), false);
        let sweeping = Arc::clone(&table);
        let sweeper = thread::spawn(move || sweeping.sweep(1, later(1, 1)));
        let rule = at_start(1);
        let admitted = race(&table, &[(LOW_HIGH, rule), (LOW_HIGH, rule)], false);
        sweeper.join().unwrap();
        assert_eq!(admitted.iter().sum::<u64>(), 1);
        assert_consistent(&table, &[LOW_LOW, LOW_LOW + 1, LOW_HIGH]);
    });
}

fn charge_against_takeover<S: Set + 'static>() {
    model(3, || {
        // The key has used 1 of 2 and is idle to the thread that needs its slot. Both slots are taken.
        let table = Arc::new(table::<S>(1));
        charge(&table, 1, at_start(2), false);
        charge(&table, 2, at_start(2), false);
        charge(&table, 2, at_start(2), false);
        let admitted = race(&table, &[(1, at_start(2)), (1, at_start(2)), (3, later(2, 1))], false);
        // One unit is left before the takeover, and no slot after it.
        if table.peek(1) == NEW {
            assert!(admitted[0] + admitted[1] <= 1);
            assert_eq!((admitted[2], table.peek(3)), (1, 2));
        } else {
            assert_eq!((admitted[0] + admitted[1], table.peek(1)), (1, 2));
        }
        // Key 2 owes the same as ever: nobody's charge went astray.
        assert_eq!(table.peek(2), 2);
        assert_consistent(&table, &[1, 2, 3]);
    });
}

fn a_charge_never_hits_another_key<S: Set + 'static>() {
    model(3, || {
        // Key 1 is displaced by key 3, with exactly the state that key 1 had. (Under loom there is one life only, so
        // the words are equal too.)
        let table = Arc::new(table::<S>(1));
        charge(&table, 1, at_start(2), false);
        charge(&table, 2, at_start(2), false);
        let admitted = race(&table, &[(1, at_start(2)), (3, at_start(2))], true);
        assert_eq!(admitted[1], 1);
        // Key 3 owes its own unit, and nothing of key 1's; unless key 1 came back and displaced it.
        assert!([NEW, 1].contains(&table.peek(3)), "{}", table.peek(3));
        assert!([NEW, 1, 2].contains(&table.peek(1)));
        let displaced = table.shards().stats().displaced;
        assert!((1..=3).contains(&displaced), "{displaced}");
        assert_consistent(&table, &[1, 2, 3]);
    });
}

fn charge_against_sweep<S: Set + 'static>() {
    model(3, || {
        let table = Arc::new(table::<S>(1));
        charge(&table, 1, at_start(2), false);
        let sweeping = Arc::clone(&table);
        // The sweeper's clock is ahead: it holds for idle what the others do not.
        let sweeper = thread::spawn(move || sweeping.sweep(1, later(2, 1)) as u64);
        let admitted: u64 = race(&table, &[(1, at_start(2)), (1, at_start(2))], false).iter().sum();
        let swept = sweeper.join().unwrap();
        // Swept, the key begins anew, which is what the sweeper's clock says; else it has one unit left.
        assert!(admitted >= 1 && admitted <= 1 + swept, "{admitted} admitted, {swept} swept");
        assert_consistent(&table, &[1]);
    });
}

fn sweep_never_frees_a_live_entry<S: Set + 'static>() {
    model(4, || {
        let table = Arc::new(table::<S>(1));
        charge(&table, 1, at_start(2), false);
        let sweeping = Arc::clone(&table);
        let sweeper = thread::spawn(move || sweeping.sweep(1, later(2, 1)));
        // A charge on a clock that agrees with the sweeper's makes the idle entry live again.
        let admitted = race(&table, &[(1, later(2, 1)), (1, later(2, 1))], false);
        sweeper.join().unwrap();
        assert_eq!(admitted.iter().sum::<u64>(), 2);
        assert_eq!(table.peek(1), 3);
        assert_consistent(&table, &[1]);
    });
}

fn charge_against_displacement<S: Set + 'static>() {
    model(3, || {
        let table = Arc::new(table::<S>(1));
        charge(&table, 1, at_start(3), true);
        charge(&table, 2, at_start(3), true);
        charge(&table, 2, at_start(3), true);
        let admitted = race(&table, &[(1, at_start(3)), (3, at_start(3))], true);
        assert_eq!(admitted, [1, 1]);
        assert!(table.shards().stats().displaced >= 1);
        assert_consistent(&table, &[1, 2, 3]);
    });
}

fn two_keys_want_the_last_slot<S: Set + 'static>() {
    model(3, || {
        let table = Arc::new(table::<S>(1));
        charge(&table, 1, at_start(1), false);
        let rule = at_start(1);
        let admitted = race(&table, &[(2, rule), (3, rule)], false);
        assert_eq!(admitted.iter().sum::<u64>(), 1, "one gets the slot, the other is told that there is none");
        assert_eq!(table.shards().stats().displaced, 0);
        assert_eq!(table.peek(1), 1);
        assert_consistent(&table, &[1, 2, 3]);
    });
}

fn insert_insert_and_sweep<S: Set + 'static>() {
    model(2, || {
        let table = Arc::new(table::<S>(1));
        charge(&table, 1, at_start(1), false);
        let sweeping = Arc::clone(&table);
        let sweeper = thread::spawn(move || sweeping.sweep(1, later(1, 1)));
        let admitted = race(&table, &[(2, later(1, 1)), (2, later(1, 1))], false);
        sweeper.join().unwrap();
        assert_eq!(admitted.iter().sum::<u64>(), 1);
        assert_consistent(&table, &[1, 2]);
    });
}

fn peek_against_all<S: Set + 'static>() {
    model(2, || {
        let table = Arc::new(table::<S>(1));
        charge(&table, 1, at_start(2), false);
        let peeking = Arc::clone(&table);
        let peeker = thread::spawn(move || peeking.peek(1));
        let sweeping = Arc::clone(&table);
        let sweeper = thread::spawn(move || sweeping.sweep(1, later(2, 1)));
        charge(&table, 2, later(2, 5), false);
        charge(&table, 1, at_start(2), false);
        let seen = peeker.join().unwrap();
        sweeper.join().unwrap();
        // Its own state at some moment: never the other key's, which is 6 from the start.
        assert!([NEW, 1, 2].contains(&seen), "saw {seen}");
        assert_consistent(&table, &[1, 2]);
    });
}

fn a_refusal_is_never_another_keys<S: Set + 'static>() {
    model(3, || {
        // Key 2 displaces a key that is used up. Its second check must not be refused for that key's debt, whatever
        // parts of the handover it sees.
        let table = Arc::new(table::<S>(1));
        for id in [1, 1, 3, 3] {
            charge(&table, id, at_start(2), false);
        }
        let admitted = race(&table, &[(2, at_start(2)), (2, at_start(2))], true);
        assert_eq!(admitted, [1, 1]);
        assert_eq!(table.peek(2), 2);
        assert_consistent(&table, &[1, 2, 3]);
    });
}

fn a_peek_is_never_another_keys<S: Set + 'static>() {
    model(3, || {
        // Key 2 displaces a key that has used two units, while somebody looks what key 2 has used.
        let table = Arc::new(table::<S>(1));
        for id in [1, 1, 3, 3] {
            charge(&table, id, at_start(2), false);
        }
        let peeking = Arc::clone(&table);
        let peek = thread::spawn(move || peeking.peek(2));
        charge(&table, 2, at_start(2), true);
        assert!(peek.join().unwrap() <= 1);
    });
}

fn a_pending_entry_is_never_another_keys<S: Set + 'static>() {
    model(5, || {
        // An emptied slot still shows key 1. Key 2 is entered there while key 1 looks for itself.
        let table = Arc::new(table::<S>(1));
        charge(&table, 1, at_start(1), false);
        assert_eq!(table.sweep(1, later(1, 1)), 1);
        let admitted = race(&table, &[(1, at_start(1)), (2, at_start(1))], false);
        assert_eq!(admitted, [1, 1]);
        assert_eq!((table.peek(1), table.peek(2)), (1, 1));
        assert_consistent(&table, &[1, 2]);
    });
}
