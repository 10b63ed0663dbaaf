//! One key for all: limiters that keep no map.

use super::contenders::SINGLE;
use super::made;
use super::verdicts;
use crate::support::contender::Rate;
use crate::support::measure::{Draw, cost, in_turns, lists};
use crate::support::report::{Report, Table};

const ROUNDS: usize = 5;
const CHECKS: usize = 1_000_000;

pub fn table(report: &Report) {
    let mut costs = Vec::new();
    for rate in [Rate::PLENTY, Rate::SCARCE] {
        let contenders = made(&SINGLE, rate, 1);
        for threads in [1, 2] {
            let lists = lists(1, Draw::Uniform, threads);
            costs.push(in_turns(&contenders, ROUNDS, |contender| cost(contender.as_ref(), &lists, CHECKS)));
        }
    }
    let head =
        ["one key, ns a check", "admitted, 1 thread", "2 threads", "refused, 1 thread", "2 threads", "decisions"];
    let mut table = Table::new(head);
    for (index, (name, verdict)) in verdicts::all(&SINGLE).into_iter().enumerate() {
        let costs = costs.iter().map(|costs| format!("{:.1}", costs[index]));
        table.row([name.to_owned()].into_iter().chain(costs).chain([verdict.to_string()]));
    }
    report.put("compare-single", &table);
}
