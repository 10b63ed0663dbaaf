//! tollgate beside governor: the same keys, quota and kind of clock, in one process.
//!
//! `cargo bench --bench compare` first prints a table of ratios, measured in turns so that they hold on a noisy
//! machine, and of the flood; then it runs the same work under criterion. With `-- --ratios` it stops after the table.
#![allow(missing_docs, clippy::unwrap_used, clippy::cast_precision_loss)]

use std::num::NonZeroU32;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use cpu_time::ThreadTime;
use criterion::{BenchmarkId, Criterion};
use governor::{DefaultKeyedRateLimiter, RateLimiter};
use tollgate::{CoarseClock, Limiter, Quota};

/// So many units a second that all are admitted.
const RATE: u32 = 1_000_000_000;
const BURST: u32 = 1_000_000;
const ROUNDS: usize = 5;
const FLOOD: u64 = 10_000_000;

trait Contender: Sync {
    fn name(&self) -> &'static str;
    fn check(&self, key: u64) -> bool;

    /// Makes `checks` checks of uniform keys on each of `threads` threads at once. Compiled for each contender, as a user's own code would be.
    fn run(&self, keys: u64, threads: u64, checks: u64) -> Duration {
        let barrier = Barrier::new(usize::try_from(threads).unwrap());
        let work = |thread: u64| {
            // Knuth's MMIX generator; the upper half of a state is scaled to a key.
            let mut random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(thread + 1);
            barrier.wait();
            let start = Instant::now();
            for _ in 0..checks {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                std::hint::black_box(self.check(((random >> 32) * keys) >> 32));
            }
            start.elapsed()
        };
        std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
            running.into_iter().map(|thread| thread.join().unwrap()).max().unwrap()
        })
    }
}

impl Contender for Limiter<u64> {
    fn name(&self) -> &'static str {
        "tollgate"
    }

    #[inline]
    fn check(&self, key: u64) -> bool {
        Limiter::check(self, &key).is_allowed()
    }
}

impl Contender for Limiter<u64, CoarseClock> {
    fn name(&self) -> &'static str {
        "tollgate-coarse"
    }

    #[inline]
    fn check(&self, key: u64) -> bool {
        Limiter::check(self, &key).is_allowed()
    }
}

impl Contender for DefaultKeyedRateLimiter<u64> {
    fn name(&self) -> &'static str {
        "governor"
    }

    #[inline]
    fn check(&self, key: u64) -> bool {
        self.check_key(&key).is_ok()
    }
}

fn quota() -> Quota {
    Quota::per_second(RATE.into()).with_burst(BURST.into())
}

fn tollgate(keys: u64) -> Limiter<u64> {
    Limiter::builder(quota()).capacity(usize::try_from(keys).unwrap().max(1_000)).build().unwrap()
}

fn tollgate_coarse(keys: u64) -> Limiter<u64, CoarseClock> {
    let clock = CoarseClock::start(Duration::from_millis(1)).unwrap();
    Limiter::builder(quota()).capacity(usize::try_from(keys).unwrap().max(1_000)).clock(clock).build().unwrap()
}

fn governor() -> DefaultKeyedRateLimiter<u64> {
    let burst = NonZeroU32::new(BURST).unwrap();
    RateLimiter::keyed(governor::Quota::per_second(NonZeroU32::new(RATE).unwrap()).allow_burst(burst))
}

/// The contenders, each knowing all of the keys.
fn contenders(keys: u64) -> [Box<dyn Contender>; 3] {
    let all: [Box<dyn Contender>; 3] =
        [Box::new(governor()), Box::new(tollgate(keys)), Box::new(tollgate_coarse(keys))];
    for contender in &all {
        (0..keys).for_each(|key| assert!(contender.check(key)));
    }
    all
}

const WORK: [(u64, &str); 4] =
    [(1, "one hot key"), (1_000, "1,000"), (1_000_000, "1,000,000"), (10_000_000, "10,000,000")];

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn print_ratios() {
    println!("| keys, threads | governor, ns | tollgate, ns (ratio) | coarse clock, ns (ratio) |\n|---|---|---|---|");
    for (keys, name) in WORK {
        let contenders = contenders(keys);
        for threads in [1, 2] {
            let checks = 2_000_000;
            let mut times = [const { Vec::new() }; 3];
            for _ in 0..ROUNDS {
                for (times, contender) in times.iter_mut().zip(&contenders) {
                    let elapsed = contender.run(keys, threads, checks);
                    times.push(elapsed.as_nanos() as f64 / checks as f64);
                }
            }
            let [governor, precise, coarse] = times.map(median);
            let (ratio, coarse_ratio) = (governor / precise, governor / coarse);
            println!(
                "| {name}, {threads} | {governor:.0} | {precise:.1} ({ratio:.1}x) | {coarse:.1} ({coarse_ratio:.1}x) |"
            );
        }
    }
}

/// The longest call by the thread's own CPU clock, which stands still while the scheduler runs something else, and by
/// the wall's.
fn flood_longest(contender: &dyn Contender) -> (Duration, Duration) {
    let (mut worst_cpu, mut worst_wall) = (Duration::ZERO, Duration::ZERO);
    let (mut cpu, mut wall) = (ThreadTime::now(), Instant::now());
    for key in 0..FLOOD {
        std::hint::black_box(contender.check(key.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let (cpu_now, wall_now) = (ThreadTime::now(), Instant::now());
        worst_cpu = worst_cpu.max(cpu_now.duration_since(cpu));
        worst_wall = worst_wall.max(wall_now - wall);
        (cpu, wall) = (cpu_now, wall_now);
    }
    (worst_cpu, worst_wall)
}

/// The mean of all calls without clocks around them.
fn flood_mean(contender: &dyn Contender) -> f64 {
    let start = Instant::now();
    for key in 0..FLOOD {
        std::hint::black_box(contender.check(key.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    }
    start.elapsed().as_nanos() as f64 / FLOOD as f64
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4_096
}

fn print_flood() {
    println!(
        "\n| flood of 10,000,000 new keys | mean, ns | longest call by CPU clock | by the wall | bytes a key |\n|---|---|---|---|---|"
    );
    for round in 0..3 {
        for which in 0..2 {
            let make =
                || -> Box<dyn Contender> { if which == 0 { Box::new(governor()) } else { Box::new(tollgate(FLOOD)) } };
            let before = resident_bytes();
            let contender = make();
            let mean = flood_mean(contender.as_ref());
            let bytes = resident_bytes().saturating_sub(before) as f64 / FLOOD as f64;
            drop(contender);
            let contender = make();
            let (cpu, wall) = flood_longest(contender.as_ref());
            println!("| {}, round {round} | {mean:.0} | {cpu:.2?} | {wall:.2?} | {bytes:.1} |", contender.name());
        }
    }
}

fn criterion_groups(criterion: &mut Criterion) {
    for (keys, name) in WORK {
        let contenders = contenders(keys);
        let mut group = criterion.benchmark_group(name);
        group.sample_size(10).measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500));
        for threads in [1, 2] {
            for contender in &contenders {
                let id = BenchmarkId::new(contender.name(), format!("{threads} thread(s)"));
                group.bench_function(id, |bencher| {
                    bencher.iter_custom(|checks| contender.run(keys, threads, checks));
                });
            }
        }
    }
}

fn main() {
    let given = |name: &str| std::env::args().any(|argument| argument == name);
    if !given("--test") {
        print_ratios();
        print_flood();
    }
    if !given("--ratios") {
        let mut criterion = Criterion::default().configure_from_args();
        criterion_groups(&mut criterion);
        criterion.final_summary();
    }
}
