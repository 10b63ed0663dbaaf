//! Whether a contender decides rightly, before anybody cares how fast it is.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use tollgate::ManualClock;

use super::contenders::{Entrant, Judged};
use crate::support::contender::{Key, Rate};
use crate::vectors::{Case, cases};

/// A clock of ours begins here, well after any crate's own beginning of time.
const START: u64 = 1_000_000_000_000;

/// What one key asks for, and what exact arithmetic gives it.
pub struct Script {
    name: String,
    rate: Rate,
    /// Nanoseconds since the first, cost, and whether it is to be admitted.
    steps: Vec<(u64, u64, bool)>,
}

/// A moment at which too much or too little was admitted.
#[derive(Clone)]
struct Fault {
    script: String,
    rate: Rate,
    admitted: u64,
    due: u64,
}

pub struct Verdict {
    scripts: usize,
    wrong: usize,
    worst: Option<Fault>,
    at_once: bool,
}

impl Verdict {
    pub fn is_right(&self) -> bool {
        self.wrong == 0
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scripts, wrong, .. } = self;
        let limits = if self.at_once { ", at one moment only" } else { "" };
        match &self.worst {
            None => write!(f, "exact in all {scripts}{limits}"),
            Some(Fault { script, rate, admitted, due }) => write!(
                f,
                "wrong in {wrong} of {scripts}{limits}; at worst admits {admitted} where {due} would be right, at {} in {:?} \
                 with a burst of {} ({script})",
                rate.limit, rate.period, rate.burst
            ),
        }
    }
}

/// All that everybody can be asked: the vectors of whole nanoseconds and whole seconds in which time goes on and for no
/// more than a day, by the key, and two things in which limiters are known to differ.
pub fn scripts() -> Vec<Script> {
    let vectors = cases("token-bucket").into_iter().filter(is_for_all).flat_map(|case| by_key(&case));
    vectors.chain((0..=30).map(after_idling)).chain([dearer_than_the_burst()]).collect()
}

fn is_for_all(case: &Case) -> bool {
    let times: Vec<u64> = case.steps.iter().map(|step| step.0).collect();
    let span = times.last().unwrap().saturating_sub(times[0]);
    case.exact && case.policy.period_ns.is_multiple_of(1_000_000_000) && times.is_sorted() && span <= 86_400_000_000_000
}

fn by_key(case: &Case) -> Vec<Script> {
    let keys: BTreeSet<&str> = case.steps.iter().map(|step| step.1.as_str()).collect();
    let rate = Rate {
        limit: u32::try_from(case.policy.limit).unwrap(),
        period: Duration::from_nanos(case.policy.period_ns),
        burst: u32::try_from(case.policy.burst).unwrap(),
    };
    let start = case.steps[0].0;
    let script = |key| {
        let of_key = case.steps.iter().zip(&case.expect).filter(|(step, _)| step.1 == key && step.2 > 0);
        let steps = of_key.map(|(step, expected)| (step.0 - start, step.2, expected.0)).collect();
        Script { name: case.name.clone(), rate, steps }
    };
    keys.into_iter().map(script).collect()
}

/// Ten a second, bursts of ten: a burst, a pause in which `units` come back, and then as much as can be had.
fn after_idling(units: u32) -> Script {
    let rate = Rate { limit: 10, period: Duration::from_secs(1), burst: 10 };
    let pause = u64::from(units) * 100_000_000;
    let greedy = (0..40).map(|asked| (pause, 1, asked < units.min(10)));
    let steps = (0..10).map(|_| (0, 1, true)).chain(greedy).collect();
    Script { name: format!("a burst, {} ms of rest, a burst", u64::from(units) * 100), rate, steps }
}

fn dearer_than_the_burst() -> Script {
    let rate = Rate { limit: 60, period: Duration::from_secs(60), burst: 60 };
    Script { name: "1, then 10,000 at once".to_owned(), rate, steps: vec![(0, 1, true), (0, 10_000, false)] }
}

impl Script {
    /// That part of it which a real clock cannot disturb: the first moment, where refills are slow.
    fn at_once(&self) -> Option<Self> {
        let first = self.steps.first()?.0;
        let steps = self.steps.iter().copied().take_while(|step| step.0 == first).collect();
        let slow = self.rate.interval() >= Duration::from_millis(100);
        slow.then(|| Self { name: self.name.clone(), rate: self.rate, steps })
    }

    /// What the contender admits at each moment where that differs from what is due.
    fn faults(&self, clock: &ManualClock, charge: impl Fn(u64) -> bool) -> Vec<Fault> {
        let moments = self.steps.chunk_by(|one, next| one.0 == next.0);
        let mut faults = Vec::new();
        for moment in moments {
            clock.set(START + moment[0].0);
            let (mut admitted, mut due, mut differs) = (0, 0, false);
            for &(_, cost, expected) in moment {
                let allowed = charge(cost);
                admitted += u64::from(allowed) * cost;
                due += u64::from(expected) * cost;
                differs |= allowed != expected;
            }
            if differs {
                faults.push(Fault { script: self.name.clone(), rate: self.rate, admitted, due });
            }
        }
        faults
    }
}

/// Nothing for one that is judged elsewhere.
pub fn judge<K: Key>(entrant: &Entrant<K>, scripts: &[Script]) -> Option<Verdict> {
    let key = K::nth(0);
    let faults: Vec<Vec<Fault>> = match entrant.judged {
        Judged::ByClock(make) => scripts
            .iter()
            .map(|script| {
                let clock = ManualClock::at(START);
                let contender = make(script.rate, &clock);
                script.faults(&clock, |cost| contender.charge(&key, cost))
            })
            .collect(),
        Judged::AtOnce => scripts
            .iter()
            .filter_map(Script::at_once)
            .map(|script| {
                let contender = (entrant.make)(script.rate, 1_000);
                script.faults(&ManualClock::new(), |cost| contender.charge(&key, cost))
            })
            .collect(),
        Judged::Elsewhere => return None,
    };
    let worst = faults.iter().flatten().max_by_key(|fault| fault.admitted.abs_diff(fault.due)).cloned();
    Some(Verdict {
        scripts: faults.len(),
        wrong: faults.iter().filter(|faults| !faults.is_empty()).count(),
        worst,
        at_once: matches!(entrant.judged, Judged::AtOnce),
    })
}

/// Each contender's name and verdict, without those that are judged elsewhere.
pub fn all<K: Key>(entrants: &[Entrant<K>]) -> Vec<(&'static str, Verdict)> {
    let scripts = scripts();
    entrants.iter().filter_map(|entrant| Some((entrant.name, judge(entrant, &scripts)?))).collect()
}
