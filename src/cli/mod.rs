//! The command line: what it takes, where its output goes, and how it fails.
//!
//! Results go to standard output and only once they are complete; everything else is one line each on standard error.

mod clients;
mod dry_run;
mod input;
mod log;
mod replay;
mod report;
mod sample_log;
mod serve;
mod simulate;

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};

/// What `--quota` takes, for the help of every command that has it.
const QUOTA_HELP: &str = "\
What a key may use, as LIMIT/PERIOD [burst=N] [algorithm=NAME] in one argument.

LIMIT      a whole number of units
PERIOD     an optional whole number and a unit: ns, us, ms, s, sec, min, h, d
burst      the most units at once, or of a leaky bucket the most that wait;
           LIMIT if left out (window algorithms take none)
algorithm  token-bucket (the default; gcra is the same), leaky-bucket,
           fixed-window, sliding-window-counter, sliding-window-log

For example 100/min, \"5/2500ms burst=10\", \"1000/h algorithm=fixed-window\".";

const EXAMPLES: &str = "\
Examples:
  What would ten requests a minute for each client have refused?
    tollgate replay --quota 10/min access.log

  The same for compressed logs, with bursts of 30, as JSON:
    zcat access.log.*.gz | tollgate replay --quota \"10/min burst=30\" --json -

  Every decision for times, keys and costs of your own:
    printf 't_ns,key,cost\\n0,alice,1\\n500,alice,1\\n' | tollgate simulate --quota 1/us -

  How does it feel? Serve a page behind limits, and look at it in a browser:
    tollgate serve --quota \"10/min burst=5\"

  No log at hand? Make one up:
    tollgate sample-log --seed 7 | tollgate replay --quota 10/min -

Exit status: 0 if all went well, 2 if anything was wrong; then nothing is printed but the reason.";

/// Try rate limits on a log before they meet a visitor.
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, after_help = EXAMPLES, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Replay(replay::Args),
    Simulate(simulate::Args),
    SampleLog(sample_log::Args),
    Serve(serve::Args),
}

/// Runs the command that the arguments ask for.
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Replay(args) => replay::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::SampleLog(args) => sample_log::run(&args),
        Command::Serve(args) => serve::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has seen enough (`tollgate ... | head`): not an error of ours.
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            complain(format_args!("{error:#}"));
            ExitCode::from(2)
        }
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>()).any(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// One line on standard error. With nobody there to read it, there is nobody to tell.
fn complain(message: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "tollgate: {message}");
}

/// Writes a finished result to standard output.
fn print(text: &[u8]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text).and_then(|()| out.flush()).context(STDOUT)
}

/// What standard output is called in messages.
const STDOUT: &str = "standard output";
