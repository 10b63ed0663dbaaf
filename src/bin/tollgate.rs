//! The `tollgate` command: see `tollgate --help`.

use std::process::ExitCode;

#[path = "../cli/mod.rs"]
mod cli;

fn main() -> ExitCode {
    cli::main()
}
