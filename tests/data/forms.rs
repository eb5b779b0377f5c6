//! Formats of STALE's rows: an array, an object around it, the construction's own rows.

use std::io::BufReader;

use palimpsest::benchmarks::SampleSpec;
use palimpsest::benchmarks::dataset::{Dataset, DatasetError};
use palimpsest::benchmarks::reading::ReadError;
use palimpsest::benchmarks::stale::{read_stale, write_stale};
use palimpsest::case::Case;
use serde_json::{Value, json};

use super::row;

fn read(text: &str) -> Vec<Result<Case, ReadError>> {
    // A tiny buffer, so that every value crosses a border.
    read_stale(BufReader::with_capacity(7, text.as_bytes()), None).collect()
}

fn cases(text: &str) -> Vec<Case> {
    read(text).into_iter().collect::<Result<_, _>>().unwrap_or_else(|error| panic!("{text:.80}: {error}"))
}

/// A row of the construction: `time_gap` and `query_time`, and no `type`.
fn main_row(uid: &str) -> Value {
    let mut row = row(uid);
    row.as_object_mut().unwrap().shift_remove("type");
    row["time_gap"] = json!("3 months");
    row["query_time"] = json!("2025-02-04 10:00:01");
    row
}

#[test]
fn the_array_may_stand_in_an_object_as_its_data() {
    let (a, b) = (row("a"), row("b"));
    let plain = cases(&json!([a, b]).to_string());
    for object in [
        json!({"data": [a, b]}),
        json!({"meta": {"data": [1, "]"], "n": 2}, "note": "\"data\": [", "data": [a, b], "end": [{}], "k": 1e3}),
    ] {
        assert_eq!(cases(&object.to_string()), plain);
        assert_eq!(cases(&format!(" \n{}\n", serde_json::to_string_pretty(&object).unwrap())), plain);
    }
    assert!(matches!(read("{\"data\": [ ]}").pop(), Some(Err(ReadError::NoCases { .. }))));
}

#[test]
fn an_object_without_rows_is_refused_at_its_place() {
    let good = row("a").to_string();
    for (text, column, said) in [
        (
            "{}".to_owned(),
            2,
            "found `}`; the object that a STALE file may be has the array of rows under the key `data`",
        ),
        ("{\"rows\": []}".to_owned(), 12, "found `}`; the object"),
        ("{\"data\": 7}".to_owned(), 10, "found `7`; the object"),
        ("{\"data\" [".to_owned(), 9, "found `[`; a `:` must follow a key"),
        (
            format!("{{\"data\": [{good}]"),
            good.len() + 12,
            "found the end of the file; a `,` or the closing `}`",
        ),
        (format!("{{\"data\": [{good}], 3}}"), good.len() + 14, "found `3`; a key must stand here"),
        (format!("{{\"data\": [{good}], \"data\": []}}"), good.len() + 22, "this is a second `data`"),
        (format!("{{\"data\": [{good}]}} x"), good.len() + 14, "found `x`; nothing may follow"),
    ] {
        match read(&text).pop() {
            Some(Err(ReadError::Syntax { line: 1, column: at, what, .. })) => {
                assert_eq!(at, column, "{text:.60}: {what}");
                assert!(what.contains(said), "{text:.60}: {what}");
            }
            other => panic!("{text:.60}: {other:?}"),
        }
    }
}

#[test]
fn old_info_is_the_old_state() {
    let mut other = row("a");
    let old = other.as_object_mut().unwrap().shift_remove("M_old").unwrap();
    other["old_info"] = old;
    assert_eq!(cases(&json!([other]).to_string()), cases(&json!([row("a")]).to_string()));
    let mut both = row("a");
    both["old_info"] = json!("x");
    let Some(Err(ReadError::Row(row))) = read(&json!([both]).to_string()).pop() else { panic!() };
    assert!(row.to_string().contains("old_info: found an unknown field"), "{row}");
}

#[test]
fn sessions_without_a_turn_are_skipped_and_the_others_keep_their_places() {
    let mut row = main_row("a");
    row["type"] = json!("T1");
    let whole = cases(&json!([row]).to_string()).remove(0);
    for empty in [0, 2, 4] {
        let mut without = row.clone();
        without["haystack_session"][empty] = json!([]);
        let case = cases(&json!([without]).to_string()).remove(0);
        let left: Vec<usize> = (0..5).filter(|at| *at != empty).collect();
        assert_eq!(case.history.segments.iter().map(|s| s.index).collect::<Vec<_>>(), left);
        for segment in &case.history.segments {
            assert_eq!(*segment, whole.history.segments[segment.index]);
        }
        assert_eq!((&case.evidence, &case.probes), (&whole.evidence, &whole.probes));
        // Written rows can be read back.
        let mut text = Vec::new();
        write_stale(&mut text, [&case]).unwrap();
        assert_eq!(cases(std::str::from_utf8(&text).unwrap())[0].history.segments.len(), 4);
    }
    for (evidence, role) in [(1, "old"), (3, "new")] {
        let mut without = row.clone();
        without["haystack_session"][evidence] = json!([]);
        let said = read(&json!([without]).to_string()).remove(0).unwrap_err().to_string();
        let expected =
            format!("haystack_session[{evidence}]: found an empty array, and it is the {role} session");
        assert!(said.contains(&expected), "{said}");
    }
}

#[test]
fn rows_without_a_type_have_the_one_given_and_keep_gap_and_query_time() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), json!({"data": [main_row("a"), row("b")]}).to_string()).unwrap();
    let open = || Dataset::open(file.path(), SampleSpec::default(), |_| {}).unwrap();
    let refused = open().cases().unwrap().next().unwrap().unwrap_err().to_string();
    assert!(
        refused.contains("type: found no such field; add it, or give the type of all such rows with --type"),
        "{refused}"
    );
    let given: Vec<_> = open().with_split(Some("T1")).unwrap().cases().unwrap().collect();
    let first = given[0].as_ref().unwrap();
    assert_eq!((first.labels["type"].as_str(), first.labels["time_gap"].as_str()), ("T1", "3 months"));
    assert_eq!(first.history.query_time.unwrap().to_string(), "2025-02-04T10:00:01");
    assert!(given[1].is_ok(), "a row that says T1 itself");
    let other: Vec<_> = open().with_split(Some("T2")).unwrap().cases().unwrap().collect();
    assert_eq!(other[0].as_ref().unwrap().labels["type"], "T2");
    let said = other[1].as_ref().unwrap_err().to_string();
    assert!(said.contains("type: found \"T1\" where --type is T2; leave --type out"), "{said}");
    // Written rows keep their gap.
    let mut text = Vec::new();
    write_stale(&mut text, [first]).unwrap();
    assert_eq!(cases(std::str::from_utf8(&text).unwrap()), std::slice::from_ref(first));
    let error = open().with_split(Some("T3")).unwrap_err();
    assert!(
        matches!(error, DatasetError::Split { .. }) && error.to_string().contains("--type T3: give T1 or T2"),
        "{error}"
    );
    let sample = Dataset::open("sample:subtlememory", SampleSpec::default(), |_| {}).unwrap();
    let error = sample.with_split(Some("T1")).unwrap_err().to_string();
    assert!(error.contains("--type T1: the rows of SubtleMemory say themselves what they are"), "{error}");
}

#[test]
fn a_gap_is_a_text_a_number_or_nothing() {
    let gap = |value: Value| {
        let mut row = row("a");
        row["time_gap"] = value;
        read(&json!([row]).to_string()).pop().unwrap().map(|case| case.labels.get("time_gap").cloned())
    };
    assert_eq!(gap(json!(90)).unwrap().as_deref(), Some("90"));
    assert_eq!((gap(Value::Null).unwrap(), gap(json!(" ")).unwrap()), (None, None));
    assert!(
        gap(json!([1]))
            .unwrap_err()
            .to_string()
            .contains("time_gap: found an array of 1; write a text or a number")
    );
}
