//! Many keys: tollgate in all its ways beside governor, at all kinds of work; and all the peers at some of it.

use std::net::IpAddr;

use super::contenders::{self, Entrant};
use super::{made, verdicts};
use crate::support::contender::{Key, Rate};
use crate::support::measure::{Draw, cost, in_turns, lists};
use crate::support::report::{Report, Table, grouped};

const ROUNDS: usize = 5;
/// Of other draws and kinds of keys, to keep the whole short.
const OTHER_ROUNDS: usize = 3;
const CHECKS: usize = 1_000_000;
/// Of the peers, some of which take a microsecond a check.
const PEER_ROUNDS: usize = 3;
const PEER_CHECKS: usize = 250_000;

const TRAFFIC: [(Rate, &str); 2] = [(Rate::PLENTY, "admitted"), (Rate::SCARCE, "refused")];

/// Everybody's cost at one kind of work, for 1 and 2 threads.
fn costs<K: Key>(entrants: &[Entrant<K>], rate: Rate, keys: u64, draw: Draw, effort: (usize, usize)) -> [Vec<f64>; 2] {
    let contenders = made(entrants, rate, keys);
    let (rounds, checks) = effort;
    [1, 2].map(|threads| {
        let lists = lists(keys, draw, threads);
        in_turns(&contenders, rounds, |contender| cost(contender.as_ref(), &lists, checks))
    })
}

/// The first is what the others are compared with.
fn with_ratios(costs: &[f64]) -> Vec<String> {
    let others = costs[1..].iter().map(|cost| format!("{cost:.1} ({:.1}x)", costs[0] / cost));
    [format!("{:.0}", costs[0])].into_iter().chain(others).collect()
}

fn rows<K: Key>(table: &mut Table, what: &str, keys: u64, draw: Draw, rounds: usize) {
    for (rate, traffic) in TRAFFIC {
        let costs = costs::<K>(&contenders::keyed(), rate, keys, draw, (rounds, CHECKS));
        for (threads, costs) in (1..).zip(costs) {
            table.row([format!("{what}, {traffic}, {threads}")].into_iter().chain(with_ratios(&costs)));
        }
    }
}

pub fn tables(report: &Report) {
    let entrants = contenders::keyed::<u64>();
    let names = entrants.iter().map(|entrant| entrant.name);
    let mut table = Table::new(["keys, traffic, threads; ns a check"].into_iter().chain(names));
    for keys in [1, 1_000, 1_000_000, 10_000_000] {
        rows::<u64>(&mut table, &grouped(keys), keys, Draw::Uniform, ROUNDS);
    }
    rows::<u64>(&mut table, "1,000,000 by Zipf", 1_000_000, Draw::Zipf, OTHER_ROUNDS);
    rows::<IpAddr>(&mut table, "1,000,000 `IpAddr`", 1_000_000, Draw::Uniform, OTHER_ROUNDS);
    rows::<String>(&mut table, "1,000,000 `String`", 1_000_000, Draw::Uniform, OTHER_ROUNDS);
    report.put("compare-keyed", &table);

    let mut decisions = Table::new(["", "decisions"]);
    for (name, verdict) in verdicts::all(&entrants) {
        decisions.row([name.to_owned(), verdict.to_string()]);
    }
    report.put("compare-decisions", &decisions);
}

pub fn peers(report: &Report) {
    let entrants = contenders::peers();
    let verdicts = verdicts::all(&entrants);
    let mut columns = Vec::new();
    for (rate, traffic) in TRAFFIC {
        for keys in [1_000, 1_000_000] {
            let costs = costs(&entrants, rate, keys, Draw::Uniform, (PEER_ROUNDS, PEER_CHECKS));
            for (threads, costs) in (1..).zip(costs) {
                columns.push((format!("{} {traffic}, {threads}", grouped(keys)), costs));
            }
        }
    }
    let heads = columns.iter().map(|column| column.0.as_str());
    let mut table = Table::new(["`String` keys, ns a check"].into_iter().chain(heads).chain(["decisions"]));
    for (index, (name, verdict)) in verdicts.iter().enumerate() {
        let costs = columns.iter().map(|column| format!("{:.0}", column.1[index]));
        table.row([(*name).to_owned()].into_iter().chain(costs).chain([verdict.to_string()]));
    }
    report.put("compare-peers", &table);
}
