//! The `palimpsest` command: parse, run the command, print the error once, set the exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    palimpsest::cli::main()
}
