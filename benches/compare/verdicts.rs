//! Whether a contender decides rightly, before anybody cares how fast it is.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use tollgate::{Clock, ManualClock};

use super::contenders::{Entrant, Judged};
use crate::support::contender::{Key, Rate};
use crate::support::report::time;
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

/// How a contender first leaves a script; what it does after that is no fault of its own.
enum Fault {
    /// What was admitted at one moment, and what fitted.
    TooMuch { admitted: u64, due: u64, script: String },
    /// Refused what fitted, and would have for so many nanoseconds more; nothing, where waiting cannot be tried.
    TooLate(Option<u64>),
}

pub struct Verdict {
    scripts: usize,
    faults: Vec<Fault>,
    at_once: bool,
}

impl Verdict {
    pub fn is_right(&self) -> bool {
        self.faults.is_empty()
    }

    /// What was admitted too much, how often, and at worst.
    fn too_much(&self) -> Option<String> {
        let excess = |fault: &Fault| match fault {
            Fault::TooMuch { admitted, due, script } => {
                Some((admitted.saturating_sub(*due), *admitted, *due, script.clone()))
            }
            Fault::TooLate(_) => None,
        };
        let count = self.faults.iter().filter_map(excess).count();
        let (_, admitted, due, script) = self.faults.iter().filter_map(excess).max()?;
        Some(format!("admits too much in {count} of {}: at worst {admitted} where {due} fit ({script})", self.scripts))
    }

    /// How often a refill came late, and how late.
    fn too_late(&self) -> Option<String> {
        let late = |fault: &Fault| match fault {
            Fault::TooLate(late) => Some(*late),
            Fault::TooMuch { .. } => None,
        };
        let count = self.faults.iter().filter_map(late).count();
        let by = self.faults.iter().filter_map(late).max()?.map(|late| format!(", by up to {}", time(late as f64)));
        Some(format!("refills late in {count} of {}{}", self.scripts, by.unwrap_or_default()))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found: Vec<String> = self.too_much().into_iter().chain(self.too_late()).collect();
        let verdict = if self.is_right() { format!("exact in all {}", self.scripts) } else { found.join("; ") };
        write!(f, "{verdict}{}", if self.at_once { "; asked at one moment only" } else { "" })
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

    /// The first moment at which the contender does not do what is due.
    fn fault(&self, clock: &ManualClock, charge: impl Fn(u64) -> bool) -> Option<Fault> {
        for moment in self.steps.chunk_by(|one, next| one.0 == next.0) {
            clock.set(START + moment[0].0);
            let (mut admitted, mut due, mut too_much) = (0, 0, false);
            for &(_, cost, expected) in moment {
                let allowed = charge(cost);
                admitted += u64::from(allowed) * cost;
                due += u64::from(expected) * cost;
                too_much |= allowed && !expected;
                if expected && !allowed && !too_much {
                    return Some(Fault::TooLate(lateness(clock, || charge(cost))));
                }
            }
            if too_much {
                return Some(Fault::TooMuch { admitted, due, script: self.describe() });
            }
        }
        None
    }

    fn describe(&self) -> String {
        let Rate { limit, period, burst } = self.rate;
        format!("{limit} in {period:?}, burst {burst}: {}", self.name)
    }
}

/// How long it goes on refusing, to a power of two of nanoseconds.
fn lateness(clock: &ManualClock, charge: impl Fn() -> bool) -> Option<u64> {
    let from = clock.now();
    (0..40).map(|power| 1 << power).find(|late| {
        clock.set(from + late);
        charge()
    })
}

/// Nothing for one that is judged elsewhere.
pub fn judge<K: Key>(entrant: &Entrant<K>, scripts: &[Script]) -> Option<Verdict> {
    let key = K::nth(0);
    let at_once = matches!(entrant.judged, Judged::AtOnce);
    let faults: Vec<Option<Fault>> = match entrant.judged {
        Judged::ByClock(make) => scripts
            .iter()
            .map(|script| {
                let clock = ManualClock::at(START);
                let contender = make(script.rate, &clock);
                script.fault(&clock, |cost| contender.charge(&key, cost))
            })
            .collect(),
        Judged::AtOnce => scripts
            .iter()
            .filter_map(Script::at_once)
            .map(|script| {
                let contender = (entrant.make)(script.rate, 1_000);
                script.fault(&ManualClock::new(), |cost| contender.charge(&key, cost))
            })
            .collect(),
        Judged::Elsewhere => return None,
    };
    Some(Verdict { scripts: faults.len(), faults: faults.into_iter().flatten().collect(), at_once })
}

/// Each contender's name and verdict, without those that are judged elsewhere.
pub fn all<K: Key>(entrants: &[Entrant<K>]) -> Vec<(&'static str, Verdict)> {
    let scripts = scripts();
    entrants.iter().filter_map(|entrant| Some((entrant.name, judge(entrant, &scripts)?))).collect()
}
