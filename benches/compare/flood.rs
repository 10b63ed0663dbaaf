//! A flood: very many new keys, each once, into a table built for as many, or into an empty map that grows.

use std::net::IpAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use cpu_time::ThreadTime;

use crate::support::contender::{self, Contender, Key, Make, Rate};
use crate::support::measure::{median, nanos, resident_bytes};
use crate::support::report::{Report, Table, time};

const KEYS: usize = 10_000_000;
const NAMES: [&str; 3] = ["governor", "tollgate", "compact memory"];
/// What a process of ours is called with to measure one flood.
const ASKED: &str = "--one-flood";

/// What one flood of one contender came to, in nanoseconds and bytes: the mean, the longest call by the CPU clock and by
/// the wall's, the memory for each key.
type Flood = [f64; 4];

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

fn flood<K: Key>(name: &str) -> Flood {
    let make: Make<K> = match name {
        "governor" => contender::governor,
        "tollgate" => contender::tollgate,
        _ => contender::compact,
    };
    let before = resident_bytes();
    let contender = make(Rate::PLENTY, KEYS);
    let mean = mean(contender.as_ref());
    let bytes = resident_bytes().saturating_sub(before) as f64 / KEYS as f64;
    drop(contender);
    let (cpu, wall) = longest(make(Rate::PLENTY, KEYS).as_ref());
    [mean, cpu, wall, bytes]
}

/// If this process was begun to measure one flood, measures it and tells the process that began it.
pub fn answer() -> bool {
    let arguments: Vec<String> = std::env::args().skip_while(|argument| argument != ASKED).collect();
    let [_, name, keys] = arguments.as_slice() else { return false };
    let flood = if keys == "IpAddr" { flood::<IpAddr>(name) } else { flood::<u64>(name) };
    println!("{}", flood.map(|figure| figure.to_string()).join(" "));
    true
}

/// Each flood has a process of its own: memory that was freed may stay in a process, and would then hide what the next
/// flood takes.
fn ask(name: &str, keys: &str) -> Flood {
    let output = Command::new(std::env::current_exe().unwrap()).args([ASKED, name, keys]).output().unwrap();
    let figures = String::from_utf8(output.stdout).unwrap();
    let figures: Vec<f64> = figures.split_whitespace().map(|figure| figure.parse().unwrap()).collect();
    figures.try_into().unwrap()
}

fn rows(table: &mut Table, keys: &str, rounds: usize) {
    let mut floods = NAMES.map(|_| Vec::new());
    for _ in 0..rounds {
        for (floods, name) in floods.iter_mut().zip(NAMES) {
            floods.push(ask(name, keys));
        }
    }
    for (name, floods) in NAMES.iter().zip(floods) {
        let of = |figure: usize| median(floods.iter().map(|flood| flood[figure]).collect());
        let [mean, cpu, wall, bytes] = [0, 1, 2, 3].map(of);
        let name = format!("{name}, `{keys}`");
        table.row([name, format!("{mean:.0}"), time(cpu), time(wall), format!("{bytes:.1}")]);
    }
}

pub fn table(report: &Report) {
    let head = ["10,000,000 new keys", "mean, ns", "longest call, CPU clock", "longest call, wall", "bytes a key"];
    let mut table = Table::new(head);
    rows(&mut table, "u64", 2);
    // Once, to keep the whole short.
    rows(&mut table, "IpAddr", 1);
    report.put("compare-flood", &table);
}
