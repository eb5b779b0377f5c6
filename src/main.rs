//! The `palimpsest` command: parse, run the command, print the error once, set the exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Candle prints a backtrace as part of an error where one was captured; an error is one line here. Panics still have
    // theirs, and who sets this variable gets what it says.
    if std::env::var_os("RUST_LIB_BACKTRACE").is_none() {
        // SAFETY: no other thread runs yet that could read the environment.
        unsafe { std::env::set_var("RUST_LIB_BACKTRACE", "0") };
    }
    palimpsest::cli::main()
}
