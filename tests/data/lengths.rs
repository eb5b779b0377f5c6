//! Table 5.

use std::convert::Infallible;

use palimpsest::benchmarks::stale::read_stale;
use palimpsest::case::Case;
use palimpsest::case::lengths::{GroupBy, TokenCounts, content, measure, raw};
use palimpsest::ground::numbers::quantile;
use serde_json::json;

use super::row;

fn cases(types: &[&str]) -> Vec<Case> {
    let rows: Vec<_> = types
        .iter()
        .enumerate()
        .map(|(i, split)| {
            let mut row = row(&format!("case-{i}"));
            row["type"] = json!(split);
            row
        })
        .collect();
    read_stale(json!(rows).to_string().as_bytes(), None).map(Result::unwrap).collect()
}

#[test]
fn percentiles_are_those_of_linear_interpolation_between_closest_ranks() {
    // By hand: rank q (n - 1), interpolated.
    let values = [15.0, 20.0, 35.0, 40.0, 50.0];
    assert_eq!(quantile(&values, 0.5), 35.0);
    assert_eq!(quantile(&values, 0.4), 29.0); // rank 1.6: 20 + 0.6 * 15
    assert_eq!(quantile(&values, 0.95), 48.0); // rank 3.8: 40 + 0.8 * 10
    assert_eq!((quantile(&values, 0.0), quantile(&values, 1.0)), (15.0, 50.0));
    assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 0.5), 2.5);
    assert_eq!(quantile(&[7.0], 0.95), 7.0);
    assert!(quantile(&[], 0.5).is_nan());
}

#[test]
fn every_split_and_all_are_measured_over_the_given_format_and_count() {
    // The formatted text of case i has 10 (i + 1) letters and a token is a byte, so every value is known by hand.
    let cases = cases(&["T2", "T1", "T2", "T2"]);
    let format = |case: &Case| {
        let i: usize = case.id.trim_start_matches("case-").parse().unwrap();
        Ok::<_, Infallible>("x".repeat(10 * (i + 1)))
    };
    let rows = measure(cases.iter().cloned().map(Ok), GroupBy::Label("type"), format, |text| Ok(text.len()))
        .unwrap();
    let splits: Vec<_> = rows.iter().map(|row| (row.split.as_str(), row.instances)).collect();
    assert_eq!(splits, [("T1", 1), ("T2", 3), ("all", 4)]);
    assert_eq!(rows[0].formatted, TokenCounts { mean: 20.0, median: 20.0, p95: 20.0, max: 20 });
    // 10, 30, 40: the 95th percentile is at rank 1.9.
    let t2 = rows[1].formatted;
    assert!((t2.mean - 80.0 / 3.0).abs() < 1e-9 && (t2.p95 - 39.0).abs() < 1e-9, "{t2:?}");
    assert_eq!((t2.median, t2.max), (30.0, 40));
    assert_eq!((rows[2].sessions_mean, rows[2].turns_mean), (5.0, 10.0));
    let content: usize =
        cases[0].history.segments.iter().flat_map(|s| &s.turns).map(|t| t.content.len() + 1).sum();
    assert_eq!(rows[2].content_mean, (content - 1) as f64, "turn contents, one a line, nothing else");
    assert_eq!((rows[2].content.max, rows[2].content.median), (content - 1, (content - 1) as f64));
}

#[test]
fn no_cases_give_no_rows_and_the_first_error_ends_it() {
    let none: [Result<Case, String>; 0] = [];
    assert_eq!(measure(none, GroupBy::Label("type"), |_| Ok(String::new()), |_| Ok(0)), Ok(vec![]));
    let bad = [Ok(cases(&["T1"]).remove(0)), Err("row 1".to_owned())];
    assert_eq!(
        measure(bad, GroupBy::Label("type"), |_| Ok(String::new()), |_| Ok(0)),
        Err("row 1".to_owned())
    );
    let good = || cases(&["T1"]).into_iter().map(Ok);
    assert_eq!(
        measure(good(), GroupBy::Label("type"), |_| Err("template".to_owned()), |_| Ok(0)),
        Err("template".to_owned())
    );
    assert_eq!(
        measure(good(), GroupBy::Label("type"), |_| Ok(String::new()), |_| Err("count".to_owned())),
        Err("count".to_owned())
    );
}

#[test]
fn the_raw_form_is_json_of_history_and_first_query_and_the_content_has_no_structure() {
    let case = &cases(&["T1"])[0];
    let value: serde_json::Value = serde_json::from_str(&raw(case)).unwrap();
    let segments = value["history"].as_array().unwrap();
    assert_eq!((segments.len(), &value["query"]), (5, &json!(case.probes[0].query)));
    for (written, segment) in segments.iter().zip(&case.history.segments) {
        let time = segment.time.unwrap().strftime("%Y-%m-%d %H:%M:%S").to_string();
        assert_eq!(written, &json!({"time": time, "turns": segment.turns}));
    }
    let lines: Vec<&str> =
        case.history.segments.iter().flat_map(|s| &s.turns).map(|t| t.content.as_str()).collect();
    assert_eq!(content(case), lines.join("\n"));
}

#[test]
fn a_label_that_cases_lack_gives_one_row_of_the_empty_value() {
    let good = cases(&["T1", "T2"]).into_iter().map(Ok::<_, Infallible>);
    let rows = measure(good, GroupBy::Label("colour"), |_| Ok(String::new()), |text| Ok(text.len())).unwrap();
    let splits: Vec<_> = rows.iter().map(|row| (row.split.as_str(), row.instances)).collect();
    assert_eq!(splits, [("", 2), ("all", 2)]);
}

#[test]
fn a_row_a_case_or_that_of_all_cases_alone() {
    let measured = |by| {
        let good = cases(&["T2", "T1"]).into_iter().map(Ok::<_, Infallible>);
        measure(good, by, |_| Ok("12345".to_owned()), |text| Ok(text.len())).unwrap()
    };
    let rows = measured(GroupBy::Case);
    let splits: Vec<_> =
        rows.iter().map(|row| (row.split.as_str(), row.instances, row.sessions_mean)).collect();
    assert_eq!(splits, [("case-0", 1, 5.0), ("case-1", 1, 5.0), ("all", 2, 5.0)]);
    assert_eq!(measured(GroupBy::All), [rows[2].clone()]);
    assert_eq!(rows[0].formatted.max, 5);
}

#[test]
fn places_of_old_and_new_are_counted_in_sessions_and_tokens() {
    let of = |cases: Vec<Case>| {
        let cases = cases.into_iter().map(Ok::<_, Infallible>);
        measure(cases, GroupBy::All, |_| Ok(String::new()), |text| Ok(text.len())).unwrap()[0].placement
    };
    let mut cases = cases(&["T1", "T2"]);
    let [old, new] = [0, 1].map(|at| cases[0].evidence[at].place.segment);
    let sessions = cases[0].history.segments.len();
    let placed = of(cases.clone()).unwrap();
    assert_eq!((placed.old_at, placed.new_at), (old as f64, new as f64));
    assert_eq!((placed.distance, placed.tail), ((new - old) as f64, (sessions - 1 - new) as f64));
    let bytes = |from: usize, to: usize| {
        let turns = cases[0].history.segments[from..to].iter().flat_map(|segment| &segment.turns);
        let texts: Vec<&str> = turns.map(|turn| turn.content.as_str()).collect();
        texts.join("\n").len() as f64
    };
    let tokens = [placed.new_at_tokens, placed.distance_tokens, placed.tail_tokens];
    assert_eq!(tokens, [bytes(0, new), bytes(old + 1, new), bytes(new + 1, sessions)]);
    for case in &mut cases {
        case.evidence.pop();
    }
    assert_eq!(of(cases), None, "without a new session");
}
