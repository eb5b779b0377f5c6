mod checks;
pub mod command;
mod dataset;
mod foreign;
mod forms;
mod haystack;
mod lengths;
mod own;
mod sample;
mod stale;
mod truncate;

use std::io::BufRead;

use palimpsest::benchmarks::reading::Report;
use palimpsest::benchmarks::stale::{STALE, read_stale};
use palimpsest::case::{Case, Evidence};
use serde_json::{Value, json};

/// A valid row of five sessions, old at 1 and new at 3.
fn row(uid: &str) -> Value {
    let session = |topic: &str| {
        json!([
            {"role": "user", "content": format!("A question about {topic}?")},
            {"role": "assistant", "content": format!("An answer about {topic}, \u{e9} and \"quotes\".\n")},
        ])
    };
    json!({
        "uid": uid,
        "type": "T1",
        "M_old": "old fact",
        "M_new": "new fact",
        "explanation": "why",
        "relevant_session_index": [1, 3],
        "haystack_session": [session("tea"), session("old"), session("rain"), session("new"), session("bread")],
        "timestamps": [
            "2025-01-01 10:00:00", "2025-01-02 10:00", "2025-01-02 10:00:00", "2025-02-03 08:30", "2025-02-04 10:00:01"
        ],
        "probing_queries": {"dim1_query": "state?", "dim2_query": "premise?", "dim3_query": "please plan"},
    })
}

fn check(text: impl BufRead) -> Report {
    STALE.check(read_stale(text, None), &mut |_| {})
}

/// The session with this role.
fn session_of(case: &Case, role: &str) -> usize {
    let of_role = |evidence: &&Evidence| evidence.role == role;
    case.evidence.iter().find(of_role).map(|evidence| evidence.place.segment).expect("the case has both")
}
