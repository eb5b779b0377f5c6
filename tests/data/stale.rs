//! The loader: accepted input, each rejected fault, streaming, and round trips.

use std::cell::Cell;
use std::io::{BufReader, Cursor, Read};
use std::rc::Rc;

use palimpsest::benchmarks::reading::{Problem, ReadError, Report, RowProblems};
use palimpsest::benchmarks::stale::{read_stale, write_stale};
use palimpsest::case::Case;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{check, row, session_of};

fn read(text: &[u8]) -> Vec<Result<Case, ReadError>> {
    read_stale(Cursor::new(text), None).collect()
}

fn problems_of(row: &Value) -> Vec<Problem> {
    let text = serde_json::to_vec(&json!([row])).unwrap();
    match read(&text).into_iter().next() {
        Some(Err(ReadError::Row(RowProblems { problems, .. }))) => problems,
        other => panic!("expected a refused row, got {other:?}"),
    }
}

/// The changed row must have exactly one problem, at `field`, that mentions `found`.
fn refused(change: impl FnOnce(&mut Value), field: &str, found: &str) {
    let mut row = row("case-1");
    change(&mut row);
    let problems = problems_of(&row);
    assert_eq!(problems.len(), 1, "{problems:?}");
    let problem = &problems[0];
    assert_eq!(problem.field, field, "{problem}");
    assert!(problem.found.contains(found), "{problem}");
    assert!(!problem.remedy.is_empty());
    assert_eq!(problem.row, 0);
}

fn json_error(text: &str) -> (usize, usize, usize, String) {
    match read(text.as_bytes()).pop() {
        Some(Err(ReadError::Syntax { row, line, column, what, .. })) => (row, line, column, what),
        other => panic!("expected a JSON error, got {other:?}"),
    }
}

#[test]
fn a_sound_row_becomes_a_case_with_every_field_in_its_place() {
    let mut with_time = row("b");
    with_time["query_time"] = json!("2025-02-04 10:00:01");
    with_time["type"] = json!("T2");
    let text = serde_json::to_vec_pretty(&json!([row("a"), with_time])).unwrap();
    let cases: Vec<Case> = read(&text).into_iter().map(Result::unwrap).collect();
    let (first, second) = (&cases[0], &cases[1]);
    assert_eq!((first.id.as_str(), first.labels["type"].as_str()), ("a", "T1"));
    assert_eq!((second.id.as_str(), second.labels["type"].as_str()), ("b", "T2"));
    assert_eq!(first.history.query_time, None);
    assert_eq!(second.history.query_time.unwrap().to_string(), "2025-02-04T10:00:01");
    assert_eq!((session_of(first, "old"), session_of(first, "new")), (1, 3));
    let times: Vec<String> = first.history.segments.iter().map(|s| s.time.unwrap().to_string()).collect();
    let expected = [
        "2025-01-01T10:00:00",
        "2025-01-02T10:00:00",
        "2025-01-02T10:00:00",
        "2025-02-03T08:30:00",
        "2025-02-04T10:00:01",
    ];
    assert_eq!(times, expected);
    assert_eq!(first.history.segments.iter().map(|s| s.index).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    let turns = &first.history.segments[4].turns;
    assert_eq!((turns[0].role.as_str(), turns[1].role.as_str()), ("user", "assistant"));
    assert_eq!(turns[1].content, "An answer about bread, \u{e9} and \"quotes\".\n");
    let probes: Vec<_> =
        first.probes.iter().map(|p| (p.id.as_str(), p.form.as_str(), p.query.as_str())).collect();
    assert_eq!(
        probes,
        [("SR", "question", "state?"), ("PR", "question", "premise?"), ("IPA", "request", "please plan")]
    );
    let note = |name: &str| first.judge.notes[name].as_str().unwrap();
    assert_eq!((note("old"), note("new"), note("explanation")), ("old fact", "new fact", "why"));
}

#[test]
fn a_missing_field_is_named() {
    for field in [
        "uid",
        "type",
        "M_old",
        "M_new",
        "explanation",
        "relevant_session_index",
        "haystack_session",
        "timestamps",
        "probing_queries",
    ] {
        refused(|row| drop(row.as_object_mut().unwrap().shift_remove(field)), field, "no such field");
    }
    refused(
        |row| drop(row["probing_queries"].as_object_mut().unwrap().shift_remove("dim2_query")),
        "probing_queries.dim2_query",
        "no such field",
    );
    refused(
        |row| drop(row["haystack_session"][3][1].as_object_mut().unwrap().shift_remove("role")),
        "haystack_session[3][1].role",
        "no such field",
    );
}

#[test]
fn an_unknown_field_is_named() {
    refused(|row| row["m_old"] = json!("x"), "m_old", "unknown");
    refused(|row| row["probing_queries"]["dim4_query"] = json!("x"), "probing_queries.dim4_query", "unknown");
    refused(
        |row| row["haystack_session"][0][1]["has_answer"] = json!(true),
        "haystack_session[0][1].has_answer",
        "unknown",
    );
}

#[test]
fn a_repeated_key_is_named_and_not_silently_overwritten() {
    let text = serde_json::to_string(&json!([row("a")])).unwrap();
    let doubled = text.replacen("\"M_new\":", "\"M_new\":\"other\",\"M_new\":", 1);
    let Some(Err(ReadError::Row(RowProblems { problems, .. }))) = read(doubled.as_bytes()).pop() else {
        panic!("a repeated key was accepted")
    };
    assert_eq!((problems[0].field.as_str(), problems.len()), ("M_new", 1));
    assert!(problems[0].found.contains("second time"), "{}", problems[0]);
}

#[test]
fn a_row_that_is_no_object_is_refused_and_the_next_row_is_read() {
    for other in ["3", "-1.5e3", "null", "\"a ] , string\"", "[1, [2]]", "true"] {
        let text = format!("[{other} , {}]", row("a"));
        let items = read(text.as_bytes());
        assert!(matches!(&items[0], Err(ReadError::Row(_))), "{other}: {items:?}");
        assert!(items[1].is_ok() && items.len() == 2, "{other}: {items:?}");
    }
}

#[test]
fn the_type_is_t1_or_t2() {
    refused(|row| row["type"] = json!("t1"), "type", "\"t1\"");
    refused(|row| row["type"] = json!(1), "type", "1");
}

#[test]
fn the_relevant_sessions_are_two_distinct_indices_in_range_old_first() {
    let field = "relevant_session_index";
    refused(|row| row[field] = json!([3, 1]), field, "[3, 1]");
    refused(|row| row[field] = json!([3, 3]), field, "[3, 3]");
    refused(|row| row[field] = json!([1, 5]), "relevant_session_index[1]", "5 with 5 sessions");
    refused(|row| row[field] = json!([1]), field, "an array of 1");
    refused(|row| row[field] = json!([1, 2, 3]), field, "an array of 3");
    refused(|row| row[field] = json!("1,3"), field, "\"1,3\"");
    refused(|row| row[field] = json!([-1, 3]), "relevant_session_index[0]", "-1");
    refused(|row| row[field] = json!([1, 3.5]), "relevant_session_index[1]", "3.5");
    refused(|row| row[field] = json!([1, "3"]), "relevant_session_index[1]", "\"3\"");
    refused(|row| row[field] = json!([1, u64::MAX]), "relevant_session_index[1]", "18446744073709551615");
}

#[test]
fn there_is_one_timestamp_a_session() {
    refused(
        |row| drop(row["timestamps"].as_array_mut().unwrap().pop()),
        "timestamps",
        "4 timestamps for 5 sessions",
    );
    refused(|row| row["timestamps"] = json!("2025-01-01 10:00"), "timestamps", "2025");
}

#[test]
fn a_timestamp_must_parse() {
    refused(|row| row["timestamps"][2] = json!("02/01/2025"), "timestamps[2]", "02/01/2025");
    refused(|row| row["timestamps"][4] = json!("2025-02-30 10:00"), "timestamps[4]", "2025-02-30");
    refused(|row| row["timestamps"][0] = json!(1_735_725_600), "timestamps[0]", "1735725600");
    refused(|row| row["query_time"] = json!("soon"), "query_time", "soon");
    refused(|row| row["query_time"] = Value::Null, "query_time", "null");
}

#[test]
fn timestamps_never_decrease() {
    refused(
        |row| row["timestamps"][4] = json!("2025-02-03 08:29:59"),
        "timestamps[4]",
        "2025-02-03 08:29:59",
    );
}

#[test]
fn the_new_session_is_strictly_later_than_the_old_one() {
    refused(
        |row| row["timestamps"][3] = json!("2025-01-02 10:00"),
        "timestamps[3]",
        "the time of the old session",
    );
}

#[test]
fn the_query_is_not_before_the_last_session() {
    refused(|row| row["query_time"] = json!("2025-02-04 10:00:00"), "query_time", "2025-02-04 10:00:00");
}

#[test]
fn a_role_is_user_or_assistant() {
    refused(
        |row| row["haystack_session"][3][1]["role"] = json!("system"),
        "haystack_session[3][1].role",
        "\"system\"",
    );
    refused(|row| row["haystack_session"][3][1]["role"] = json!(0), "haystack_session[3][1].role", "0");
}

#[test]
fn nothing_may_be_empty() {
    for field in ["uid", "M_old", "M_new", "explanation", "type"] {
        refused(|row| row[field] = json!(" \n"), field, "an empty string");
    }
    for field in ["dim1_query", "dim2_query", "dim3_query"] {
        refused(
            |row| row["probing_queries"][field] = json!(""),
            &format!("probing_queries.{field}"),
            "empty",
        );
    }
    refused(
        |row| row["haystack_session"][2][0]["content"] = json!("\t"),
        "haystack_session[2][0].content",
        "an empty string",
    );
    refused(|row| row["haystack_session"] = json!([]), "haystack_session", "an empty array");
    refused(|row| row["timestamps"] = json!([]), "timestamps", "an empty array");
}

#[test]
fn texts_are_strings() {
    refused(|row| row["M_old"] = json!({"a": 1}), "M_old", "an object of 1 fields");
    refused(|row| row["uid"] = json!(17), "uid", "17");
    refused(|row| row["probing_queries"] = json!(["a"]), "probing_queries", "an array of 1");
    refused(|row| row["haystack_session"][1][0] = json!("hello"), "haystack_session[1][0]", "\"hello\"");
    refused(
        |row| row["haystack_session"][1][0]["content"] = Value::Null,
        "haystack_session[1][0].content",
        "null",
    );
}

#[test]
fn every_problem_of_a_row_is_listed_with_row_and_uid() {
    let mut bad = row("case-7");
    bad["type"] = json!("T3");
    bad["haystack_session"][0][0]["role"] = json!("tool");
    bad["timestamps"][1] = json!("?");
    let text = serde_json::to_vec(&json!([row("a"), bad, row("b")])).unwrap();
    let items = read(&text);
    assert!(items[0].is_ok() && items[2].is_ok() && items.len() == 3);
    let Err(ReadError::Row(RowProblems { problems, .. })) = &items[1] else { panic!("{:?}", items[1]) };
    let fields: Vec<&str> = problems.iter().map(|p| p.field.as_str()).collect();
    assert_eq!(fields, ["type", "haystack_session[0][0].role", "timestamps[1]"]);
    assert!(problems.iter().all(|p| p.row == 1 && p.uid.as_deref() == Some("case-7")));
    let shown = problems[1].to_string();
    assert_eq!(
        shown,
        "row 1 (uid \"case-7\"), haystack_session[0][0].role: found \"tool\"; write \"user\" or \"assistant\""
    );
}

#[test]
fn a_uid_may_occur_once_in_a_file_sound_row_or_not() {
    let mut bad = row("a");
    bad["type"] = json!("T3");
    let text = serde_json::to_vec(&json!([bad, row("b"), row("a"), row("b")])).unwrap();
    let report = check(Cursor::new(text));
    let doubles: Vec<_> =
        report.problems.iter().filter(|p| p.field == "uid").map(|p| (p.row, p.found.as_str())).collect();
    assert_eq!(doubles, [(2, "the uid of row 0 again"), (3, "the uid of row 1 again")]);
    assert_eq!((report.rows, report.problem_count, report.is_sound()), (4, 3, false));
}

#[test]
fn broken_json_names_row_line_and_column_and_ends_the_reading() {
    let good = row("a").to_string();
    let (row_index, line, column, what) = json_error(&format!("[{good},\n  {{\"uid\": tru }}, {good}]"));
    assert_eq!((row_index, line), (1, 2));
    assert!((11..=15).contains(&column), "column {column}");
    assert!(what.contains("not valid JSON") && !what.contains("at line"), "{what}");
    let items = read(format!("[{good},\n  {{\"uid\": tru }}, {good}]").as_bytes());
    assert_eq!(items.len(), 2, "nothing is read behind broken JSON");

    let (_, line, column, _) = json_error("[\n\n  {\"uid\": \"a\",\n  \"type\" \"T1\"}]");
    assert_eq!((line, column), (4, 10));
}

#[test]
fn a_torn_file_says_so_at_its_end() {
    let text = format!("[{}]", row("a"));
    let (row_index, line, column, what) = json_error(&text[..text.len() - 20]);
    assert_eq!((row_index, line, column), (0, 1, text.len() - 19));
    assert!(what.contains("cut off"), "{what}");
    let (_, _, _, what) = json_error(&text[..text.len() - 1]);
    assert!(what.contains("the end of the file"), "{what}");
}

#[test]
fn what_is_no_array_of_rows_is_refused_at_its_place() {
    let good = row("a").to_string();
    for (text, column, found) in [
        (String::new(), 1, "the end of the file"),
        (good.clone(), good.len(), "`}`; the object that a STALE file may be"),
        ("7".to_owned(), 1, "`7`"),
        ("\u{feff}[]".to_owned(), 1, "0xEF"),
        (format!("[{good},]"), good.len() + 3, "`]`"),
        (format!("[{good} {good}]"), good.len() + 3, "`{`"),
        (format!("[{good}] x"), good.len() + 4, "`x`"),
        ("[,]".to_owned(), 2, "`,`"),
        ("[".to_owned(), 2, "the end of the file"),
    ] {
        let (_, line, at, what) = json_error(&text);
        assert_eq!((line, at), (1, column), "{text:.40}: {what}");
        assert!(what.contains(found), "{what}");
    }
    assert!(matches!(read(b" [ ] \n").pop(), Some(Err(ReadError::NoCases { .. }))));
}

#[test]
fn text_that_is_not_utf8_is_refused() {
    let mut text = format!("[{}]", row("a")).into_bytes();
    let at = text.windows(4).position(|w| w == b"rain").unwrap();
    text[at] = 0xff;
    assert!(matches!(read(&text).pop(), Some(Err(ReadError::Syntax { row: 0, line: 1, .. }))));
}

#[test]
fn a_failing_disk_is_an_error_and_ends_the_reading() {
    struct Failing(Cursor<Vec<u8>>);
    impl Read for Failing {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            match self.0.read(buffer)? {
                0 => Err(std::io::Error::other("the disk is gone")),
                n => Ok(n),
            }
        }
    }
    let text = format!("[{},", row("a")).into_bytes();
    let items: Vec<_> = read_stale(BufReader::new(Failing(Cursor::new(text))), None).collect();
    assert!(items[0].is_ok());
    assert!(matches!(&items[1], Err(ReadError::Read { row: 1, .. })), "{items:?}");
    assert_eq!(items.len(), 2);
}

#[test]
fn check_counts_everything_and_keeps_the_first_twenty_problems() {
    let rows: Vec<Value> = (0..30)
        .map(|i| {
            let mut row = row(&format!("case-{i}"));
            row["type"] = json!(if i < 25 {
                "T0"
            } else if i < 27 {
                "T1"
            } else {
                "T2"
            });
            row
        })
        .collect();
    let Report { rows, splits, problem_count, problems, broken, .. } =
        check(Cursor::new(json!(rows).to_string()));
    assert_eq!((rows, problem_count, problems.len()), (30, 25, 20));
    assert!(broken.is_none());
    assert_eq!((splits["T1"], splits["T2"], splits.len()), (2, 3, 2));
    assert_eq!(problems.iter().map(|p| p.row).collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
}

/// A generated file of any number of rows that counts the bytes read.
struct Generated {
    row: usize,
    rows: usize,
    pending: Cursor<Vec<u8>>,
    given: Rc<Cell<usize>>,
}

impl Read for Generated {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.pending.position() == self.pending.get_ref().len() as u64 && self.row <= self.rows {
            let text = match self.row {
                0 => format!("[{}", row("case-0")),
                i if i == self.rows => "]".to_owned(),
                i => format!(",{}", row(&format!("case-{i}"))),
            };
            self.row += 1;
            self.pending = Cursor::new(text.into_bytes());
        }
        let n = self.pending.read(buffer)?;
        self.given.set(self.given.get() + n);
        Ok(n)
    }
}

#[test]
fn a_file_of_20000_rows_is_read_no_further_than_the_row_asked_for() {
    const ROWS: usize = 20_000;
    const BUFFER: usize = 4096;
    let given = Rc::new(Cell::new(0));
    let file = Generated { row: 0, rows: ROWS, pending: Cursor::default(), given: Rc::clone(&given) };
    let mut reader = read_stale(BufReader::with_capacity(BUFFER, file), None);
    // The longest uid gives the longest row; plus one byte for the comma.
    let longest = row("case-19999").to_string().len() + 1;
    let mut rows = 0;
    for item in reader.by_ref() {
        assert!(item.is_ok());
        rows += 1;
        let most = rows * longest + BUFFER;
        assert!(given.get() <= most, "row {rows}: {} bytes read, at most {most} expected", given.get());
    }
    assert_eq!(rows, ROWS);
}

#[test]
fn what_is_written_is_read_back_as_the_same_cases() {
    let mut second = row("b");
    second["query_time"] = json!("2025-03-01 00:00");
    let text = serde_json::to_vec(&json!([row("a"), second])).unwrap();
    let cases: Vec<Case> = read(&text).into_iter().map(Result::unwrap).collect();
    let mut written = Vec::new();
    write_stale(&mut written, &cases).unwrap();
    let again: Vec<Case> = read(&written).into_iter().map(Result::unwrap).collect();
    assert_eq!(again, cases);
    let value: Value = serde_json::from_slice(&written).unwrap();
    let fields: Vec<&String> = value[1].as_object().unwrap().keys().collect();
    assert_eq!(
        fields,
        [
            "uid",
            "type",
            "M_old",
            "M_new",
            "explanation",
            "relevant_session_index",
            "haystack_session",
            "timestamps",
            "probing_queries",
            "query_time"
        ]
    );
}

#[test]
fn labels_of_derived_files_are_labels_of_the_case_and_are_written_back() {
    let mut labelled = row("a");
    labelled["category"] = json!("Routine");
    labelled["attribute"] = json!("commute_modality");
    let text = serde_json::to_vec(&json!([labelled, row("b")])).unwrap();
    let cases: Vec<Case> = read(&text).into_iter().map(Result::unwrap).collect();
    let label = |case: &Case, name: &str| case.labels.get(name).cloned();
    assert_eq!(label(&cases[0], "category").as_deref(), Some("Routine"));
    assert_eq!(label(&cases[0], "attribute").as_deref(), Some("commute_modality"));
    assert_eq!(cases[1].labels.len(), 1, "the published rows have their type only");
    let mut written = Vec::new();
    write_stale(&mut written, &cases).unwrap();
    let again: Vec<Case> = read(&written).into_iter().map(Result::unwrap).collect();
    assert_eq!(again, cases);
    refused(|row| row["category"] = json!(3), "category", "3");
    refused(|row| row["topic"] = json!(" "), "topic", "empty");
    refused(|row| row["mood"] = json!("good"), "mood", "unknown");
}

#[test]
fn a_case_that_is_no_row_is_not_written() {
    let text = serde_json::to_vec(&json!([row("a")])).unwrap();
    let case = read(&text).remove(0).unwrap();
    let refused = |change: fn(&mut Case), what: &str| {
        let mut case = case.clone();
        change(&mut case);
        let error = write_stale(&mut Vec::new(), [&case]).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains("\"a\""), "{error}");
    };
    refused(|case| drop(case.labels.remove("type")), "label `type`");
    refused(|case| drop(case.probes.pop()), "2 probes");
    refused(|case| case.probes[0].id = "other".to_owned(), "no probe SR");
    refused(|case| drop(case.history.segments.remove(3)), "lacks the new session");
    refused(|case| case.evidence.truncate(1), "1 evidence");
}

/// Any small JSON value.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
        Just(json!("2025-01-01 10:00")),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec(("[a-zA-Z_]{0,6}", inner), 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// JSON pointers of all values.
fn places(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    match value {
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, item)| places(item, &format!("{at}/{i}"), all));
        }
        Value::Object(fields) => {
            fields.iter().for_each(|(name, item)| places(item, &format!("{at}/{name}"), all));
        }
        _ => {}
    }
}

proptest! {
    #[test]
    fn a_row_with_any_value_in_any_place_is_read_or_refused_and_the_next_row_is_read(
        place in any::<prop::sample::Index>(), value in any_json(),
    ) {
        let mut bad = row("a");
        let mut all = Vec::new();
        places(&bad, "", &mut all);
        *bad.pointer_mut(&all[place.index(all.len())]).unwrap() = value;
        let items = read(json!([bad, row("z")]).to_string().as_bytes());
        prop_assert_eq!(items.len(), 2);
        match &items[0] {
            Ok(_) => {}
            Err(ReadError::Row(RowProblems { problems, .. })) => prop_assert!(!problems.is_empty()),
            other => prop_assert!(false, "{other:?}"),
        }
        prop_assert!(items[1].is_ok());
    }

    #[test]
    fn text_damaged_anywhere_never_panics_and_always_ends(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(), capacity in 1usize..64,
    ) {
        let mut text = format!("[{},\n {}]", row("a"), row("b")).into_bytes();
        for (at, byte) in damage {
            let at = at.index(text.len());
            text[at] = byte;
        }
        text.truncate(cut.index(text.len() + 1));
        let small: Vec<_> = read_stale(BufReader::with_capacity(capacity, Cursor::new(&text)), None).collect();
        let whole = read(&text);
        prop_assert!(whole.len() <= text.len() + 1);
        prop_assert_eq!(format!("{small:?}"), format!("{whole:?}"), "the buffer's size changes nothing");
        check(Cursor::new(&text));
    }
}
