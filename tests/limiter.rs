//! The keyed limiter from outside: keys, memory, full tables, sweeping, and that checks never allocate.
#![allow(clippy::unwrap_used, clippy::unchecked_time_subtraction)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hash::{BuildHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tollgate::{
    Algorithm, BuildError, Clock, CoarseClock, Decision, GlobalLimiter, Limiter, ManualClock, Memory, PreciseClock,
    Quota, Sweeper, WhenFull,
};

/// Counts the allocations of each thread.
struct Counting;

thread_local!(static ALLOCATIONS: Cell<usize> = const { Cell::new(0) });

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the same promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the same promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SECOND: Duration = Duration::from_secs(1);

fn manual<K: ?Sized>(quota: Quota, capacity: usize) -> (Limiter<K, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    let limiter = Limiter::builder(quota).capacity(capacity).clock(clock.clone()).build().unwrap();
    (limiter, clock)
}

fn all_algorithms() -> impl Iterator<Item = Quota> {
    Algorithm::ALL.iter().map(|&algorithm| {
        let quota = Quota::per_minute(5).with_algorithm(algorithm);
        // One unit more than may wait is admitted at once.
        if algorithm == Algorithm::LeakyBucket { quota.with_burst(4) } else { quota }
    })
}

#[test]
fn is_send_and_sync() {
    fn assert<T: Send + Sync>() {}
    assert::<Limiter<String>>();
    assert::<Limiter<std::rc::Rc<str>>>();
    assert::<GlobalLimiter>();
    assert::<Sweeper>();
    assert::<CoarseClock>();
}

#[test]
fn borrowed_keys_are_the_same_keys() {
    let (limiter, _) = manual::<String>(Quota::per_minute(2), 100);
    assert!(limiter.check("alice").is_allowed());
    assert!(limiter.check(&"alice".to_owned()).is_allowed());
    assert!(!limiter.check("alice").is_allowed());
    let (limiter, _) = manual::<Vec<u8>>(Quota::per_minute(1), 100);
    assert!(limiter.check(&b"x"[..]).is_allowed());
    assert!(!limiter.check(&vec![b'x']).is_allowed());
}

#[test]
fn an_empty_key_and_a_huge_one_are_keys_like_any_other() {
    let (limiter, _) = manual::<str>(Quota::per_minute(1), 100);
    let huge = "x".repeat(1 << 20);
    for key in ["", "a", &huge] {
        assert!(limiter.check(key).is_allowed());
        assert!(!limiter.check(key).is_allowed());
    }
    assert_eq!(limiter.len(), 3);
}

#[test]
fn seeds_differ() {
    let hash = |limiter: &ahash::RandomState| limiter.hash_one("key");
    assert_ne!(hash(&ahash::RandomState::new()), hash(&ahash::RandomState::new()));
}

#[test]
fn peek_changes_nothing() {
    for quota in all_algorithms() {
        let (limiter, _) = manual::<str>(quota, 100);
        assert_eq!((limiter.peek("a").remaining(), limiter.peek("a").granted()), (5, 0));
        assert_eq!(limiter.len(), 0, "a peek leaves no entry");
        assert!(limiter.check_n("a", 3).unwrap().is_allowed());
        let before = limiter.stats();
        for _ in 0..10 {
            assert_eq!(limiter.peek("a").remaining(), 2);
        }
        assert_eq!(limiter.stats(), before);
        assert!(limiter.check_n("a", 2).unwrap().is_allowed());
        assert!(!limiter.peek("a").is_allowed());
    }
}

#[test]
fn a_cost_that_can_never_be_given_takes_nothing() {
    for quota in all_algorithms() {
        let (limiter, _) = manual::<str>(quota, 100);
        for cost in [6, 1_000, u64::from(u32::MAX), u64::MAX] {
            let error = limiter.check_n("a", cost).unwrap_err();
            assert_eq!((error.cost, error.limit), (cost, 5));
        }
        assert_eq!(limiter.len(), 0);
        assert_eq!(limiter.check_n("a", 0).unwrap().remaining(), 5);
        assert_eq!(limiter.len(), 0, "a cost of 0 leaves no entry");
        assert!(limiter.check_n("a", 5).unwrap().is_allowed());
        assert!(limiter.check_n("a", 0).unwrap().is_allowed());
        assert!(limiter.check_n("a", 6).is_err());
    }
}

#[test]
fn checks_never_allocate() {
    for quota in all_algorithms() {
        for when_full in [WhenFull::DisplaceLeast, WhenFull::Refuse, WhenFull::AdmitUntracked] {
            let limiter = Limiter::<u64>::builder(quota).capacity(100).when_full(when_full).build().unwrap();
            let before = ALLOCATIONS.get();
            for key in 0..10_000 {
                let decision = limiter.check(&(key % 1_000));
                std::hint::black_box((decision.remaining(), decision.retry_after(), decision.reset_after()));
                std::hint::black_box(limiter.peek(&key).is_allowed());
                let mut decisions = [Decision::default(); 3];
                std::hint::black_box(limiter.check_many(&[key, key + 1, key], &mut decisions));
            }
            limiter.sweep();
            assert_eq!(ALLOCATIONS.get(), before);
        }
    }
}

#[test]
fn memory_is_what_was_said_for_any_key() {
    fn bytes<K>(capacity: usize, memory: Memory) -> usize {
        let builder = Limiter::<K>::builder(Quota::per_second(1)).capacity(capacity);
        builder.memory(memory).build().unwrap().memory_bytes()
    }
    for capacity in [250, 251, 300, 500, 1_000, 1_001, 4_321, 100_000, 1_000_000] {
        for (memory, least, most) in [(Memory::Exact, 250, 32), (Memory::Compact, 1_000, 16)] {
            let sizes =
                [bytes::<u64>(capacity, memory), bytes::<IpAddr>(capacity, memory), bytes::<String>(capacity, memory)];
            for bytes in sizes {
                assert!(capacity < least || bytes <= most * capacity, "{bytes} bytes for {capacity} keys");
            }
        }
    }
}

/// Fewer than one in ten thousand live keys is displaced while no more than the capacity are held. In compact memory
/// some may share, at most one in a million.
#[test]
fn a_full_table_holds_its_capacity() {
    let capacity = 1_000_000;
    for (memory, most_shared) in [(Memory::Exact, 0), (Memory::Compact, 3)] {
        // Seeds of its own: others would place other keys, and a few in a thousand tables would share more.
        let hasher = ahash::RandomState::with_seeds(1, 2, 3, 4);
        let builder = Limiter::<usize>::builder(Quota::per_hour(2)).capacity(capacity).memory(memory);
        let limiter = builder.hasher(hasher).clock(ManualClock::new()).build().unwrap();
        (0..capacity).for_each(|key| assert!(limiter.check(&key).is_allowed()));
        let stats = limiter.stats();
        assert_eq!((stats.allowed, stats.taken_over), (1_000_000, 0));
        let shared = 1_000_000 - stats.inserted;
        assert!(shared <= most_shared, "{shared} share in {memory:?}");
        assert!(stats.displaced < 100, "{} displaced", stats.displaced);
        assert_eq!(limiter.len(), capacity - usize::try_from(stats.displaced + shared).unwrap());
        let known = (0..capacity).filter(|key| limiter.peek(key).remaining() == 1).count();
        assert_eq!(known, limiter.len() - usize::try_from(shared).unwrap());
    }
}

#[test]
fn a_batch_checks_as_many_keys_as_there_is_room_for() {
    let (limiter, _) = manual::<u64>(Quota::per_hour(1), 1_000);
    let mut decisions = [Decision::default(); 100];
    assert_eq!(limiter.check_many(&[1, 2, 3], &mut decisions), 3);
    assert!(decisions[..3].iter().all(Decision::is_allowed));
    assert!(!decisions[3].is_allowed(), "what lies beyond is not touched");
    assert_eq!(limiter.check_many(&[4, 5, 6], &mut decisions[..2]), 2);
    assert_eq!(limiter.peek(&6).remaining(), 1, "a key for which there is no room is not charged");
    assert_eq!(limiter.check_many(&[], &mut decisions), 0);
    assert_eq!(limiter.check_many(&[7], &mut []), 0);
    let stats = limiter.stats();
    assert_eq!((stats.allowed, stats.refused, stats.inserted), (5, 0, 5));
}

/// Whatever a clock does meanwhile.
#[test]
fn a_batch_reads_the_clock_once() {
    struct Counts(std::sync::atomic::AtomicU64);

    impl Clock for Counts {
        fn now(&self) -> u64 {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
        }
    }

    let limiter = Limiter::<u64>::builder(Quota::per_hour(1)).capacity(1_000).clock(Counts(0.into())).build().unwrap();
    let readings = || limiter.clock().0.load(std::sync::atomic::Ordering::Relaxed);
    let before = readings();
    let keys: Vec<u64> = (0..200).collect();
    assert_eq!(limiter.check_many(&keys, &mut vec![Decision::default(); 300]), 200);
    assert_eq!(readings(), before + 1);
    assert_eq!(limiter.check_many(&[], &mut vec![Decision::default(); 300]), 0);
    assert_eq!(readings(), before + 1, "nothing to decide");
}

#[test]
fn a_decision_that_was_never_made_gives_nothing() {
    let never = Decision::default();
    assert!(!never.is_allowed());
    assert_eq!((never.limit(), never.remaining()), (0, 0));
    assert!(never.retry_after() > 365 * 500 * (86_400 * SECOND));
}

#[test]
fn two_keys_have_the_same_hash_only_by_chance() {
    let state = ahash::RandomState::new();
    let mut hashes: Vec<u64> = (0..2_000_000_u64).map(|key| state.hash_one(key)).collect();
    hashes.sort_unstable();
    // 2,000,000 hashes of 64 bits agree somewhere with a chance of 1 in 10 million.
    assert!(hashes.windows(2).all(|pair| pair[0] != pair[1]));
}

/// Sends every key to the same sets.
#[derive(Clone, Default)]
struct Crowd;

struct Sum(u64);

impl BuildHasher for Crowd {
    type Hasher = Sum;

    fn build_hasher(&self) -> Sum {
        Sum(0)
    }
}

impl Hasher for Sum {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |sum, &byte| (sum << 8) | u64::from(byte));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

fn crowded(when_full: WhenFull) -> (Limiter<u64, ManualClock, Crowd>, ManualClock) {
    let clock = ManualClock::new();
    let builder = Limiter::<u64>::builder(Quota::per_minute(2)).capacity(100).clock(clock.clone());
    (builder.hasher(Crowd).when_full(when_full).build().unwrap(), clock)
}

/// Fills the one set that all keys below 2^32 share with keys that owe one unit; key 3 owes two.
fn fill(limiter: &Limiter<u64, ManualClock, Crowd>) {
    for key in 0..8 {
        assert!(limiter.check(&key).is_allowed());
    }
    assert!(limiter.check(&3).is_allowed());
    assert_eq!(limiter.len(), 8);
}

#[test]
fn full_displaces_the_key_that_owes_least() {
    let (limiter, _) = crowded(WhenFull::DisplaceLeast);
    fill(&limiter);
    for key in 100..10_100 {
        assert!(limiter.check(&key).is_allowed());
    }
    assert!(!limiter.check(&3).is_allowed(), "a flood does not wash out the one that used its burst");
    assert_eq!((limiter.stats().displaced, limiter.len()), (10_000, 8));
}

#[test]
fn full_refuses_until_an_entry_is_idle() {
    let (limiter, clock) = crowded(WhenFull::Refuse);
    fill(&limiter);
    let refused = limiter.check(&100);
    assert!(!refused.is_allowed());
    assert_eq!((refused.remaining(), refused.retry_after()), (0, Duration::from_secs(30)));
    assert!(!limiter.peek(&3).is_allowed());
    clock.advance(refused.retry_after() - Duration::from_nanos(1));
    assert!(!limiter.check(&100).is_allowed());
    clock.advance(Duration::from_nanos(1));
    assert!(limiter.check(&100).is_allowed());
    assert_eq!((limiter.stats().taken_over, limiter.stats().displaced), (1, 0));
}

#[test]
fn full_admits_untracked() {
    let (limiter, _) = crowded(WhenFull::AdmitUntracked);
    fill(&limiter);
    for _ in 0..10 {
        let decision = limiter.check(&100);
        assert!(decision.is_allowed());
        assert_eq!(decision.remaining(), 1);
    }
    assert!(!limiter.check(&3).is_allowed());
    assert_eq!((limiter.stats().displaced, limiter.len()), (0, 8));
}

#[test]
fn equal_hashes_share_a_budget() {
    #[derive(Hash)]
    struct Same(u64);
    let (limiter, _) = crowded(WhenFull::DisplaceLeast);
    let clock = ManualClock::new();
    let same = Limiter::<Same>::builder(Quota::per_minute(1)).clock(clock).hasher(Crowd).build().unwrap();
    assert!(same.check(&Same(0)).is_allowed());
    assert!(!same.check(&Same(0)).is_allowed());
    assert!(limiter.check(&0).is_allowed(), "a hash of 0 is a hash like any other");
    assert_eq!(limiter.len(), 1);
}

#[test]
fn sweeping_forgets_the_idle_only() {
    for quota in all_algorithms() {
        let (limiter, clock) = manual::<u64>(quota, 1_000);
        (0..1_000).for_each(|key| assert!(limiter.check(&key).is_allowed()));
        let held = limiter.len();
        assert_eq!(limiter.sweep(), 0);
        clock.advance(Duration::from_secs(130));
        (0..10).for_each(|key| assert!(limiter.check(&key).is_allowed()));
        assert_eq!(limiter.sweep(), held - 10);
        assert_eq!((limiter.len(), limiter.is_empty()), (10, false));
        assert_eq!(limiter.peek(&5).remaining(), 4);
        clock.advance(Duration::from_secs(130));
        let freed: usize = (0..1_000).map(|_| limiter.sweep_step(1)).sum();
        assert_eq!((freed, limiter.len()), (10, 0), "steps go round");
    }
}

#[test]
fn a_sweep_with_a_clock_that_stepped_back_frees_nothing() {
    let (limiter, clock) = manual::<str>(Quota::per_second(5), 100);
    clock.set(100_000_000_000);
    assert!(limiter.check_n("a", 5).unwrap().is_allowed());
    clock.set(99_000_000_000);
    assert_eq!(limiter.sweep(), 0);
    let refused = limiter.check("a");
    assert!(!refused.is_allowed());
    assert_eq!(refused.retry_after(), Duration::from_millis(1_200), "the step back and the emission interval");
}

#[test]
fn a_sweeper_does_not_keep_its_limiter_alive() {
    let (limiter, clock) = manual::<u64>(Quota::per_second(1), 1_000);
    let limiter = Arc::new(limiter);
    (0..100).for_each(|key| assert!(limiter.check(&key).is_allowed()));
    clock.advance(SECOND);
    let sweeper = Sweeper::spawn(&limiter, Duration::from_micros(1)).unwrap();
    while limiter.stats().swept < 100 {
        std::thread::yield_now();
    }
    assert_eq!(limiter.len(), 0);
    let weak = Arc::downgrade(&limiter);
    drop(limiter);
    while weak.strong_count() > 0 {
        std::thread::yield_now();
    }
    drop(sweeper);
}

#[test]
fn a_dropped_sweeper_has_stopped() {
    let (limiter, clock) = manual::<u64>(Quota::per_second(1), 1_000);
    let limiter = Arc::new(limiter);
    drop(Sweeper::spawn(&limiter, Duration::from_secs(3_600)).unwrap());
    assert_eq!(Arc::weak_count(&limiter), 0, "its thread is gone");
    assert!(limiter.check(&1).is_allowed());
    clock.advance(SECOND);
    assert_eq!(limiter.stats().swept, 0);
}

#[test]
fn clocks_go_on() {
    let precise = PreciseClock::new();
    let coarse = CoarseClock::start(Duration::from_micros(100)).unwrap();
    let (first, early) = (precise.now(), coarse.now());
    while precise.now() == first || coarse.now() == early {
        std::thread::yield_now();
    }
    let manual = ManualClock::at(u64::MAX - 1);
    manual.advance(SECOND);
    assert_eq!(manual.now(), u64::MAX, "a clock at its end stays there");
}

#[test]
fn a_limiter_at_the_end_of_its_horizon_stands_still() {
    let clock = ManualClock::at(5);
    let builder = Limiter::<str>::builder(Quota::per_second(1)).clock(clock.clone()).horizon(SECOND);
    let limiter = builder.build().unwrap();
    assert!(limiter.check("a").is_allowed());
    for now in [u64::MAX, u64::MAX / 2, 0] {
        clock.set(now);
        let _ = limiter.check("a");
        let _ = limiter.check("b");
        limiter.sweep();
    }
    clock.set(u64::MAX);
    assert!(!limiter.check("a").is_allowed(), "no time, no refill");
}

#[test]
fn impossible_limiters_are_errors() {
    let build = |quota: Quota| Limiter::<str>::builder(quota).build().map(drop).unwrap_err();
    assert!(matches!(build(Quota::per_second(0)), BuildError::Quota(_)));
    assert_eq!(
        Limiter::<str>::builder(Quota::per_second(1)).capacity(0).build().map(drop),
        Err(BuildError::ZeroCapacity)
    );
    for capacity in [usize::MAX, usize::MAX / 2, isize::MAX as usize / 16] {
        let error = Limiter::<str>::builder(Quota::per_second(1)).capacity(capacity).build().map(drop);
        assert_eq!(error, Err(BuildError::OutOfMemory { capacity }));
    }
    let horizon = Limiter::<str>::builder(Quota::per_second(1)).horizon(Duration::MAX).build().map(drop);
    assert!(matches!(horizon, Err(BuildError::HorizonTooLong { .. })), "{horizon:?}");
    let windows = Limiter::<str>::builder(Quota::per_second(1).with_algorithm(Algorithm::FixedWindow));
    assert_eq!(
        windows.memory(Memory::Compact).build().map(drop).unwrap_err().to_string(),
        "fixed-window does not fit into compact memory; use token-bucket or leaky-bucket, or exact memory"
    );
    let counter = Quota::per_second(1 << 20).with_algorithm(Algorithm::SlidingWindowCounter);
    assert_eq!(
        build(counter).to_string(),
        "a limit of 1048576 is too large for sliding-window-counter with this period and horizon; it can be at most \
         1048575, or use token-bucket"
    );
}

/// The longest horizon that an error names is possible, and the rates that the documentation names fit.
#[test]
fn compact_memory_says_how_far_it_reaches() {
    let build = |quota: Quota, horizon: Option<Duration>| {
        let builder = Limiter::<str>::builder(quota).memory(Memory::Compact);
        match horizon {
            Some(horizon) => builder.horizon(horizon).build().map(drop),
            None => builder.build().map(drop),
        }
    };
    assert_eq!(build(Quota::per_second(1_700), None), Ok(()));
    for quota in [Quota::per_second(2_000), Quota::per_second(1_000_000), Quota::per_second(999_999_937)] {
        let Err(BuildError::HorizonTooLong { longest }) = build(quota, None) else { panic!("{quota} fits") };
        assert!(longest > SECOND, "{longest:?}");
        assert_eq!(build(quota, Some(longest)), Ok(()), "{quota} for {longest:?}");
        assert!(build(quota, Some(longest * 9 / 8)).is_err());
    }
    assert_eq!(build(Quota::per_second(5_000_000), Some(86_400 * SECOND)), Ok(()));

    // No horizon is short enough for a burst that takes longer than states can span.
    let long_burst = Quota::per_second(1_000_000).with_burst(1 << 40);
    let error = build(long_burst, Some(SECOND)).unwrap_err();
    assert_eq!(error, BuildError::BurstTooLong { burst: 1 << 40, largest: (1 << 38) - 1 });
    assert_eq!(build(long_burst.with_burst((1 << 38) - 1), Some(SECOND)), Ok(()));
}

#[test]
fn a_global_limiter_is_exact_under_threads() {
    let limiter = GlobalLimiter::with_clock(Quota::per_minute(1_000), ManualClock::new()).unwrap();
    let admitted: usize = std::thread::scope(|scope| {
        let work = || (0..1_000).filter(|_| limiter.check().is_allowed()).count();
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(admitted, 1_000);
}

/// However many threads lease from it, what stands still gives its burst and nothing more, to the last unit.
#[test]
fn leases_give_out_exactly_what_was_taken() {
    let quota = Quota::per_minute(10_000);
    let limiter = GlobalLimiter::with_clock(quota, ManualClock::new()).unwrap().leasing(64);
    let barrier = std::sync::Barrier::new(8);
    let admitted: u64 = std::thread::scope(|scope| {
        let work = |cost: u64| {
            // All at once, so that all hold leases, and each then spends the last of its own.
            barrier.wait();
            (0..20_000).filter(|_| limiter.check_n(cost).unwrap().is_allowed()).count() as u64 * cost
        };
        let threads: Vec<_> = (0..8).map(|thread| scope.spawn(move || work(thread % 2 * 6 + 1))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    // A thread that asks for seven at a time may keep up to six.
    assert!((10_000 - 4 * 6..=10_000).contains(&admitted), "{admitted}");
    assert_eq!(limiter.peek().remaining(), 0);
}

#[test]
fn a_lease_says_when_to_come_back() {
    let clock = ManualClock::new();
    let limiter = GlobalLimiter::with_clock(Quota::per_second(10), clock.clone()).unwrap().leasing(4);
    assert_eq!(limiter.check().granted(), 1);
    assert_eq!(limiter.peek().remaining(), 6, "four are taken at once");
    assert!(limiter.check_n(9).unwrap().is_allowed(), "three of the lease and six more");
    let refused = limiter.check_n(2).unwrap();
    assert!(!refused.is_allowed());
    assert_eq!(refused.retry_after(), SECOND / 5);
    clock.advance(SECOND / 5 - Duration::from_nanos(1));
    assert!(!limiter.check_n(2).unwrap().is_allowed());
    clock.advance(Duration::from_nanos(1));
    assert!(limiter.check_n(2).unwrap().is_allowed(), "too little for a lease is taken by itself");
    // However it is taken, no more is granted than there is.
    let limiter = GlobalLimiter::with_clock(Quota::per_minute(100), ManualClock::new()).unwrap().leasing(10);
    assert_eq!((0..50).map(|_| limiter.check_up_to(3).granted()).sum::<u64>(), 100);
    // A lease of more than the quota can ever give is one of all that it can.
    let greedy = GlobalLimiter::with_clock(Quota::per_second(10), ManualClock::new()).unwrap().leasing(u64::MAX);
    assert_eq!((0..20).filter(|_| greedy.check().is_allowed()).count(), 10);
}
