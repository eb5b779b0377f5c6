//! Attention measures of a question, as the figures show them.

use std::collections::BTreeMap;

use palimpsest::benchmarks::{Amount, Judged, KeySpan, LayerSpans, RowAt, Scale, Seen};

use super::*;

fn key(label: &str, role: &str, start: usize, tokens: usize) -> KeySpan {
    KeySpan {
        label: label.to_owned(),
        role: Some(role.to_owned()),
        overlay: label.contains('.'),
        start,
        tokens,
    }
}

#[test]
fn fields_share_what_their_events_get_and_count_in_no_lift() {
    let keys = [
        key("event[1]", "evidence", 0, 40),
        key("event[1].turn[0]", "outer", 10, 10),
        key("event[1].turn[1]", "inner", 25, 15),
        key("event[4]", "anchor_start", 60, 20),
        key("event[9]", "anchor_end", 90, 20),
    ];
    let noise: Vec<(usize, Amount)> = (0..5).map(|at| (at, Amount { mass: 0.05, density: 0.5 })).collect();
    let row = RowAt {
        role: "query",
        nth: 0,
        start: 200,
        mass: &[0.20, 0.05, 0.15, 0.10, 0.30],
        share: &[0.20, 0.05, 0.075, 0.10, 0.10],
        noise: &noise,
    };
    let of = |measure: &str, scale: Scale| {
        let at = LayerSpans { keys: &keys, rows: &[row], scale };
        let measure = KNOWME.lens.measures.iter().find(|one| one.key == measure).unwrap();
        (measure.of)(&at).unwrap()
    };
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a}, not {b}");
    near(of("lift", Scale::Mass), 4.0);
    near(of("anchor_lift", Scale::Density), (1.0 + 3.0) / 1.0);
    near(of("inner_balance", Scale::Mass), 0.15 / 0.20);
    near(of("inner_balance", Scale::Density), 2.0 / 3.0);
    near(of("anchor_balance", Scale::Mass), 0.75);
    let at = LayerSpans { keys: &keys, rows: &[row], scale: Scale::Mass };
    near(KNOWME.lens.evidence_lift(&at).unwrap(), (0.20 + 0.10 + 0.30) / 0.15);
}

#[test]
fn questions_are_grouped_by_task_by_score_and_by_type() {
    let labels = BTreeMap::new();
    let of = |group: &str, task: &str, kind: Option<&str>, score: Option<u32>| {
        let mut facets = BTreeMap::from([("task".to_owned(), task.to_owned())]);
        facets.extend(kind.map(|kind| ("type".to_owned(), kind.to_owned())));
        let judged = BTreeMap::from([(
            "full".to_owned(),
            Judged { score: score.map(f64::from), ..Judged::default() },
        )]);
        let seen = Seen { labels: &labels, facets: &facets, condition: Some("full"), judged: &judged };
        let grouping = KNOWME.lens.groupings.iter().find(|one| one.key == group).unwrap();
        (grouping.of)(&seen)
    };
    let both = |row: &str, line: &str| Some((row.to_owned(), line.to_owned()));
    assert_eq!(of("task", "T2", None, Some(5)), both("T2", "full marks"));
    assert_eq!(of("task", "T2", None, Some(4)), both("T2", "below full marks"));
    assert_eq!(of("task", "T6", None, None), both("T6", "not scored"));
    assert_eq!(of("type", "T5", Some("Associative_Trigger"), None), both("T5", "Associative Trigger"));
    // A type that repeats the task is no grouping.
    assert_eq!(of("type", "T1", Some("Information Extraction"), None), None);
    assert_eq!(of("type", "T4", None, None), None);
}
