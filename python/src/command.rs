//! The `palimpsest` command, run with Python's arguments.

use std::ffi::OsString;

use palimpsest::cli::process;
use pyo3::prelude::*;

/// Runs the command `palimpsest` with these arguments, the program's name first, and returns its exit code. It may end the process itself,
/// and it sets the process up for itself: for a process that does nothing else.
#[pyfunction]
pub fn command(py: Python<'_>, args: Vec<OsString>) -> u8 {
    // SAFETY: the calling script is single-threaded, and this module has not started threads.
    py.detach(|| unsafe { process::run(args.into_iter()) })
}
