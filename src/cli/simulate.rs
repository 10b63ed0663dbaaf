//! `tollgate simulate`: every number of every decision, for times, keys and costs of the user's own.

use std::collections::HashSet;
use std::io::Read;
use std::path::PathBuf;

use anyhow::{Context, anyhow, bail, ensure};
use csv::StringRecord;
use tollgate::Quota;

use super::dry_run::{DryRun, parse_quotas};
use super::input::Input;
use super::{QUOTA_HELP, print};

const INPUT_COLUMNS: [&str; 3] = ["t_ns", "key", "cost"];

const OUTPUT_COLUMNS: [&str; 8] =
    ["t_ns", "key", "cost", "allowed", "remaining", "retry_after_ns", "reset_after_ns", "delay_ns"];

/// The long help, where the names of columns stand as they are in the file.
const ABOUT: &str = "\
Decide about the times, keys and costs in a CSV file

FILE has the header t_ns,key,cost. Rows are decided in their order, each at its own time in nanoseconds; times may go
back. Prints each row with allowed, remaining, retry_after_ns (never, where no wait helps), reset_after_ns and delay_ns.";

#[derive(Debug, clap::Args)]
#[command(about = ABOUT.lines().next(), long_about = ABOUT)]
pub struct Args {
    /// A quota of each key, such as 10/min; given more than once, all of them together
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, required = true, long_help = QUOTA_HELP)]
    quota: Vec<String>,

    /// A CSV file, or - for standard input
    file: PathBuf,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let quotas = parse_quotas(&args.quota)?;
    let mut input = Input::open(&args.file)?;
    let mut data = Vec::new();
    input.read_to_end(&mut data).with_context(|| input.name.clone())?;
    let output =
        read_steps(&data).and_then(|steps| decide(&quotas, &data, &steps)).with_context(|| input.name.clone())?;
    print(&output)
}

/// One row of the input.
struct Step {
    /// The byte of the input at which it begins.
    start: u64,
    time: u64,
    key: String,
    cost: u64,
}

fn read_steps(data: &[u8]) -> anyhow::Result<Vec<Step>> {
    // The header and the number of columns are checked here, for messages that say what they should be.
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(data);
    let mut record = StringRecord::new();
    let mut has_header = false;
    let mut steps = Vec::new();
    loop {
        let start = reader.position().byte();
        let at_line = || format!("line {}", line_at(data, start));
        // A reader that may have any number of columns and reads from memory finds nothing else to object to.
        let more = reader.read_record(&mut record).map_err(|_| anyhow!("it is not UTF-8")).with_context(at_line)?;
        if !more {
            break;
        }
        if has_header {
            steps.push(parse_step(&record, start).with_context(at_line)?);
        } else {
            check_header(&record).with_context(at_line)?;
            has_header = true;
        }
    }
    ensure!(has_header, "line 1: the input is empty; it must begin with the header {}", INPUT_COLUMNS.join(","));
    Ok(steps)
}

fn check_header(record: &StringRecord) -> anyhow::Result<()> {
    ensure!(record == INPUT_COLUMNS[..], "the header must be {}", INPUT_COLUMNS.join(","));
    Ok(())
}

fn parse_step(record: &StringRecord, start: u64) -> anyhow::Result<Step> {
    let mut fields = record.iter();
    let (Some(time), Some(key), Some(cost), None) = (fields.next(), fields.next(), fields.next(), fields.next()) else {
        bail!("it has {} columns instead of {}: {}", record.len(), INPUT_COLUMNS.len(), INPUT_COLUMNS.join(","));
    };
    Ok(Step { start, time: parse_number("t_ns", time)?, key: key.to_owned(), cost: parse_number("cost", cost)? })
}

fn parse_number(column: &str, text: &str) -> anyhow::Result<u64> {
    text.parse().map_err(|_| anyhow!("{column} is not a whole number from 0 to {}: {text:?}", u64::MAX))
}

/// The number of the line on which the record at or after a byte begins. Line ends may stand before it: those of blank
/// lines, and the second half of the last CRLF.
fn line_at(data: &[u8], start: u64) -> usize {
    let start = usize::try_from(start).unwrap_or(usize::MAX).min(data.len());
    let (before, rest) = data.split_at(start);
    let line_ends = rest.iter().take_while(|byte| b"\r\n".contains(byte));
    1 + before.iter().chain(line_ends).filter(|&&byte| byte == b'\n').count()
}

/// Decides about all steps; the whole output, so that nothing is printed if anything is wrong.
fn decide(quotas: &[Quota], data: &[u8], steps: &[Step]) -> anyhow::Result<Vec<u8>> {
    let mut output = csv::Writer::from_writer(Vec::new());
    output.write_record(OUTPUT_COLUMNS)?;
    if let Some(dry_run) = start(quotas, data, steps)? {
        for step in steps {
            output.write_record(decide_one(&dry_run, step))?;
        }
        dry_run.warn_of_displaced();
    }
    output.into_inner().map_err(|error| error.into_error().into())
}

/// A limiter for the times of all steps, if there are any.
fn start(quotas: &[Quota], data: &[u8], steps: &[Step]) -> anyhow::Result<Option<DryRun<str>>> {
    let (first, last) = (steps.iter().min_by_key(|step| step.time), steps.iter().max_by_key(|step| step.time));
    let (Some(first), Some(last)) = (first, last) else { return Ok(None) };
    let keys: HashSet<&str> = steps.iter().map(|step| step.key.as_str()).collect();
    let dry_run = DryRun::new(quotas, first.time, last.time, keys.len()).map_err(|error| {
        let (line, span) = (line_at(data, last.start), last.time - first.time);
        anyhow!("line {line}: its t_ns is {span} ns after the earliest: {error}")
    })?;
    Ok(Some(dry_run))
}

fn decide_one(dry_run: &DryRun<str>, step: &Step) -> [String; 8] {
    dry_run.clock.set(step.time);
    let key = step.key.as_str();
    let (allowed, state, retry_after) = match dry_run.limiter.check_n(key, step.cost) {
        Ok(decision) => (decision.is_allowed(), decision, decision.retry_after().as_nanos().to_string()),
        Err(_) => (false, dry_run.limiter.peek(key), "never".to_owned()),
    };
    [
        step.time.to_string(),
        key.to_owned(),
        step.cost.to_string(),
        allowed.to_string(),
        state.remaining().to_string(),
        retry_after,
        state.reset_after().as_nanos().to_string(),
        state.delay().as_nanos().to_string(),
    ]
}
