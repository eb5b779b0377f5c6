//! What is left out unless `PALIMPSEST_TESTS=all` asks for it: tests of real models, which are fetched once into the model home, and
//! tests that take minutes.

use std::io::Write;

/// Whether a test that needs this is left out, which it says past the capture of a test's output.
pub fn unless_all(need: &str) -> bool {
    let all = std::env::var_os("PALIMPSEST_TESTS").is_some_and(|asked| asked == "all");
    if !all {
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        let _ = writeln!(std::io::stderr(), "{test} left out: it needs {need}; PALIMPSEST_TESTS=all runs it");
    }
    !all
}
