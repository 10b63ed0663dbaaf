//! The regression gate: the instructions that each operation takes, counted by callgrind, each with a limit of its own.
//!
//! `bash tests/instructions.sh` runs it, and fails where a limit is exceeded. It takes no time of anything: with keys,
//! seeds and a clock that are always the same, every run of one build gives the same counts. Limits are about 5% above
//! what was counted; docs/performance.md has the counts, and tells how to change a limit.
#![allow(missing_docs, clippy::unwrap_used)]

use std::hint::black_box;
use std::ops::Range;
use std::time::Duration;

use ahash::RandomState;
use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};
use tollgate::{Algorithm, Decision, ManualClock, Memory, Quota, Stats};

/// How many operations a bench counts, so that what surrounds them does not matter.
const COUNT: u64 = 1_000;
/// The keys of one batch.
const BATCH: u64 = 64;
/// The keys for which a table is built: 1,000 sets of eight slots.
const CAPACITY: usize = 5_333;
const SLOTS: usize = 8_000;
/// The keys that a half full table knows.
const KNOWN: u64 = 4_000;
/// The keys by which a table is filled, of which it holds the last; those from here on are new to it.
const NEW: u64 = 20_000;
const HOUR: Duration = Duration::from_secs(3_600);

/// Fails if `count` operations take more than `each` instructions on average.
fn at_most(count: u64, each: u64) -> LibraryBenchmarkConfig {
    // Without the caches, of which nothing is asked.
    let mut callgrind = Callgrind::with_args(["--cache-sim=no"]);
    callgrind.hard_limits([(EventKind::Ir, count * each)]);
    LibraryBenchmarkConfig::default().tool(callgrind).clone()
}

type Limiter = tollgate::Limiter<u64, ManualClock, RandomState>;

/// A limiter made ready for one bench.
struct Case {
    limiter: Limiter,
    keys: Vec<u64>,
    decisions: Vec<Decision>,
    /// What the limiter must have done after the bench: a bench that does something else counts the wrong thing.
    expected: Stats,
}

impl Case {
    /// `expect` adds what the bench will do to what was done before.
    fn new(limiter: Limiter, keys: Range<u64>, expect: impl Fn(&mut Stats)) -> Box<Self> {
        let mut expected = limiter.stats();
        expect(&mut expected);
        let decisions = vec![Decision::default(); BATCH as usize];
        Box::new(Self { limiter, keys: keys.collect(), decisions, expected })
    }
}

/// A limiter whose keys all have a budget of `limit` units an hour.
fn limiter(memory: Memory, algorithm: Algorithm, limit: u64) -> Limiter {
    let quota = Quota::per_hour(limit).with_algorithm(algorithm);
    tollgate::Limiter::builder(quota)
        .capacity(CAPACITY)
        .memory(memory)
        .clock(ManualClock::new())
        .hasher(RandomState::with_seeds(1, 2, 3, 4))
        .build()
        .unwrap()
}

fn enter(limiter: &Limiter, keys: Range<u64>) {
    keys.for_each(|key| assert!(limiter.check(&key).is_allowed()));
}

/// A limiter that knows half as many keys as it has slots.
fn half_full(memory: Memory, algorithm: Algorithm, limit: u64) -> Limiter {
    let limiter = limiter(memory, algorithm, limit);
    enter(&limiter, 0..KNOWN);
    limiter
}

/// A limiter with a live key in every slot.
fn full(memory: Memory) -> Limiter {
    let limiter = limiter(memory, Algorithm::TokenBucket, 100);
    // As many keys as it takes for the last set to get its eight.
    enter(&limiter, 0..NEW);
    assert_eq!(limiter.len(), SLOTS);
    limiter
}

fn known_keys(memory: Memory, algorithm: Algorithm) -> Box<Case> {
    Case::new(half_full(memory, algorithm, 100), 0..COUNT, |stats| stats.allowed += COUNT)
}

fn used_up_keys(memory: Memory, algorithm: Algorithm) -> Box<Case> {
    Case::new(half_full(memory, algorithm, 1), 0..COUNT, |stats| stats.refused += COUNT)
}

/// Keys whose quota was changed after they were entered.
fn keys_of_a_changed_quota(algorithm: Algorithm) -> Box<Case> {
    let limiter = half_full(Memory::Exact, algorithm, 100);
    limiter.set_quota(&Quota::per_hour(200).with_algorithm(algorithm)).unwrap();
    Case::new(limiter, 0..COUNT, |stats| stats.allowed += COUNT)
}

/// Keys with three quotas each, the last of `limit` units.
fn three_quotas(limit: u64) -> Box<Case> {
    let limiter = tollgate::Limiter::builder(Quota::per_hour(1_000))
        .and(Quota::per_hour(500))
        .and(Quota::per_hour(limit))
        .capacity(CAPACITY)
        .clock(ManualClock::new())
        .hasher(RandomState::with_seeds(1, 2, 3, 4))
        .build()
        .unwrap();
    enter(&limiter, 0..KNOWN);
    Case::new(limiter, 0..COUNT, |stats| if limit > 1 { stats.allowed += COUNT } else { stats.refused += COUNT })
}

fn empty_slots(memory: Memory) -> Box<Case> {
    Case::new(limiter(memory, Algorithm::TokenBucket, 100), 0..COUNT, |stats| {
        stats.allowed += COUNT;
        stats.inserted += COUNT;
    })
}

fn idle_keys(memory: Memory) -> Box<Case> {
    let limiter = full(memory);
    limiter.clock().advance(HOUR);
    Case::new(limiter, NEW..NEW + COUNT, |stats| {
        stats.allowed += COUNT;
        stats.inserted += COUNT;
        stats.taken_over += COUNT;
    })
}

fn live_keys(memory: Memory) -> Box<Case> {
    Case::new(full(memory), NEW..NEW + COUNT, |stats| {
        stats.allowed += COUNT;
        stats.inserted += COUNT;
        stats.displaced += COUNT;
    })
}

fn known_batch(memory: Memory) -> Box<Case> {
    let limiter = half_full(memory, Algorithm::TokenBucket, 100);
    Case::new(limiter, 0..BATCH, |stats| stats.allowed += BATCH)
}

fn peeked_keys(memory: Memory) -> Box<Case> {
    Case::new(half_full(memory, Algorithm::TokenBucket, 100), 0..COUNT, |_| ())
}

fn idle_sets(memory: Memory) -> Box<Case> {
    let limiter = half_full(memory, Algorithm::TokenBucket, 100);
    limiter.clock().advance(HOUR);
    Case::new(limiter, 0..0, |stats| stats.swept += KNOWN)
}

/// The checks of a case. Compiled once, so that all that differs between two benches is what a check has to do.
#[inline(never)]
fn check_all(case: &Case) {
    for key in &case.keys {
        black_box(case.limiter.check(key).is_allowed());
    }
}

/// A case is handed back to be looked at, which also keeps its end out of the counts.
#[expect(clippy::needless_pass_by_value, reason = "the bench gives it away")]
fn verify(case: Box<Case>) {
    assert_eq!(case.limiter.stats(), case.expected);
}

#[library_benchmark(setup = known_keys, teardown = verify)]
#[bench::exact_token_bucket(args = (Memory::Exact, Algorithm::TokenBucket), config = at_most(COUNT, 201))]
#[bench::exact_fixed_window(args = (Memory::Exact, Algorithm::FixedWindow), config = at_most(COUNT, 247))]
#[bench::exact_sliding_window(args = (Memory::Exact, Algorithm::SlidingWindowCounter), config = at_most(COUNT, 325))]
#[bench::exact_log(args = (Memory::Exact, Algorithm::SlidingWindowLog), config = at_most(COUNT, 1_627))]
#[bench::compact_token_bucket(args = (Memory::Compact, Algorithm::TokenBucket), config = at_most(COUNT, 224))]
fn hit(case: Box<Case>) -> Box<Case> {
    check_all(&case);
    case
}

#[library_benchmark(setup = used_up_keys, teardown = verify)]
#[bench::exact_token_bucket(args = (Memory::Exact, Algorithm::TokenBucket), config = at_most(COUNT, 194))]
#[bench::exact_fixed_window(args = (Memory::Exact, Algorithm::FixedWindow), config = at_most(COUNT, 239))]
#[bench::exact_sliding_window(args = (Memory::Exact, Algorithm::SlidingWindowCounter), config = at_most(COUNT, 293))]
#[bench::exact_log(args = (Memory::Exact, Algorithm::SlidingWindowLog), config = at_most(COUNT, 333))]
#[bench::compact_token_bucket(args = (Memory::Compact, Algorithm::TokenBucket), config = at_most(COUNT, 215))]
fn refuse(case: Box<Case>) -> Box<Case> {
    check_all(&case);
    case
}

#[library_benchmark(setup = keys_of_a_changed_quota, teardown = verify)]
#[bench::token_bucket(args = (Algorithm::TokenBucket), config = at_most(COUNT, 571))]
#[bench::fixed_window(args = (Algorithm::FixedWindow), config = at_most(COUNT, 521))]
fn changed(case: Box<Case>) -> Box<Case> {
    check_all(&case);
    case
}

#[library_benchmark(setup = three_quotas, teardown = verify)]
#[bench::allowed(args = (100), config = at_most(COUNT, 2_116))]
#[bench::refused(args = (1), config = at_most(COUNT, 876))]
fn together(case: Box<Case>) -> Box<Case> {
    check_all(&case);
    case
}

#[library_benchmark(setup = empty_slots, teardown = verify)]
#[bench::exact(args = (Memory::Exact), config = at_most(COUNT, 658))]
#[bench::compact(args = (Memory::Compact), config = at_most(COUNT, 652))]
fn miss(case: Box<Case>) -> Box<Case> {
    check_all(&case);
    case
}

#[library_benchmark(setup = idle_keys, teardown = verify)]
#[bench::exact(args = (Memory::Exact), config = at_most(COUNT, 2_250))]
#[bench::compact(args = (Memory::Compact), config = at_most(COUNT, 2_650))]
fn takeover(case: Box<Case>) -> Box<Case> {
    check_all(&case);
    case
}

#[library_benchmark(setup = live_keys, teardown = verify)]
#[bench::exact(args = (Memory::Exact), config = at_most(COUNT, 2_301))]
#[bench::compact(args = (Memory::Compact), config = at_most(COUNT, 2_701))]
fn displace(case: Box<Case>) -> Box<Case> {
    check_all(&case);
    case
}

#[library_benchmark(setup = known_batch, teardown = verify)]
#[bench::exact(args = (Memory::Exact), config = at_most(BATCH, 174))]
#[bench::compact(args = (Memory::Compact), config = at_most(BATCH, 203))]
fn batch(mut case: Box<Case>) -> Box<Case> {
    let Case { limiter, keys, decisions, .. } = &mut *case;
    limiter.check_many(&*keys, decisions);
    case
}

#[library_benchmark(setup = peeked_keys, teardown = verify)]
#[bench::exact(args = (Memory::Exact), config = at_most(COUNT, 221))]
#[bench::compact(args = (Memory::Compact), config = at_most(COUNT, 227))]
fn peek(case: Box<Case>) -> Box<Case> {
    for key in &case.keys {
        black_box(case.limiter.peek(key).is_allowed());
    }
    case
}

// For each set of eight slots, four of them with an idle key.
#[library_benchmark(setup = idle_sets, teardown = verify)]
#[bench::exact(args = (Memory::Exact), config = at_most(COUNT, 381))]
#[bench::compact(args = (Memory::Compact), config = at_most(COUNT, 355))]
fn sweep(case: Box<Case>) -> Box<Case> {
    black_box(case.limiter.sweep_step(COUNT as usize));
    case
}

library_benchmark_group!(
    name = limiter_group,
    benchmarks = [hit, refuse, changed, together, miss, takeover, displace, batch, peek, sweep]
);
main!(library_benchmark_groups = limiter_group);
