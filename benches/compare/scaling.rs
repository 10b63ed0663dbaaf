//! How cost goes with the number of keys and of threads: the plots.

use super::contenders::{Entrant, keyed};
use super::made;
use crate::support::contender::Rate;
use crate::support::measure::{Draw, cost, in_turns, lists};
use crate::support::plot::{Axis, Line, Place, Plot, plain};
use crate::support::report::grouped;

const ROUNDS: usize = 3;
const CHECKS: usize = 500_000;
/// Of powers of ten. Compact memory has room for one more on most machines, but governor has not.
const MOST_KEYS: i32 = 7;
const MOST_THREADS: u64 = 8;

fn lines(entrants: &[Entrant<u64>], points: &[(f64, Vec<f64>)]) -> Vec<Line> {
    let line = |(index, entrant): (usize, &Entrant<u64>)| {
        let points = points.iter().map(|(at, costs)| (*at, costs[index])).collect();
        (entrant.name.to_owned(), points)
    };
    entrants.iter().enumerate().map(line).collect()
}

fn by_keys(entrants: &[Entrant<u64>]) -> Vec<Line> {
    let point = |power| {
        let keys = 10_u64.pow(u32::try_from(power).unwrap());
        let (contenders, lists) = (made(entrants, Rate::PLENTY, keys), lists(keys, Draw::Uniform, 1));
        let costs = in_turns(&contenders, ROUNDS, |contender| cost(contender.as_ref(), &lists, CHECKS));
        (f64::from(power), costs)
    };
    lines(entrants, &(0..=MOST_KEYS).map(point).collect::<Vec<_>>())
}

fn by_threads(entrants: &[Entrant<u64>], keys: u64) -> Vec<Line> {
    let contenders = made(entrants, Rate::PLENTY, keys);
    let all = lists(keys, Draw::Uniform, MOST_THREADS);
    let point = |threads: usize| {
        // Of all threads together, for on a machine with fewer processors each by itself is the slower.
        let each = |contender: &Box<_>| cost(&**contender, &all[..threads], CHECKS) / threads as f64;
        (threads as f64, in_turns(&contenders, ROUNDS, each))
    };
    lines(entrants, &(1..=all.len()).map(point).collect::<Vec<_>>())
}

pub fn plots() {
    let entrants = keyed();
    let label = |power: f64| grouped(10_f64.powf(power).round() as u64);
    Plot {
        file: "keys.svg",
        title: "Cost of a check, one thread, by number of keys",
        x: Axis { name: "keys", label },
        y: Axis { name: "ns a check", label: plain },
        legend: Place::UpperLeft,
        lines: &by_keys(&entrants),
    }
    .write();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    for (keys, file) in [(1, "threads-one-key.svg"), (1_000_000, "threads.svg")] {
        let title = format!("Time for each check of all threads, {} key(s), {processors} processors", grouped(keys));
        Plot {
            file,
            title: &title,
            x: Axis { name: "threads", label: plain },
            y: Axis { name: "ns a check", label: plain },
            legend: Place::UpperRight,
            lines: &by_threads(&entrants, keys),
        }
        .write();
    }
}
