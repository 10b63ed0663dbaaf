//! How near each algorithm comes to the exact count of a sliding window, on access logs; and pictures of what each does.
//!
//! `cargo bench --bench accuracy --features cli` prints the table for the sample log; `-- --log FILE` adds one for a log of
//! yours, and `-- --write` puts tables and pictures into `docs`.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::cast_precision_loss)]

// Only a part of it is needed here.
#[allow(dead_code)]
#[path = "../src/cli/log.rs"]
mod log;
mod support;

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use tollgate::{Algorithm, ClientIp, Limiter, ManualClock, Quota};

use log::{Format, LineParser};
use support::Call;
use support::plot::{Axis, Place, Plot, plain};
use support::report::{Report, Table, grouped};

const MINUTE: u64 = 60_000_000_000;
const LIMIT: u64 = 10;

/// Ten a minute and ten at once, by `algorithm`.
fn quota(algorithm: Algorithm) -> Quota {
    let quota = Quota::per_minute(LIMIT).with_algorithm(algorithm);
    // One unit more than may wait is admitted at once.
    if algorithm == Algorithm::LeakyBucket { quota.with_burst(LIMIT - 1) } else { quota }
}

/// The moments of all requests in order, in nanoseconds, and who sent them.
struct Log(Vec<(u64, String)>);

impl Log {
    fn read(path: &Path) -> Self {
        let text = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut parser = LineParser::new(Format::Auto);
        let mut requests: Vec<(u64, String)> = Vec::new();
        for line in text.split(|&byte| byte == b'\n') {
            if let Ok(entry) = parser.parse(line) {
                let name = String::from_utf8_lossy(entry.client);
                let client =
                    name.parse::<IpAddr>().map_or_else(|_| name.to_string(), |ip| ClientIp::from(ip).to_string());
                requests.push((entry.time, client));
            }
        }
        requests.sort_by_key(|request| request.0);
        Self(requests)
    }
}

/// What an algorithm made of a log.
#[derive(Default)]
struct Outcome {
    refused: u64,
    /// Admitted although the minute before held as many already.
    wrongly_admitted: u64,
    /// Refused although the minute before held fewer.
    wrongly_refused: u64,
    /// The most in any minute of one client.
    worst: usize,
}

/// Each request is measured by what the algorithm itself has admitted in the minute before it.
fn outcome(algorithm: Algorithm, log: &Log) -> Outcome {
    let clock = ManualClock::at(log.0[0].0);
    let builder = Limiter::<str>::builder(quota(algorithm)).capacity(log.0.len()).clock(clock.clone());
    let limiter = builder.build().unwrap();
    let mut recent: HashMap<&str, VecDeque<u64>> = HashMap::new();
    let mut outcome = Outcome::default();
    for (now, client) in &log.0 {
        clock.set(*now);
        let recent = recent.entry(client).or_default();
        while recent.front().is_some_and(|then| then + MINUTE <= *now) {
            recent.pop_front();
        }
        let fits = (recent.len() as u64) < LIMIT;
        if limiter.check(client.as_str()).is_allowed() {
            recent.push_back(*now);
            outcome.wrongly_admitted += u64::from(!fits);
        } else {
            outcome.refused += 1;
            outcome.wrongly_refused += u64::from(fits);
        }
        outcome.worst = outcome.worst.max(recent.len());
    }
    outcome
}

fn table(log: &Log) -> Table {
    let head = ["10 a minute", "refused", "wrongly admitted", "wrongly refused", "worst minute of a client"];
    let mut table = Table::new(head);
    for &algorithm in Algorithm::ALL {
        let Outcome { refused, wrongly_admitted, wrongly_refused, worst } = outcome(algorithm, log);
        let counts = [refused, wrongly_admitted, wrongly_refused, worst as u64].map(grouped);
        table.row([algorithm.name().to_owned()].into_iter().chain(counts));
    }
    table
}

/// A client that asks every two seconds, and ten times at once as the second minute nears its end.
fn picture(algorithm: Algorithm) {
    let clock = ManualClock::new();
    let limiter = Limiter::<str>::builder(quota(algorithm)).clock(clock.clone()).build().unwrap();
    let (mut left, mut admitted, mut refused) = (Vec::new(), Vec::new(), Vec::new());
    for tenth in 0..2_400_u32 {
        clock.set(u64::from(tenth) * 100_000_000);
        let seconds = f64::from(tenth) / 10.0;
        let asked = match tenth {
            0..600 if tenth % 40 == 0 => 1,
            1_150 => 10,
            1_210..1_800 if tenth % 20 == 0 => 1,
            _ => 0,
        };
        for _ in 0..asked {
            let decision = limiter.check("client");
            let place = if decision.is_allowed() { &mut admitted } else { &mut refused };
            place.push((seconds, decision.remaining() as f64));
        }
        left.push((seconds, limiter.peek("client").remaining() as f64));
    }
    let title = format!("{}: 10 a minute", algorithm.name());
    Plot {
        file: &format!("{}.svg", algorithm.name()),
        title: &title,
        x: Axis { name: "seconds", label: plain },
        y: Axis { name: "units left", label: plain },
        legend: Place::LowerRight,
        lines: &[("left".to_owned(), left)],
    }
    .write_with(&[("admitted", admitted), ("refused", refused)]);
}

/// The file that `--log` names.
fn own_log() -> Option<PathBuf> {
    std::env::args().skip_while(|argument| argument != "--log").nth(1).map(PathBuf::from)
}

fn main() {
    let call = Call::read();
    let report = Report::new("accuracy --features cli", "algorithms.md", call.write && !call.test);
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/evening.log");
    report.put("accuracy-sample", &table(&Log::read(&sample)));
    if let Some(path) = own_log() {
        report.put("accuracy-log", &table(&Log::read(&path)));
    }
    if report.writes() {
        Algorithm::ALL.iter().copied().for_each(picture);
    }
}
