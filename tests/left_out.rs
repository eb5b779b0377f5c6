//! Tests that are skipped unless `PALIMPSEST_TESTS=all`: those of real models, which are fetched once into the model home, and slow ones.

use std::io::Write;

fn all() -> bool {
    std::env::var_os("PALIMPSEST_TESTS").is_some_and(|asked| asked == "all")
}

/// A test's models, cases or their number: a few, or all with `PALIMPSEST_TESTS=all`. The few differ between tests, so that together they
/// cover every kind of model.
pub fn few_or_all<T>(few: T, every: T) -> T {
    if all() { every } else { few }
}

/// True if a test with this need is skipped; says so past the test harness's output capture.
pub fn unless_all(need: &str) -> bool {
    let left_out = !all();
    if left_out {
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        let _ = writeln!(std::io::stderr(), "{test} left out: it needs {need}; PALIMPSEST_TESTS=all runs it");
    }
    left_out
}
