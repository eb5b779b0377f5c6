//! Files as other programs write them: byte order marks, other encodings, values that JSON lacks.

use palimpsest::benchmarks::dataset::{Dataset, cases_in_memory};
use palimpsest::benchmarks::dose::DOSE;
use palimpsest::benchmarks::knowme::KNOWME;
use palimpsest::benchmarks::memrewardbench::MEMREWARDBENCH;
use palimpsest::benchmarks::reading::{Problem, ReadError};
use palimpsest::benchmarks::stale::STALE;
use palimpsest::benchmarks::stale::exchange::parse;
use palimpsest::benchmarks::subtlememory::SUBTLEMEMORY;
use palimpsest::benchmarks::{ALL, Benchmark, SampleSpec};
use palimpsest::case::Case;
use serde_json::Value;

type Files = Vec<(String, Vec<u8>)>;

fn sample(benchmark: &Benchmark) -> Files {
    (benchmark.sample)(SampleSpec::default()).unwrap()
}

fn sound(read: Vec<Result<Case, ReadError>>) -> (Vec<Case>, Vec<Problem>) {
    let (mut cases, mut problems) = (Vec::new(), Vec::new());
    for row in read {
        match row {
            Ok(case) => cases.push(case),
            Err(ReadError::Row(row)) => problems.extend(row.problems),
            Err(other) => panic!("{other:?}"),
        }
    }
    (cases, problems)
}

#[test]
fn a_byte_order_mark_changes_no_case_and_utf16_is_refused_by_name_or_read() {
    for benchmark in ALL {
        let files = sample(benchmark);
        let marked = |bytes: &Vec<u8>| ["\u{feff}".as_bytes(), bytes].concat();
        let with_marks: Files = files.iter().map(|(name, bytes)| (name.clone(), marked(bytes))).collect();
        let (plain, none) = sound(cases_in_memory(benchmark, files.clone()));
        assert!(!plain.is_empty() && none.is_empty(), "{}", benchmark.name);
        assert_eq!(sound(cases_in_memory(benchmark, with_marks.clone())).0, plain, "{}", benchmark.name);

        // From disk: detected by content, with a digest of all bytes.
        let root = tempfile::tempdir().unwrap();
        let write = |files: &Files| {
            for (name, bytes) in files {
                let path = root.path().join(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, bytes).unwrap();
            }
        };
        write(&with_marks);
        let path = match files.as_slice() {
            [(name, _)] => root.path().join(name),
            _ => root.path().to_owned(),
        };
        let opened = Dataset::open(&path, SampleSpec::default(), |_| {}).unwrap();
        assert_eq!(opened.benchmark().name, benchmark.name);
        assert_eq!(opened.cases().unwrap().map(Result::unwrap).collect::<Vec<_>>(), plain);
        let digest = opened.digest().to_owned();
        drop(opened);
        write(&files);
        assert_ne!(Dataset::open(&path, SampleSpec::default(), |_| {}).unwrap().digest(), digest);

        for (order, bytes) in [("le", u16::to_le_bytes as fn(u16) -> [u8; 2]), ("be", u16::to_be_bytes)] {
            let in_utf16 = |bytes_of: &Vec<u8>| {
                let text = format!("\u{feff}{}", std::str::from_utf8(bytes_of).unwrap());
                text.encode_utf16().flat_map(bytes).collect::<Vec<u8>>()
            };
            write(&files.iter().map(|(name, bytes)| (name.clone(), in_utf16(bytes))).collect());
            if benchmark.name == "own" {
                // As spreadsheets write tables.
                let opened = Dataset::open(&path, SampleSpec::default(), |_| {}).unwrap();
                assert_eq!(opened.cases().unwrap().map(Result::unwrap).collect::<Vec<_>>(), plain);
                continue;
            }
            let told = match Dataset::open(&path, SampleSpec::default(), |_| {}) {
                Err(error) => chain(&error),
                // Detected by its file names.
                Ok(opened) => {
                    let broken = opened.cases().unwrap().find_map(Result::err);
                    chain(&broken.unwrap())
                }
            };
            assert!(told.contains("UTF-16") && told.contains("iconv"), "{} {order}: {told}", benchmark.name);
        }
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let above = error.source().map(chain).unwrap_or_default();
    format!("{error}: {above}")
}

const HISTORY: &str = "persona_0/history_sessions.json";
/// Placeholder of a value until it is written as text.
const HERE: &str = "@@HERE@@";

/// JSON or JSON-lines bytes with the text in place of one value of a row.
fn spoilt(bytes: &[u8], row: usize, pointer: &str, text: &[u8]) -> Vec<u8> {
    let put = |value: &mut Value| *value.pointer_mut(pointer).unwrap() = Value::from(HERE);
    let file = match serde_json::from_slice::<Value>(bytes) {
        Ok(mut rows) => {
            put(&mut rows[row]);
            rows.to_string()
        }
        Err(_) => {
            let mut rows: Vec<Value> = std::str::from_utf8(bytes)
                .unwrap()
                .lines()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect();
            put(&mut rows[row]);
            rows.iter().map(|row| format!("{row}\n")).collect()
        }
    };
    let place = format!("\"{HERE}\"");
    let at = file.find(&place).unwrap();
    [&file.as_bytes()[..at], text, &file.as_bytes()[at + place.len()..]].concat()
}

#[test]
fn what_json_does_not_have_costs_its_row_and_is_told_by_file_row_and_field() {
    let texts: [(&[u8], &str); 7] = [
        (b"NaN", "NaN"),
        (b"-Infinity", "-Infinity"),
        (b"1e400", "1e400"),
        (br#""half \ud83d of it""#, "\\ud83d"),
        (br#""\udc00""#, "\\udc00"),
        (b"\"a\tb\"", "U+0009 in a string"),
        (br#""C:\data""#, "\\"),
    ];
    let places: [(&Benchmark, &str, usize, &str, &str); 7] = [
        (&STALE, "", 1, "/M_new", "M_new"),
        (&STALE, "", 1, "/haystack_session/0/1/content", "haystack_session[0][1].content"),
        (&DOSE, "dose.jsonl", 1, "/sessions/0/turns/0/content", "sessions[0].turns[0].content"),
        (&MEMREWARDBENCH, "", 1, "/chosen", "chosen"),
        (&SUBTLEMEMORY, "persona_0/bench_instances.json", 1, "/qas/0/query", "qas[0].query"),
        (&KNOWME, "question/Temporal Reasoning_questions.json", 1, "/question", "question"),
        (&KNOWME, "answer/Temporal Reasoning_answers.json", 1, "/answer", "answer"),
    ];
    for (benchmark, file, row, pointer, field) in places {
        let files = sample(benchmark);
        let all = sound(cases_in_memory(benchmark, files.clone())).0;
        for (text, found) in texts {
            let spoil = |(name, bytes): &(String, Vec<u8>)| match file.is_empty() || name == file {
                true => (name.clone(), spoilt(bytes, row, pointer, text)),
                false => (name.clone(), bytes.clone()),
            };
            let (cases, problems) = sound(cases_in_memory(benchmark, files.iter().map(spoil).collect()));
            let of_row = |problem: &&Problem| problem.row == row && problem.field == field;
            let told: Vec<&Problem> = problems.iter().filter(of_row).collect();
            // Reported before the consequences of its absence.
            assert_eq!(told.first().map(|told| told.found.as_str()), Some(found), "{}", benchmark.name);
            assert!(told[0].file.as_deref().is_none_or(|name| name == file) && !told[0].remedy.is_empty());
            assert!(problems.iter().all(|problem| problem.row == row), "{problems:?}");
            // The rest stays: cases, or the questions of the single case.
            let asked = |cases: &[Case]| cases.iter().map(|case| case.probes.len()).sum::<usize>();
            assert!(!cases.is_empty() && asked(&cases) < asked(&all), "{}", benchmark.name);
            let kept = cases.iter().all(|case| all.iter().any(|other| other.id == case.id));
            assert!(kept && cases.len() + 1 >= all.len(), "{}", benchmark.name);
        }
    }
}

#[test]
fn a_session_with_half_a_character_is_told_by_its_row() {
    let mut files = sample(&SUBTLEMEMORY);
    let history = files.iter_mut().find(|(name, _)| name == HISTORY).unwrap();
    history.1 = spoilt(&history.1, 2, "/history/0/content", br#""\ud83d""#);
    let (cases, problems) = sound(cases_in_memory(&SUBTLEMEMORY, files));
    // Every question depends on the whole history.
    assert!(cases.is_empty());
    assert_eq!((problems[0].row, problems[0].field.as_str()), (2, "history[0].content"));
    assert_eq!(problems[0].file.as_deref(), Some(HISTORY));
}

#[test]
fn an_answer_with_half_a_character_is_a_failed_call_and_the_others_are_read() {
    for wrap in [|list: &str| list.to_owned(), |list: &str| format!("{{\"note\": NaN, \"data\": {list}}}")] {
        let entry = |uid: &str, text: &str| {
            format!(
                "{{\"uid\": \"{uid}\", \"target_model_responses\": {{\"dim1_response\": \"{text}\", \"dim2_response\": \"b\"}}}}"
            )
        };
        let list = format!("[{}, {}]", entry("a", "cut \\ud83d"), entry("c", "whole \\ud83d\\ude00"));
        let read = parse(wrap(&list).as_bytes()).unwrap();
        assert_eq!((read[0].answers.len(), read[0].errors.len()), (0, 3));
        assert_eq!((read[1].answers["SR"].as_str(), read[1].errors.len()), ("whole 😀", 0));
    }
    assert!(parse(b"[{\"uid\": NaN]").is_err());
}
