//! What is left out unless `PALIMPSEST_TESTS=all` asks for it: tests of real models, which are fetched once into the model home, and
//! tests that take minutes.

use std::io::Write;

fn all() -> bool {
    std::env::var_os("PALIMPSEST_TESTS").is_some_and(|asked| asked == "all")
}

/// The models or cases of a test, or their number: a few, or all of them where `PALIMPSEST_TESTS=all` asks for it. Which few
/// differs from test to test, so that every kind of model is in some.
pub fn few_or_all<T>(few: T, every: T) -> T {
    if all() { every } else { few }
}

/// Whether a test that needs this is left out, which it says past the capture of a test's output.
pub fn unless_all(need: &str) -> bool {
    let left_out = !all();
    if left_out {
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        let _ = writeln!(std::io::stderr(), "{test} left out: it needs {need}; PALIMPSEST_TESTS=all runs it");
    }
    left_out
}
