//! Every call on the clock: a million keys at rest, beside a thread that cleans up, and beside one that floods.
//!
//! `cargo bench --bench latency` prints the table; with `-- --write` it also puts it, and a plot, into `docs`.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::cast_precision_loss)]

mod support;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use governor::DefaultKeyedRateLimiter;
use hdrhistogram::Histogram;
use tollgate::{Clock, Limiter, Sweeper};

use support::contender::{Contender, Rate, builder, coarse_clock};
use support::measure::{Draw, fill, lists};
use support::plot::{Axis, Line, Place, Plot};
use support::report::{Report, Table, machine, time};

/// A hundred a minute and twenty at once: an everyday quota, some checks admitted and some refused.
const RATE: Rate = Rate { limit: 100, period: Duration::from_secs(60), burst: 20 };
const PERCENTILES: [f64; 4] = [50.0, 99.0, 99.9, 99.99];

/// How much is done.
#[derive(Clone, Copy)]
struct Effort {
    keys: u64,
    calls: usize,
    rounds: usize,
}

const FULL: Effort = Effort { keys: 1_000_000, calls: 2_000_000, rounds: 3 };
const QUICK: Effort = Effort { keys: 1_000, calls: 10_000, rounds: 1 };

/// What goes on beside the thread that is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    CleaningUp,
    Flood,
}

const SITUATIONS: [(Beside, &str); 3] =
    [(Beside::Nothing, "at rest"), (Beside::CleaningUp, "while cleaned up"), (Beside::Flood, "in a flood")];

/// A limiter that can be cleaned up while it is asked.
trait Cleaned: Contender<u64> {
    /// Begins to clean up again and again, until what is returned is dropped.
    fn clean(self: Arc<Self>) -> Box<dyn Send>;
    /// What is measured: compiled for each contender.
    fn record(&self, keys: &[u64], calls: usize, times: &mut Histogram<u64>);
}

/// What the clock itself takes is part of each time.
fn record<C: Contender<u64>>(contender: &C, keys: &[u64], calls: usize, times: &mut Histogram<u64>) {
    let mut before = Instant::now();
    for key in keys.iter().cycle().take(calls) {
        black_box(contender.check(key));
        let after = Instant::now();
        times.saturating_record(u64::try_from((after - before).as_nanos()).unwrap());
        // Recording is no part of the next call.
        before = Instant::now();
    }
}

/// Stops its thread when dropped.
struct Running {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    /// Does the same thing over and over on a thread of its own.
    fn begin(mut work: impl FnMut() + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let body = move || {
            while !told.load(Ordering::Relaxed) {
                work();
            }
        };
        Self { stop, thread: Some(std::thread::spawn(body)) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

impl<C: Clock + 'static> Cleaned for Limiter<u64, C> {
    fn clean(self: Arc<Self>) -> Box<dyn Send> {
        // It pauses for a microsecond after each round, the shortest that a sweeper can be told.
        Box::new(Sweeper::spawn(&self, Duration::ZERO).unwrap())
    }

    fn record(&self, keys: &[u64], calls: usize, times: &mut Histogram<u64>) {
        record(self, keys, calls, times);
    }
}

impl Cleaned for DefaultKeyedRateLimiter<u64> {
    fn clean(self: Arc<Self>) -> Box<dyn Send> {
        Box::new(Running::begin(move || self.retain_recent()))
    }

    fn record(&self, keys: &[u64], calls: usize, times: &mut Histogram<u64>) {
        record(self, keys, calls, times);
    }
}

/// Ever new keys, at full speed.
fn flood(contender: Arc<impl Cleaned + Send + ?Sized + 'static>) -> Running {
    let mut number = 1_u64 << 40;
    Running::begin(move || {
        for _ in 0..100 {
            number += 1;
            black_box(contender.check(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        }
    })
}

type Maker = fn(u64) -> Arc<dyn Cleaned + Send>;

const CONTENDERS: [(&str, Maker); 3] = [
    ("governor", |_| Arc::new(DefaultKeyedRateLimiter::keyed(RATE.of_governor()))),
    ("tollgate", |keys| Arc::new(room(keys).build().unwrap())),
    ("coarse clock", |keys| Arc::new(room(keys).clock(coarse_clock()).build().unwrap())),
];

fn room(keys: u64) -> tollgate::Builder<u64> {
    builder(RATE, usize::try_from(keys).unwrap())
}

/// The times of one contender's calls, in nanoseconds.
fn measure(make: Maker, beside: Beside, effort: Effort, times: &mut Histogram<u64>) {
    let contender = make(effort.keys);
    fill(contender.as_ref(), effort.keys);
    let keys = lists(effort.keys, Draw::Uniform, 1).remove(0);
    let cleaning = (beside == Beside::CleaningUp).then(|| Arc::clone(&contender).clean());
    let flooding = (beside == Beside::Flood).then(|| flood(Arc::clone(&contender)));
    contender.record(&keys, effort.calls, times);
    drop((cleaning, flooding));
}

fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 10_000_000_000, 3).unwrap()
}

/// What the clock itself takes, with nothing to measure.
fn clock_alone(calls: usize) -> Histogram<u64> {
    struct Nothing;
    impl Contender<u64> for Nothing {
        fn charge(&self, _: &u64, _: u64) -> bool {
            true
        }
    }
    let mut times = new_histogram();
    record(&Nothing, &[0], calls, &mut times);
    times
}

/// Everybody's times in one situation, taken in turns.
fn situation(beside: Beside, effort: Effort) -> Vec<Histogram<u64>> {
    let mut times: Vec<_> = CONTENDERS.iter().map(|_| new_histogram()).collect();
    for _ in 0..effort.rounds {
        for (times, (_, make)) in times.iter_mut().zip(CONTENDERS) {
            measure(make, beside, effort, times);
        }
    }
    times
}

fn row(table: &mut Table, name: String, times: &Histogram<u64>) {
    let percentiles = PERCENTILES.iter().map(|&percentile| times.value_at_percentile(percentile));
    table.row([name].into_iter().chain(percentiles.chain([times.max()]).map(|nanos| time(nanos as f64))));
}

/// Nines on the axis: the worst tenth, hundredth and so on of all calls.
fn line(name: String, times: &Histogram<u64>) -> Line {
    let share = |tenths: u32| f64::from(tenths) / 10.0;
    let nanos = |nines: f64| times.value_at_quantile(1.0 - 10_f64.powf(-nines)).max(1) as f64;
    (name, (0..=50).map(share).map(|nines| (nines, nanos(nines).log10())).collect())
}

fn measure_all(report: &Report, effort: Effort) {
    let head = ["ns a call, the clock included".to_owned()];
    let columns = PERCENTILES.iter().map(|percentile| format!("p{percentile}")).chain(["max".to_owned()]);
    let mut table = Table::new(head.into_iter().chain(columns));
    let mut lines = Vec::new();
    row(&mut table, "the clock alone".to_owned(), &clock_alone(effort.calls));
    for (beside, called) in SITUATIONS {
        for ((name, _), times) in CONTENDERS.iter().zip(situation(beside, effort)) {
            let name = format!("{name}, {called}");
            row(&mut table, name.clone(), &times);
            // In the plot a coarse clock would only hide the precise one.
            if !name.starts_with("coarse") {
                lines.push(line(name, &times));
            }
        }
    }
    report.put("latency", &format!("{}\n{table}", machine()));
    if report.writes() {
        plot(&lines);
    }
}

fn plot(lines: &[Line]) {
    Plot {
        file: "latency.svg",
        title: "Time of a call at a million keys, by percentile",
        x: Axis { name: "percentile", label: |nines| format!("{}", 100.0 - 10_f64.powf(2.0 - nines)) },
        y: Axis { name: "time", label: |power| time(10_f64.powf(power)) },
        legend: Place::LowerRight,
        lines,
    }
    .write();
}

fn main() {
    let call = support::Call::read();
    let effort = if call.test { QUICK } else { FULL };
    measure_all(&Report::new("latency", "performance.md", call.write && !call.test), effort);
}
