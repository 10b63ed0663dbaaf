//! A flood: very many new keys, each once, into a table built for as many, or into an empty map that grows.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use cpu_time::ThreadTime;

use crate::support::contender::{self, Contender, Key, Make, Rate};
use crate::support::measure::{median, nanos, resident_bytes};
use crate::support::report::{Report, Table, time};

const KEYS: usize = 10_000_000;
const ROUNDS: usize = 3;

/// What one flood of one contender came to, in nanoseconds and bytes.
struct Flood {
    mean: f64,
    longest_cpu: f64,
    longest_wall: f64,
    bytes: f64,
}

fn key<K: Key>(number: usize) -> K {
    K::nth((number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// The mean of all calls, without clocks around them.
fn mean<K: Key>(contender: &dyn Contender<K>) -> f64 {
    let start = Instant::now();
    for number in 0..KEYS {
        std::hint::black_box(contender.check(&key(number)));
    }
    nanos(start.elapsed()) / KEYS as f64
}

/// The longest call by the thread's own CPU clock, which stands still while the scheduler runs something else, and by
/// the wall's.
fn longest<K: Key>(contender: &dyn Contender<K>) -> (f64, f64) {
    let (mut worst_cpu, mut worst_wall) = (Duration::ZERO, Duration::ZERO);
    let (mut cpu, mut wall) = (ThreadTime::now(), Instant::now());
    for number in 0..KEYS {
        std::hint::black_box(contender.check(&key(number)));
        let (cpu_now, wall_now) = (ThreadTime::now(), Instant::now());
        worst_cpu = worst_cpu.max(cpu_now.duration_since(cpu));
        worst_wall = worst_wall.max(wall_now - wall);
        (cpu, wall) = (cpu_now, wall_now);
    }
    (nanos(worst_cpu), nanos(worst_wall))
}

fn flood<K: Key>(make: Make<K>) -> Flood {
    let before = resident_bytes();
    let contender = make(Rate::PLENTY, KEYS);
    let mean = mean(contender.as_ref());
    let bytes = resident_bytes().saturating_sub(before) as f64 / KEYS as f64;
    drop(contender);
    let (longest_cpu, longest_wall) = longest(make(Rate::PLENTY, KEYS).as_ref());
    Flood { mean, longest_cpu, longest_wall, bytes }
}

fn rows<K: Key>(table: &mut Table, keys: &str) {
    let contenders: [(&str, Make<K>); 3] =
        [("governor", contender::governor), ("tollgate", contender::tollgate), ("compact memory", contender::compact)];
    let mut floods = contenders.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (floods, (_, make)) in floods.iter_mut().zip(contenders) {
            floods.push(flood(make));
        }
    }
    for ((name, _), floods) in contenders.iter().zip(floods) {
        let of = |figure: fn(&Flood) -> f64| median(floods.iter().map(figure).collect());
        table.row([
            format!("{name}, {keys}"),
            format!("{:.0}", of(|flood| flood.mean)),
            time(of(|flood| flood.longest_cpu)),
            time(of(|flood| flood.longest_wall)),
            format!("{:.1}", of(|flood| flood.bytes)),
        ]);
    }
}

pub fn table(report: &Report) {
    let head = ["10,000,000 new keys", "mean, ns", "longest call, CPU clock", "longest call, wall", "bytes a key"];
    let mut table = Table::new(head);
    rows::<u64>(&mut table, "`u64`");
    rows::<IpAddr>(&mut table, "`IpAddr`");
    report.put("compare-flood", &table);
}
