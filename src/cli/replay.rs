//! `tollgate replay`: what would a quota have refused, had it stood before the site of this log?

use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use anyhow::{Context, anyhow};
use tollgate::Quota;

use super::clients::Clients;
use super::dry_run::{DryRun, parse_quotas};
use super::input::Input;
use super::log::{Format, LineParser};
use super::report::{Count, Report, utc};
use super::{QUOTA_HELP, complain, print};

/// How many of the skipped lines are shown.
const SHOWN_SKIPS: usize = 3;

const READ_BUFFER: usize = 1 << 18;

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Show what a quota would have refused of the requests in an access log
///
/// Each client address has the quota to itself; IPv6 addresses count by their /64. The log's own times drive the limiter,
/// and lines are put in order of time first. Lines that are no request are skipped and counted.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A quota of each client, such as 10/min; given more than once, all of them together
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, required = true, long_help = QUOTA_HELP)]
    quota: Vec<String>,

    /// The format of the log
    #[arg(long, value_enum, default_value_t)]
    format: Format,

    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,

    /// An access log in the common or combined format, or - for standard input
    log: PathBuf,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let quotas = parse_quotas(&args.quota)?;
    let log = Log::read(Input::open(&args.log)?, args.format)?;
    let report = log.replay(&quotas)?;
    log.skipped.show(&log.name);
    print(&if args.json { report.to_json()? } else { report.to_table().into_bytes() })
}

/// One request: when, in nanoseconds since the Unix epoch, and from whom.
#[derive(Clone, Copy)]
struct Request {
    time: u64,
    client: u32,
}

/// A log as far as a limiter is concerned: its requests in order of time.
struct Log {
    name: String,
    requests: Vec<Request>,
    first: u64,
    last: u64,
    clients: Clients,
    skipped: Skipped,
}

/// The lines that are no request.
#[derive(Default)]
struct Skipped {
    count: u64,
    /// The first few, each with its number and what is wrong with it.
    shown: Vec<String>,
}

impl Skipped {
    fn add(&mut self, line_number: u64, why: impl std::fmt::Display) {
        self.count += 1;
        if self.shown.len() < SHOWN_SKIPS {
            self.shown.push(format!("line {line_number}: {why}"));
        }
    }

    fn show(&self, name: &str) {
        for skip in &self.shown {
            complain(format_args!("{name}: skipped {skip}"));
        }
        let more = self.count - self.shown.len() as u64;
        if more > 0 {
            complain(format_args!("{name}: skipped {more} more"));
        }
    }
}

impl Log {
    fn read(input: Input, format: Format) -> anyhow::Result<Self> {
        let name = input.name.clone();
        let mut reader = BufReader::with_capacity(READ_BUFFER, input);
        let mut parser = LineParser::new(format);
        let (mut requests, mut clients, mut skipped) = (Vec::new(), Clients::default(), Skipped::default());
        let mut line = Vec::new();
        let mut lines: u64 = 0;
        while reader.read_until(b'\n', &mut line).with_context(|| name.clone())? > 0 {
            lines += 1;
            match parser.parse(content(&line, lines)) {
                Ok(entry) => {
                    let client = clients.number(entry.client).with_context(|| format!("{name}: too many clients"))?;
                    requests.push(Request { time: entry.time, client });
                }
                Err(why) => skipped.add(lines, why),
            }
            line.clear();
        }
        sort_by_time(&mut requests);
        let (Some(first), Some(last)) = (requests.first(), requests.last()) else {
            return Err(no_request(&name, lines, &skipped));
        };
        let (first, last) = (first.time, last.time);
        Ok(Self { name, requests, first, last, clients, skipped })
    }

    /// Asks a limiter about each request at its time.
    fn replay(&self, quotas: &[Quota]) -> anyhow::Result<Report> {
        let dry_run: DryRun<u32> = DryRun::new(quotas, self.first, self.last, self.clients.len()).map_err(|error| {
            let (first, last) = (utc(self.first), utc(self.last));
            anyhow!("{}: its times reach from {first} to {last}: {error}", self.name)
        })?;
        let mut counts = vec![Count::default(); self.clients.len()];
        let mut refused_by = vec![0; quotas.len()];
        for request in &self.requests {
            dry_run.clock.set(request.time);
            let decision = dry_run.limiter.check(&request.client);
            let refused = !decision.is_allowed();
            if let Some(by) = refused_by.get_mut(decision.quota_index()) {
                *by += u64::from(refused);
            }
            // Clients are numbered from zero, one count each.
            if let Some(count) = counts.get_mut(request.client as usize) {
                count.requests += 1;
                count.refused += u64::from(refused);
            }
        }
        dry_run.warn_of_displaced();
        let clients = self.clients.in_order().zip(counts).collect();
        let quotas = quotas.iter().zip(refused_by).collect();
        Ok(Report::new(quotas, (self.first, self.last), self.skipped.count, clients))
    }
}

/// A line without its end and, if it is the first, without a byte order mark.
fn content(line: &[u8], line_number: u64) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    match line.strip_prefix(BYTE_ORDER_MARK) {
        Some(rest) if line_number == 1 => rest,
        _ => line,
    }
}

/// Servers write a line when a request ends, so most logs are almost in order. Equal times keep the log's order.
fn sort_by_time(requests: &mut [Request]) {
    if !requests.is_sorted_by_key(|request| request.time) {
        requests.sort_by_key(|request| request.time);
    }
}

fn no_request(name: &str, lines: u64, skipped: &Skipped) -> anyhow::Error {
    match skipped.shown.first() {
        Some(skip) => anyhow!("{name}: none of its lines ({lines}) is a request; {skip}"),
        None => anyhow!("{name}: it is empty"),
    }
}
