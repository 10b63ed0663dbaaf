//! tollgate's algorithms beside each other: the same keys, the same limit.
//!
//! `cargo bench --bench algorithms` prints a table, then runs the same work under criterion. With `-- --ratios` it stops
//! after the table; with `-- --write` it also puts it into `docs`.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::cast_precision_loss)]

mod support;

use std::time::Duration;

use criterion::{BenchmarkId, Criterion};
use tollgate::Algorithm;

use support::Call;
use support::contender::{Contender, Rate, algorithm};
use support::measure::{Draw, cost, fill, in_turns, lists};
use support::report::{Report, Table, grouped, machine};

/// Enough for each of a thousand keys, and so few at once that a log has room for a million of them.
const PLENTY: Rate = Rate { limit: 10, period: Duration::from_micros(1), burst: 10 };
const TRAFFIC: [(Rate, &str); 2] = [(PLENTY, "admitted"), (Rate::SCARCE, "refused")];

const ROUNDS: usize = 5;
const CHECKS: usize = 1_000_000;

/// One limiter for each algorithm, each knowing all of the keys.
fn made(rate: Rate, keys: u64, with_coarse_clock: bool) -> Vec<Box<dyn Contender<u64>>> {
    let make = |&which: &Algorithm| {
        let limiter = algorithm(which, rate, usize::try_from(keys).unwrap(), with_coarse_clock);
        fill(limiter.as_ref(), keys);
        limiter
    };
    Algorithm::ALL.iter().map(make).collect()
}

fn rows(table: &mut Table, keys: u64, with_coarse_clock: bool) {
    let clock = if with_coarse_clock { "coarse clock" } else { "precise clock" };
    for (rate, traffic) in TRAFFIC {
        let limiters = made(rate, keys, with_coarse_clock);
        for threads in [1, 2] {
            let lists = lists(keys, Draw::Uniform, threads);
            let costs = in_turns(&limiters, ROUNDS, |limiter| cost(limiter.as_ref(), &lists, CHECKS));
            let work = format!("{}, {traffic}, {clock}, {threads}", grouped(keys));
            table.row([work].into_iter().chain(costs.iter().map(|cost| format!("{cost:.1}"))));
        }
    }
}

fn tables(report: &Report) {
    let names = Algorithm::ALL.iter().map(|algorithm| algorithm.name());
    let mut table = Table::new(["keys, traffic, clock, threads; ns a check"].into_iter().chain(names));
    for keys in [1_000, 1_000_000] {
        rows(&mut table, keys, false);
        rows(&mut table, keys, true);
    }
    report.put("algorithms", &format!("{}\n{table}", machine()));
}

fn groups(criterion: &mut Criterion, sizes: &[u64]) {
    for &keys in sizes {
        let mut group = criterion.benchmark_group(format!("algorithms, {} keys", grouped(keys)));
        group.sample_size(10).measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500));
        for (rate, traffic) in TRAFFIC {
            let (limiters, lists) = (made(rate, keys, false), lists(keys, Draw::Uniform, 1));
            for (limiter, algorithm) in limiters.iter().zip(Algorithm::ALL) {
                group.bench_function(BenchmarkId::new(algorithm.name(), traffic), |bencher| {
                    bencher.iter_custom(|checks| limiter.run(&lists, usize::try_from(checks).unwrap()));
                });
            }
        }
    }
}

fn main() {
    let call = Call::read();
    let sizes: &[u64] = if call.test { &[1_000] } else { &[1_000, 1_000_000] };
    call.run("algorithms", tables, |criterion| groups(criterion, sizes));
}
