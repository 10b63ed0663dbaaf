//! How cost goes with the number of keys and of threads.

use super::contenders::{Entrant, keyed};
use super::made;
use crate::support::contender::{Rate, compact};
use crate::support::measure::{Draw, cost, fill, in_turns, lists, median};
use crate::support::plot::{Axis, Line, Place, Plot, plain};
use crate::support::report::{Report, Table, grouped};

const ROUNDS: usize = 3;
const CHECKS: usize = 500_000;
/// Of powers of ten, for everybody; and for compact memory, which takes 1.2 GB for so many.
const MOST_KEYS: i32 = 7;
const MOST_KEYS_COMPACT: i32 = 8;
const MOST_THREADS: u64 = 8;

/// What two threads get done beside one, each with keys of its own. Were anything shared that is written, or did what
/// they write share a line, it would be far from twice as much.
pub fn table(report: &Report) {
    let entrants = keyed();
    let mut table = Table::new(["two threads, each with its own keys".to_owned()].into_iter().chain(names(&entrants)));
    for keys in [1_000, 1_000_000, 10_000_000] {
        for (rate, traffic) in [(Rate::PLENTY, "admitted"), (Rate::SCARCE, "refused")] {
            let contenders = made(&entrants, rate, keys);
            let lists = lists(keys, Draw::Apart, 2);
            let gains = in_turns(&contenders, 2 * ROUNDS + 1, |contender| {
                let alone = cost(contender.as_ref(), &lists[..1], CHECKS);
                2.0 * alone / cost(contender.as_ref(), &lists, CHECKS)
            });
            let gains = gains.iter().map(|gain| format!("{gain:.2}x"));
            table.row([format!("{} {traffic}", grouped(keys))].into_iter().chain(gains));
        }
    }
    report.put("compare-apart", &table);
}

fn names(entrants: &[Entrant<u64>]) -> impl Iterator<Item = String> {
    entrants.iter().map(|entrant| entrant.name.to_owned())
}

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
    let mut lines = lines(entrants, &(0..=MOST_KEYS).map(point).collect::<Vec<_>>());
    let compact = lines.iter_mut().find(|(name, _)| name == "compact memory");
    compact.unwrap().1.extend((MOST_KEYS + 1..=MOST_KEYS_COMPACT).map(compact_alone));
    lines
}

fn compact_alone(power: i32) -> (f64, f64) {
    let keys = 10_u64.pow(u32::try_from(power).unwrap());
    let (contender, lists) =
        (compact::<u64>(Rate::PLENTY, usize::try_from(keys).unwrap()), lists(keys, Draw::Uniform, 1));
    fill(contender.as_ref(), keys);
    let costs = (0..ROUNDS).map(|_| cost(contender.as_ref(), &lists, CHECKS)).collect();
    (f64::from(power), median(costs))
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
