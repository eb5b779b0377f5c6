//! What must hold for the figures and the report.

use super::synthetic_run::{self as synthetic, Plan};

/// Leaves synthetic runs to look at: `SYNTHETIC_OUT=folder cargo test --release write_synthetic -- --ignored`.
#[test]
#[ignore = "writes runs to look at, where SYNTHETIC_OUT says"]
fn write_synthetic_runs_to_look_at() {
    let Some(out) = std::env::var_os("SYNTHETIC_OUT").map(std::path::PathBuf::from) else { return };
    synthetic::write(
        &out.join("mid"),
        &Plan { cases: 30, layers: 30, heads: 4, sessions: 20, verdicts: true },
    );
    synthetic::write(
        &out.join("shallow"),
        &Plan { cases: 8, layers: 3, heads: 2, sessions: 9, verdicts: false },
    );
    synthetic::write(
        &out.join("deep"),
        &Plan { cases: 12, layers: 64, heads: 2, sessions: 50, verdicts: true },
    );
    synthetic::write(&out.join("one"), &Plan { cases: 1, layers: 1, heads: 1, sessions: 7, verdicts: true });
}
