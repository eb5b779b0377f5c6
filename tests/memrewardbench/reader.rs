//! Files: JSONL, Parquet and folders of them, and every fault.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use palimpsest::benchmarks::SampleSpec;
use palimpsest::benchmarks::dataset::{Dataset, cases_in_memory};
use palimpsest::benchmarks::memrewardbench::{Length, Setting, Task};
use palimpsest::benchmarks::reading::ReadError;
use palimpsest::case::Case;
use palimpsest::prompt::{PromptBuilder, Templates};
use palimpsest_core::text::ChatTemplate;
use parquet::basic::Compression;
use serde_json::{Value, json};

use super::parquet_file::{Row, write_parquet};
use super::{BENCHMARK, lines, published, read, row, sample, sample_file};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/memrewardbench").join(name)
}

fn sample_rows() -> Vec<Row> {
    let text = String::from_utf8(sample_file().1).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The file's only problem or error.
fn refusal(name: &str, bytes: impl Into<Vec<u8>>) -> String {
    let errors: Vec<ReadError> = read(name, bytes).into_iter().filter_map(Result::err).collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    let said = format!("{:#}", anyhow::Error::from(errors.into_iter().next().unwrap()));
    assert!(!said.contains('\n'), "{said}");
    said
}

fn changed(change: impl FnOnce(&mut Value)) -> String {
    let mut value = serde_json::to_value(row(3)).unwrap();
    change(&mut value);
    refusal("rows.jsonl", value.to_string())
}

#[test]
fn the_sample_has_two_pairs_of_each_setting_over_all_lengths() {
    let cases = sample();
    let count = |label: &str| {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        cases.iter().for_each(|case| *counts.entry(case.labels[label].clone()).or_default() += 1);
        counts
    };
    assert_eq!(count("subtask"), Setting::ALL.map(|setting| (setting.name().to_owned(), 2)).into());
    assert_eq!(count("task").len(), 3);
    assert_eq!(count("ctx_length").len(), 5);
    let ids: Vec<&str> = cases.iter().map(|case| &*case.id).collect();
    assert_eq!(ids, (0..20).map(|i| i.to_string()).collect::<Vec<_>>());
    for case in &cases {
        let [probe] = &case.probes[..] else { panic!("{} has no single probe", case.id) };
        assert_eq!(
            (probe.id.as_str(), &probe.options[..]),
            ("verdict", &["[[A]]".to_owned(), "[[B]]".to_owned()][..])
        );
        let generation = case.labels["task"] == Task::Generation.name();
        assert_eq!(probe.form == "generation", generation, "{}", case.id);
        assert_eq!(probe.facets["setting"], case.labels["subtask"]);
        let roles: Vec<&str> = case.evidence.iter().map(|evidence| &*evidence.role).collect();
        for role in ["question", "chosen", "rejected", "block", "first", "second"] {
            assert_eq!(roles.iter().filter(|other| **other == role).count(), 1, "{}: {role}", case.id);
        }
        assert!(roles.contains(&"only_chosen") || roles.contains(&"only_rejected"), "{}", case.id);
    }
    let error = (BENCHMARK.sample)(SampleSpec { segments: Some(4), seed: 0 }).unwrap_err();
    assert!(error.to_string().contains("--sessions"), "{error}");
}

/// Two system messages, both trajectories between question and instruction, and spans that tile.
#[test]
fn prompts_of_the_sample_show_all_three_texts_and_criteria_by_task() {
    let templates = Templates::load(&BENCHMARK, None).unwrap();
    let builder = PromptBuilder::new(templates, ChatTemplate::plain(None).unwrap());
    for case in sample() {
        for setting in ["chosen-first", "rejected-first"] {
            let arranged = (BENCHMARK.arrange)(&case, setting, 0);
            let prompt = builder.build(&arranged.history, &arranged.evidence, &arranged.probes[0]).unwrap();
            let mut reached = 0;
            for span in &prompt.spans {
                assert_eq!(span.start, reached, "{}", span.label);
                reached = span.end;
            }
            assert_eq!(reached, prompt.text.len());
            let at =
                |role: &str| prompt.spans.iter().find(|span| span.role.as_deref() == Some(role)).unwrap();
            let text = |role: &str| &prompt.text[at(role).start..at(role).end];
            let (first, second) =
                if setting == "chosen-first" { ("chosen", "rejected") } else { ("rejected", "chosen") };
            assert!(
                text(first).starts_with("[Agent A begins]") && text(second).starts_with("[Agent B begins]")
            );
            assert!(at("question").end <= at(first).start && at(first).end == at(second).start);
            assert!(at(second).end <= at("query").start && text("query").contains("[[A]]"));
            let system = &prompt.messages[0].content;
            let generation = case.labels["task"] == Task::Generation.name();
            assert_eq!(system.contains("Constraints."), generation, "{}", case.id);
            assert_eq!(system.contains("The result."), !generation, "{}", case.id);
            for (role, whole) in [("only_chosen", "chosen"), ("only_rejected", "rejected")] {
                for span in prompt.overlays.iter().filter(|span| span.role.as_deref() == Some(role)) {
                    assert!(at(whole).start < span.start && span.end < at(whole).end);
                }
            }
            let overlay = |role: &str| prompt.overlays.iter().find(|span| span.role.as_deref() == Some(role));
            let place = |role: &str| overlay(role).map(|span| span.start).unwrap();
            assert!(place("first") < place("second"));
            assert!(place("block") >= at("question").start && place("block") < at("question").end);
        }
    }
}

#[test]
fn parquet_and_jsonl_give_the_same_cases_whatever_the_file_is_called() {
    let rows = sample_rows();
    let expected = sample();
    for (compression, group) in
        [(Compression::UNCOMPRESSED, 100), (Compression::SNAPPY, 7), (Compression::SNAPPY, 1)]
    {
        let bytes = write_parquet(&rows, compression, group).unwrap();
        let cases: Vec<Case> = read("rows.json", bytes).into_iter().map(Result::unwrap).collect();
        assert_eq!(cases, expected, "{compression} {group}");
    }
    let root = tempfile::tempdir().unwrap();
    for (name, bytes) in
        [("a.dat", sample_file().1), ("b", write_parquet(&rows, Compression::SNAPPY, 9).unwrap())]
    {
        let path = root.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let dataset = Dataset::open(&path, SampleSpec::default(), |_| {}).unwrap();
        assert_eq!(dataset.benchmark().name, "memrewardbench", "{name}");
        assert_eq!(dataset.cases().unwrap().map(Result::unwrap).collect::<Vec<_>>(), expected);
    }
    let dataset = Dataset::open(root.path(), SampleSpec::default(), |_| {}).unwrap();
    let ids: Vec<String> = dataset.cases().unwrap().map(|case| case.unwrap().id).collect();
    assert_eq!((ids.len(), &*ids[0], &*ids[20]), (40, "a-0", "b-0"));
    // A README is not data.
    std::fs::write(root.path().join("README.md"), "{\"subtask\": 1}").unwrap();
    let again = Dataset::open(root.path(), SampleSpec::default(), |_| {}).unwrap();
    assert_eq!(again.digest(), dataset.digest());
}

#[test]
fn files_of_pyarrow_are_read_and_what_is_wrong_with_one_is_a_line() {
    let bytes = |name: &str| std::fs::read(fixture(name)).unwrap();
    for name in ["snappy.parquet", "none.parquet", "large-strings.parquet"] {
        let cases: Vec<Case> = read(name, bytes(name)).into_iter().map(Result::unwrap).collect();
        assert_eq!(cases.len(), 3, "{name}");
        assert_eq!(cases[1].history.segments[1].turns[0].content, "memory 1: Zoë wohnt in Köln.");
        assert_eq!(cases[2].history.segments[2].turns[0].content, "memory 2: 不明");
        assert_eq!((&*cases[1].labels["subtask"], &*cases[1].labels["ctx_length"]), ("A-Mem-Mem", "128k"));
    }
    for (name, parts) in [
        ("zstd.parquet", ["ZSTD", "Snappy"]),
        ("gzip.parquet", ["GZIP", "JSONL"]),
        ("no-rejected.parquet", ["no column `rejected`", "write it with one"]),
        ("chosen-is-a-list.parquet", ["`chosen`", "a list or a struct"]),
        ("chosen-is-a-number.parquet", ["`chosen`", "INT64"]),
    ] {
        let said = refusal(name, bytes(name));
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    }
    let cases = read("x", bytes("chosen-is-missing-once.parquet"));
    assert_eq!(cases.iter().filter(|case| case.is_ok()).count(), 2);
    let said = refusal("x", bytes("chosen-is-missing-once.parquet"));
    assert!(said.contains("row 1 (uid \"1\"), chosen: found no such field"), "{said}");
}

#[test]
fn a_parquet_file_that_is_cut_off_or_damaged_is_an_error_and_no_panic() {
    let whole = write_parquet(&sample_rows()[..6], Compression::SNAPPY, 4).unwrap();
    for end in (4..whole.len()).step_by(97) {
        let said = refusal("x", whole[..end].to_vec());
        assert!(said.contains("cut off or damaged"), "{end}: {said}");
    }
    let mut draws = palimpsest::case::draw::Draws::new("damage", 1, "parquet");
    let (mut refused, mut read_on) = (0, 0);
    for _ in 0..400 {
        let mut bytes = whole.clone();
        let at = draws.index(bytes.len());
        bytes[at] ^= 1 << draws.index(8);
        match read("x", bytes).into_iter().all(|case| case.is_ok()) {
            true => read_on += 1,
            false => refused += 1,
        }
    }
    // A flipped bit in a text changes the text; in a page or the footer it invalidates the file.
    assert!(refused > 20 && read_on > 20, "{refused} {read_on}");
}

#[test]
fn settings_tasks_and_lengths_are_known_by_other_spellings_and_unknown_ones_refused() {
    for setting in Setting::ALL {
        assert_eq!(Setting::parse(setting.name()), Some(setting));
        assert_eq!(Setting::parse(&setting.name().to_uppercase().replace('-', "_")), Some(setting));
        assert_eq!(Setting::parse(setting.short()), Some(setting));
    }
    for length in Length::ALL {
        assert_eq!(Length::parse(length.name()), Some(length));
    }
    assert_eq!((Length::parse("131072"), Length::parse("256k")), (Some(Length::K128), None));
    assert_eq!(Setting::parse("sequential drop-info"), Some(Setting::SequentialDrop));
    assert_eq!((Setting::parse("A-Mem"), Task::parse("Long")), (None, None));
    let said = changed(|row| row["subtask"] = "Sequential-Drip".into());
    assert!(said.contains("subtask: found \"Sequential-Drip\"") && said.contains("A-Mem-Mem"), "{said}");
    let said = changed(|row| row["ctx_length"] = "9k".into());
    assert!(said.contains("ctx_length") && said.contains("128k"), "{said}");
    let said = changed(|row| row["task"] = "Long-form_Generation".into());
    assert!(said.contains("Sequential-Drop is a setting of Long-context_Reasoning"), "{said}");
}

#[test]
fn every_broken_row_is_one_line_and_the_others_are_read() {
    let said = changed(|row| row["rejected"] = Value::Null);
    assert!(said.contains("row 0 (uid \"3\"), rejected: found null; write a string"), "{said}");
    let said = changed(|row| {
        row.as_object_mut().unwrap().remove("chosen");
    });
    assert!(said.contains("chosen: found no such field"), "{said}");
    let said = changed(|row| row["question"] = json!(["a", "b"]));
    assert!(said.contains("question: found an array of 2"), "{said}");
    let said = changed(|row| row["rejected"] = row["chosen"].clone());
    assert!(said.contains("the chosen trajectory again"), "{said}");
    let said = changed(|row| row["index"] = json!({"a": 1}));
    assert!(said.contains("index: found an object"), "{said}");
    let said = refusal("rows.jsonl", lines(&[row(1), row(2), row(1)]));
    assert!(said.contains("row 2 (uid \"1\"), index: found the index of row 0 again"), "{said}");
    let text = lines(&[row(1), row(2)]);
    let said = refusal("rows.jsonl", &text.as_bytes()[..text.len() - 20]);
    assert!(said.contains("row 1 (no uid), (row): found line 2, which is no row"), "{said}");
    let twice = format!("{{\"task\": {}, ", serde_json::to_value(row(3)).unwrap()["task"]);
    let twice = lines(&[row(3)]).replacen('{', &twice, 1);
    let said = refusal("rows.jsonl", format!("{text}{twice}"));
    assert!(said.contains("task: found the same key a second time"), "{said}");
    let said = refusal("rows.jsonl", format!("[{}]", text.lines().next().unwrap()));
    assert!(said.contains("one object a line"), "{said}");
    let said = refusal("rows.jsonl", "\n\n");
    assert!(said.contains("no cases") && said.contains("MemoryRewardBench"), "{said}");
    let broken =
        lines(&[row(1)]).into_bytes().iter().map(|b| if *b == b'l' { 0xff } else { *b }).collect::<Vec<u8>>();
    assert!(refusal("rows.jsonl", broken).contains("which is no row"));
    // Rows without an index are named by their number, in a folder also by file.
    let mut bare = serde_json::to_value(row(0)).unwrap();
    bare.as_object_mut().unwrap().remove("index");
    let bare = format!("\u{feff}{bare}\r\n\r\n{bare}").into_bytes();
    let files = vec![("in/one.jsonl".to_owned(), bare.clone()), ("two.jsonl".to_owned(), bare)];
    let ids: Vec<String> =
        cases_in_memory(&BENCHMARK, files).into_iter().map(|case| case.unwrap().id).collect();
    assert_eq!(ids, ["in-one-row-0", "in-one-row-1", "two-row-0", "two-row-1"]);
}

#[test]
fn the_published_sizes_are_those_of_table_2() {
    let by_length: Vec<usize> =
        (0..5).map(|at| Setting::ALL.iter().map(|setting| published(*setting)[at]).sum()).collect();
    assert_eq!(by_length, [419, 503, 566, 563, 349]);
    assert_eq!(by_length.iter().sum::<usize>(), 2400);
    let of = |setting: Setting| published(setting).iter().sum::<usize>();
    assert_eq!(Setting::ALL.map(of), [255, 134, 184, 227, 167, 159, 229, 245, 457, 343]);
    for task in Task::ALL {
        let of_task = Setting::ALL.into_iter().filter(|setting| setting.task() == task);
        assert_eq!(of_task.map(of).sum::<usize>(), 800);
    }
}
