//! The `palimpsest` command: parse, run the command, print the error once, set the exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    // SAFETY: no other thread runs yet.
    ExitCode::from(unsafe { palimpsest::cli::process::run(std::env::args_os()) })
}
