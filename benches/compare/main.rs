//! tollgate beside its peers: the same keys and quotas, in one process.
//!
//! `cargo bench --bench compare` first judges everybody's decisions and prints tables, measured in turns so that they
//! hold on a noisy machine; then it runs some of the same work under criterion. With `-- --ratios` it stops after the
//! tables; with `-- --write` it also puts them, and plots, into `docs`.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::cast_precision_loss, clippy::cast_sign_loss)]

mod contenders;
mod flood;
mod keyed;
mod scaling;
mod single;
#[path = "../support/mod.rs"]
mod support;
// Its quotas and tolerances are for tests.
#[allow(dead_code)]
#[path = "../../tests/support/vectors.rs"]
mod vectors;
mod verdicts;

use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion};

use contenders::{Entrant, SINGLE};
use support::Call;
use support::contender::{Contender, Key, Rate};
use support::measure::{Draw, fill, lists};
use support::report::{Report, machine};

/// Under criterion: so many keys, all admitted.
const WORK: [(u64, &str); 4] =
    [(1, "one hot key"), (1_000, "1,000"), (1_000_000, "1,000,000"), (10_000_000, "10,000,000")];

/// Everybody, each knowing all of the keys.
fn made<K: Key>(entrants: &[Entrant<K>], rate: Rate, keys: u64) -> Vec<Box<dyn Contender<K>>> {
    let make = |entrant: &Entrant<K>| {
        let contender = (entrant.make)(rate, usize::try_from(keys).unwrap());
        fill(contender.as_ref(), keys);
        contender
    };
    entrants.iter().map(make).collect()
}

fn tables(report: &Report) {
    report.put("compare-machine", &machine());
    single::table(report);
    keyed::tables(report);
    keyed::peers(report);
    scaling::table(report);
    flood::table(report);
    if report.writes() {
        scaling::plots();
    }
}

fn groups(criterion: &mut Criterion, work: &[(u64, &str)]) {
    compare(&mut group(criterion, "one key"), &SINGLE, 1);
    for &(keys, name) in work {
        compare(&mut group(criterion, name), &contenders::keyed::<u64>(), keys);
    }
    compare(&mut group(criterion, "1,000 strings"), &contenders::peers(), 1_000);
}

fn group<'a>(criterion: &'a mut Criterion, name: &str) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group.sample_size(10).measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500));
    group
}

fn compare<K: Key>(group: &mut BenchmarkGroup<WallTime>, entrants: &[Entrant<K>], keys: u64) {
    let contenders = made(entrants, Rate::PLENTY, keys);
    for threads in [1, 2] {
        let lists = lists(keys, Draw::Uniform, threads);
        for (entrant, contender) in entrants.iter().zip(&contenders) {
            let id = BenchmarkId::new(entrant.name, format!("{threads} thread(s)"));
            group.bench_function(id, |bencher| {
                bencher.iter_custom(|checks| contender.run(&lists, usize::try_from(checks).unwrap()));
            });
        }
    }
}

/// Whoever is called wrong here had better not be tollgate. (Compact memory may refill a tick late, and says so.)
fn judge_all() {
    let verdicts =
        [verdicts::all(&SINGLE), verdicts::all(&contenders::keyed::<u64>()), verdicts::all(&contenders::peers())];
    for (name, verdict) in verdicts.iter().flatten() {
        println!("{name}: {verdict}");
        assert!(verdict.is_right() || !name.starts_with("tollgate"), "{name}: {verdict}");
    }
}

fn main() {
    if flood::answer() {
        return;
    }
    let call = Call::read();
    if call.test {
        judge_all();
    }
    // Ten million keys are no test that is over in a second.
    let work = if call.test { &WORK[..2] } else { &WORK };
    call.run("compare", tables, |criterion| groups(criterion, work));
}
