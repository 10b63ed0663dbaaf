//! The `tollgate` command as its users meet it: a process with arguments, input, two outputs and an exit code.

#![cfg(all(feature = "cli", not(loom)))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

#[path = "cli/evening.rs"]
mod evening;
#[path = "cli/failures.rs"]
mod failures;
#[path = "cli/replay.rs"]
mod replay;
#[path = "cli/sample_log.rs"]
mod sample_log;
#[path = "cli/simulate.rs"]
mod simulate;
#[path = "support/vectors.rs"]
mod support;
#[path = "cli/vectors.rs"]
mod vectors;

use std::path::{Path, PathBuf};

use serde_json::Value;

/// What a run of the command came to.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn command(args: &[&str]) -> assert_cmd::Command {
    let mut command = assert_cmd::cargo_bin_cmd!("tollgate");
    command.args(args);
    command
}

/// Runs the command with an input.
fn run(args: &[&str], input: impl Into<Vec<u8>>) -> Outcome {
    let output = command(args).write_stdin(input).output().unwrap();
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The standard output of a run in which nothing was wrong, nor odd.
#[track_caller]
fn output(args: &[&str], input: impl Into<Vec<u8>>) -> String {
    let Outcome { code, stdout, stderr } = run(args, input);
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{args:?}");
    stdout
}

/// What a failing run says for itself: exactly one line, and nothing on standard output.
#[track_caller]
fn failure(args: &[&str], input: impl Into<Vec<u8>>) -> String {
    let Outcome { code, stdout, stderr } = run(args, input);
    assert_eq!((code, stdout.as_str()), (Some(2), ""), "{args:?}: {stderr}");
    let message = stderr.strip_prefix("tollgate: ").unwrap_or_else(|| panic!("{args:?}: {stderr:?}"));
    let message = message.strip_suffix('\n').unwrap_or_else(|| panic!("{args:?}: no whole line: {stderr:?}"));
    assert!(!message.contains('\n'), "{args:?}: more than a line: {stderr:?}");
    message.to_owned()
}

/// The report of a replay of a log on standard input, and what was said beside it.
#[track_caller]
fn replay_json(quota: &str, format: &str, log: impl Into<Vec<u8>>) -> (Value, String) {
    let Outcome { code, stdout, stderr } = run(&["replay", "--quota", quota, "--format", format, "--json", "-"], log);
    assert_eq!(code, Some(0), "{stderr}");
    (serde_json::from_str(&stdout).unwrap(), stderr)
}

/// A file of the project.
fn project_file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn evening_log() -> PathBuf {
    project_file("tests/data/evening.log")
}
