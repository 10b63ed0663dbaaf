//! What loom cannot hold: many threads, a tiny table, takeover all the time, and exact counts.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::set::Word as _;
use super::{CompactSet, ExactSet, Outcome, Rule, Set, Table};

/// `burst` units a key in each epoch; a state is the epoch and the units used in it.
#[derive(Clone, Copy)]
struct Epochs {
    now: u64,
    burst: u64,
}

const UNITS: u32 = 16;

impl Rule for Epochs {
    fn charge(&self, state: u64) -> Option<u64> {
        let state = if self.is_idle(state) { self.now << UNITS } else { state };
        (used(state) < self.burst).then_some(state + 1)
    }

    fn undo(&self, state: u64, _charged: u64) -> u64 {
        state - u64::from(used(state) > 0)
    }

    fn is_idle(&self, state: u64) -> bool {
        state >> UNITS < self.now
    }

    fn debt(&self, _position: usize, state: u64) -> u64 {
        used(state)
    }
}

fn used(state: u64) -> u64 {
    state & ((1 << UNITS) - 1)
}

const THREADS: u64 = 8;
const BURST: u64 = 5;

fn charge<S: Set>(table: &Table<S>, id: u64, rule: Epochs) -> bool {
    matches!(table.charge(table.approach(id), id, rule, false), Outcome::Charged(_))
}

/// A generator of numbers that depends on nothing but its seed (`SplitMix64`).
fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*seed ^ (*seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// In each epoch as many keys as fit are asked for far more often than their burst, by all threads at once, while one
/// of them sweeps. The keys change from epoch to epoch, so each epoch takes the slots of the one before over. Each key
/// must get exactly its burst.
fn every_key_gets_exactly_its_burst<S: Set>() {
    const EPOCHS: u64 = 3_000;
    let table = Table::<S>::new(16, 4).unwrap();
    let counts: Vec<HashMap<u64, AtomicU64>> = (1..=EPOCHS)
        .map(|epoch| {
            let mut seed = epoch;
            (0..6).map(|_| (random(&mut seed), AtomicU64::new(0))).collect()
        })
        .collect();
    let barrier = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (table, counts, barrier) = (&table, &counts, &barrier);
            scope.spawn(move || {
                let mut seed = thread;
                for (epoch, keys) in (1..).zip(counts) {
                    barrier.wait();
                    let rule = Epochs { now: epoch, burst: BURST };
                    let keys: Vec<_> = keys.iter().collect();
                    for _ in 0..40 {
                        let (id, count) = keys[random(&mut seed) as usize % keys.len()];
                        count.fetch_add(u64::from(charge(table, *id, rule)), Ordering::Relaxed);
                        if thread == 0 {
                            table.sweep(1, rule);
                        }
                    }
                    // All that chance has left over is taken now.
                    for (id, count) in keys {
                        for _ in 0..BURST {
                            count.fetch_add(u64::from(charge(table, *id, rule)), Ordering::Relaxed);
                        }
                    }
                    barrier.wait();
                }
            });
        }
    });
    for (epoch, keys) in counts.iter().enumerate() {
        for (id, count) in keys {
            assert_eq!(count.load(Ordering::Relaxed), BURST, "key {id:x} in epoch {epoch}");
        }
    }
    let stats = table.shards().stats();
    assert_eq!(stats.displaced, 0);
    assert!(stats.taken_over + stats.swept >= (EPOCHS - 1) * 6, "{stats:?}");
    assert!(table.len() <= table.set_count() * super::WIDTH);
}

/// Fresh keys that all threads ask for at the same moment: a limit of one admits exactly one.
fn one_of_sixteen<S: Set>() {
    const ROUNDS: u64 = 10_000;
    let table = Table::<S>::new(1_000, 4).unwrap();
    let admitted: Vec<AtomicU64> = (0..ROUNDS).map(|_| AtomicU64::new(0)).collect();
    let barrier = Barrier::new(16);
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let mut seed = 42;
                for (round, admitted) in (1..).zip(&admitted) {
                    let id = random(&mut seed);
                    if round % 50 == 1 {
                        barrier.wait();
                    }
                    // The table holds all that is asked for in one epoch.
                    let rule = Epochs { now: round / 500 + 1, burst: 1 };
                    admitted.fetch_add(u64::from(charge(&table, id, rule)), Ordering::Relaxed);
                    if round % 500 == 499 {
                        barrier.wait();
                    }
                }
            });
        }
    });
    assert!(admitted.iter().all(|admitted| admitted.load(Ordering::Relaxed) == 1));
}

#[test]
fn every_key_gets_exactly_its_burst_in_exact_memory() {
    every_key_gets_exactly_its_burst::<ExactSet>();
}

#[test]
fn every_key_gets_exactly_its_burst_in_compact_memory() {
    every_key_gets_exactly_its_burst::<CompactSet>();
}

#[test]
fn one_of_sixteen_in_exact_memory() {
    one_of_sixteen::<ExactSet>();
}

#[test]
fn one_of_sixteen_in_compact_memory() {
    one_of_sixteen::<CompactSet>();
}

/// No pending word is ever seen twice, so that a compare-and-swap that comes late cannot hit a later one.
fn a_slot_is_never_claimed_alike_twice<S: Set>() {
    let table = Table::<S>::new(1, 4).unwrap();
    let mut seen = Vec::new();
    let mut claim = || {
        let word = table.sets[0].word(0);
        let pending = table.sets[0].claim(0, word, 7, table.shards().nonce(), || ()).unwrap();
        assert!(table.sets[0].replace(0, pending, pending.cancelled()).is_ok());
        let pending = format!("{pending:?}");
        assert!(!seen.contains(&pending), "{pending} again");
        seen.push(pending);
    };
    for _ in 0..100 {
        claim();
        thread::scope(|scope| scope.spawn(&mut claim).join().unwrap());
    }
}

#[test]
fn a_slot_is_never_claimed_alike_twice_in_exact_memory() {
    a_slot_is_never_claimed_alike_twice::<ExactSet>();
}

#[test]
fn a_slot_is_never_claimed_alike_twice_in_compact_memory() {
    a_slot_is_never_claimed_alike_twice::<CompactSet>();
}

/// The chance that a new key takes an entry for its own in a full compact table is at most the one in a million that the
/// documentation promises.
#[test]
fn a_new_key_hardly_ever_shares_in_compact_memory() {
    let table = Table::<CompactSet>::new(100_000, 1).unwrap();
    let mut seed = 7;
    let rule = Epochs { now: 1, burst: BURST };
    for _ in 0..100_000 {
        charge(&table, random(&mut seed), rule);
    }
    let asked = 4_000_000;
    let shared = (0..asked).filter(|_| table.find(random(&mut seed)).is_some()).count();
    // Sixteen slots, two thirds of them taken, and 2^24 tags: 0.64 in a million, so 2.5 are expected.
    assert!((1..=4).contains(&shared), "{shared} of {asked} share");
}

/// Nothing that two threads write lies in one line, nor in the pair of lines that a processor fetches together, unless it
/// is of the same set.
#[test]
fn sets_and_shards_have_lines_of_their_own() {
    let lines = |address: usize, bytes: usize| (address / 128)..=((address + bytes - 1) / 128);
    let table = Table::<ExactSet>::new(100, 8).unwrap();
    let sets = table.sets.iter().map(|set| (std::ptr::from_ref(set) as usize, size_of::<ExactSet>()));
    let shards = table.shards().addresses();
    let cursor = (std::ptr::from_ref(&table.sweep_cursor) as usize, size_of_val(&table.sweep_cursor));
    let all: Vec<_> = sets.chain(shards).chain([cursor]).map(|(address, bytes)| lines(address, bytes)).collect();
    for (index, one) in all.iter().enumerate() {
        for other in &all[index + 1..] {
            assert!(one.end() < other.start() || other.end() < one.start(), "{one:?} and {other:?}");
        }
    }
    assert_eq!((size_of::<CompactSet>(), align_of::<CompactSet>()), (64, 64), "a set of one word a slot is one line");
}

/// Counters are exact however many threads come and go.
#[test]
fn counters_lose_nothing() {
    let table = Table::<ExactSet>::new(1_000, 3).unwrap();
    for _ in 0..20 {
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| (0..1_000).for_each(|_| table.shards().count(super::Event::Allowed)));
            }
        });
    }
    assert_eq!(table.shards().stats().allowed, 20 * THREADS * 1_000);
}
