//! Verdicts by exact match, from `judge` to `table`, and the intervals in one table's output, on a run from the sample.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use palimpsest::benchmarks::subtlememory::SUBTLEMEMORY;
use palimpsest::chat::{ChatError, ChatModel, Message, Reply, Sampling};
use palimpsest::judge::{self, Exchange, Instructions, Judge, Reasons};
use palimpsest::runs::condition::Condition;
use palimpsest::runs::header::{Identity, Machine, NameAndDigest, RunHeader};
use palimpsest::runs::plan::{PlannedCase, PlannedProbe};
use palimpsest::runs::rows::AnswerRow;
use palimpsest::runs::store::RunStore;
use serde_json::{Value, json};

use super::sample_case;
use crate::cli::{done, palimpsest, shown};
use crate::judge::said;

/// Finds every answer correct and counts its calls.
#[derive(Default)]
struct Kind {
    asked: usize,
}

impl ChatModel for Kind {
    fn name(&self) -> String {
        "kind".to_owned()
    }

    fn reply(&mut self, _: &[Message], _: &Sampling) -> Result<Reply, ChatError> {
        self.asked += 1;
        Ok(said(r#"{"reason": "fine", "label": "CORRECT"}"#.to_owned()))
    }
}

/// Writes a run of the sample under two settings, each `repetitions` times.
fn made(dir: &Path, repetitions: u32, answer: impl Fn(&str, &PlannedProbe, usize) -> String) {
    let plan = PlannedCase::of(&sample_case());
    let settings = ["oracle", "default"]
        .map(|name| *SUBTLEMEMORY.settings.iter().find(|setting| setting.name == name).unwrap());
    let conditions =
        Condition::beside(&settings.each_ref().map(Condition::of_setting), (&[], &[]), repetitions);
    let digest = |name: &str| NameAndDigest { name: name.to_owned(), digest: "d".repeat(64) };
    let identity = json!({
        "benchmark": "subtlememory", "dataset": digest("sample"), "model": digest("model-9b"), "dtype": null, "prompts": null,
        "sampling": null, "context": { "tokens": null, "policy": "full" }, "seed": 0, "only": null, "limit": null,
        "attention": false, "version": "0.2.0",
    });
    let identity = Identity { conditions: conditions.clone(), ..serde_json::from_value(identity).unwrap() };
    let mut answers = String::new();
    for condition in &conditions {
        for (at, probe) in plan.probes.iter().enumerate() {
            let row = AnswerRow {
                case: plan.case.clone(),
                probe: probe.id.clone(),
                condition: condition.name.clone(),
                query: probe.query.clone(),
                answer: Some(answer(&condition.name, probe, at)),
                ..AnswerRow::default()
            };
            answers += &format!("{}\n", json!(row));
        }
    }
    std::fs::create_dir_all(dir).unwrap();
    let header = RunHeader::new(identity, None, Machine::here("cpu", 1));
    std::fs::write(dir.join("run.json"), serde_json::to_string(&header).unwrap()).unwrap();
    std::fs::write(dir.join("plan.jsonl"), format!("{}\n", json!(plan))).unwrap();
    std::fs::write(dir.join("answers.jsonl"), answers).unwrap();
}

fn reference(probe: &PlannedProbe, note: &str) -> String {
    probe.judge[note][0].as_str().unwrap().to_owned()
}

/// The first five answers equal a correct reference up to case and white space, the next two a wrong one, the rest neither.
fn mixed(_: &str, probe: &PlannedProbe, at: usize) -> String {
    match at {
        0..5 => format!("  {}\n", reference(probe, "correct_answers").to_uppercase().replace(' ', "  ")),
        5..7 => reference(probe, "incorrect_answers"),
        _ => "something else".to_owned(),
    }
}

/// Judges a run; returns the verdicts settled without the judge, and its calls.
fn judge(dir: &Path, instructions: Instructions) -> (usize, usize) {
    let sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens: 64 };
    let mut kind = Kind::default();
    let mut by_reply = Judge::Reply { models: vec![&mut kind], sampling };
    let mut store = RunStore::open(dir).unwrap();
    let summary =
        judge::run(&mut store, &mut by_reply, instructions, &AtomicBool::new(false), false).unwrap();
    assert_eq!(summary.errors, 0);
    (summary.settled, kind.asked)
}

#[test]
fn an_answer_that_equals_a_reference_is_settled_and_counted_and_no_other_one_is() {
    let settled = |right: &[&str], wrong: &[&str], answer: &str| {
        let judge = json!({"correct_answers": right, "incorrect_answers": wrong});
        let probe = PlannedProbe { judge: serde_json::from_value(judge).unwrap(), ..PlannedProbe::default() };
        let exchange = Exchange { probe, answer: Some(answer.to_owned()), cut: false };
        Instructions::of(&SUBTLEMEMORY, &SUBTLEMEMORY.rubric()).settled(&exchange)
    };
    // Only letter case and white space are folded.
    assert_eq!(settled(&["C#"], &["C"], "c#"), Some(true));
    assert_eq!(settled(&["C#"], &[], "C"), None);
    assert_eq!(settled(&["-5 °C"], &[], "5 °C"), None);
    assert_eq!(settled(&["-5 °C"], &["5 °C"], " 5\n°c "), Some(false));
    assert_eq!(settled(&["the bridge"], &[], "The bridge."), None);
    assert_eq!(settled(&["tea"], &["Tea"], "tea"), Some(true), "a right reference comes first");
    assert_eq!(settled(&["", " "], &["\n"], " "), None, "nothing equals nothing");
}

#[test]
fn settled_verdicts_need_no_judge_and_the_table_says_how_many_they_are() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    made(&dir, 1, mixed);
    let instructions =
        Instructions { reasons: Reasons::First, ..Instructions::of(&SUBTLEMEMORY, &SUBTLEMEMORY.rubric()) };
    // Of 15 answers under each of two settings, five are settled as correct and two as wrong.
    assert_eq!(judge(&dir, instructions.clone()), (14, 16));
    assert_eq!(judge(&dir, instructions.clone()), (0, 0), "a settled verdict is one");
    let rows = std::fs::read_to_string(dir.join("verdicts.jsonl")).unwrap();
    let of = |right: bool| {
        rows.lines()
            .filter(|row| row.contains("\"settled\":true") && row.contains(&format!("\"correct\":{right}")))
            .count()
    };
    assert_eq!((of(true), of(false), rows.lines().count()), (10, 4, 30));
    let table = done(palimpsest(["table", shown(&dir)])).out;
    let note = "7 of 15 verdicts";
    assert_eq!(table.matches(note).count(), 2, "{table}");
    assert!(table.contains("86.67") && table.contains("13/15"), "{table}");
    // The judge gave one verdict to every answer it saw; settled answers cannot make it look able.
    assert!(table.contains("! model-9b"), "{table}");

    // Without references the judge decides all, and its verdicts are kept beside the others.
    assert_eq!(judge(&dir, Instructions { references: None, ..instructions }), (0, 30));
    let table = done(palimpsest(["table", shown(&dir)])).out;
    assert!(table.contains("kind (paper, reasons first)") && table.contains("15/15"), "{table}");
    let refused = palimpsest(["table", shown(&dir), "--repeats", "--intervals", "paper"]);
    assert!(refused.err.contains("cannot be used with"), "{}", refused.err);
}

#[test]
fn the_flag_of_older_command_lines_names_the_default() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    made(&dir, 1, mixed);
    let asked = |flags: &[&str]| {
        let command = ["judge", shown(&dir), "--judge", "http://127.0.0.1:9/v1#nobody", "--retries", "0"];
        palimpsest([&command[..], flags].concat())
    };
    let both = asked(&["--exact-match", "--no-exact-match"]);
    assert!(both.code == Some(2) && both.err.contains("cannot be used with"), "{}", both.err);
    // Accepted; there is no server at this address.
    let named = asked(&["--exact-match"]);
    assert!(named.code == Some(1) && named.err.contains("no connection"), "{}", named.err);
}

/// Interval ends of all questions in one output, in percent: of the general table and of table 11, row by row.
fn ends(dir: &Path, more: &[&str]) -> (Value, [Vec<String>; 2]) {
    let asked = [&["table", shown(dir), "--format", "json"], more].concat();
    let json: Value = serde_json::from_str(&done(palimpsest(asked)).out).unwrap();
    let general = json["rows"].as_array().unwrap().iter().map(|row| {
        let interval = &row["table"]["overall"]["interval"];
        let end = |name: &str| 100.0 * interval[name].as_f64().unwrap();
        format!("[{:.2}, {:.2}]", end("low"), end("high"))
    });
    let general = general.collect();
    let of_paper = json["tables"]["intervals"]["rows"].as_array().unwrap().iter().map(|row| {
        let cell = row["all"].as_str().unwrap();
        cell.split_once(' ').unwrap().1.to_owned()
    });
    let of_paper = of_paper.collect();
    (json, [general, of_paper])
}

#[test]
fn one_output_has_one_interval_of_a_number_by_either_method() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    // In each of the sample's three relations every second answer is correct under one setting, every third under the other.
    made(&dir, 1, |condition, probe, at| {
        let every = if condition == "oracle" { 2 } else { 3 };
        reference(probe, if at % every == 0 { "correct_answers" } else { "incorrect_answers" })
    });
    assert_eq!(judge(&dir, Instructions::of(&SUBTLEMEMORY, &SUBTLEMEMORY.rubric())), (30, 0));
    // Broken rows, of which one names its relation.
    let relations = [Some(("relation", "nuanced")), None];
    let broken = relations.into_iter().zip(1..).map(|(relation, position)| {
        let facets = relation.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let probe = PlannedProbe { id: format!("broken-{position}"), facets, ..PlannedProbe::default() };
        let (case, why) = (format!("row-{position}"), Some("no case".to_owned()));
        json!(PlannedCase { position, case, probes: vec![probe], broken: why, ..PlannedCase::default() })
            .to_string()
    });
    let plan = std::fs::read_to_string(dir.join("plan.jsonl")).unwrap();
    std::fs::write(dir.join("plan.jsonl"), plan + &broken.map(|row| row + "\n").collect::<String>()).unwrap();
    let (adjusted, [general, table_11]) = ends(&dir, &[]);
    assert_eq!(general, table_11);
    let (paper, [of_paper, of_paper_11]) = ends(&dir, &["--intervals", "paper"]);
    assert_eq!(of_paper, of_paper_11);
    assert_ne!(general, of_paper);
    let how = |json: &Value| json["rows"][0]["table"]["intervals"].as_str().unwrap().to_owned();
    assert_eq!((how(&adjusted), how(&paper)), ("adjusted".to_owned(), "paper".to_owned()));
    for (more, said) in
        [(&[][..], "t (questions within each relation)"), (&["--intervals", "paper"], "percentile bootstrap")]
    {
        let text = done(palimpsest([&["table", shown(&dir)], more].concat())).out;
        assert!(text.contains(said), "{said}: {text}");
        assert!(more.is_empty() || !text.contains("Wilson"), "{text}");
    }
    // Also the difference of both settings: table 12's and that of --compare.
    for more in [&["--compare"][..], &["--compare", "--intervals", "paper"]] {
        let (json, _) = ends(&dir, more);
        let interval = &json["comparison"]["overall"]["interval"];
        let end = |name: &str| 100.0 * interval[name].as_f64().unwrap();
        let of_table = json["tables"]["oracle-gap"]["rows"][0]["difference"].as_str().unwrap();
        let shown = format!("[{:+.2}, {:+.2}]", end("low"), end("high")).replace("-0.00", "+0.00");
        assert!(of_table.ends_with(&shown), "{shown} {of_table}");
    }
}

#[test]
fn one_system_run_three_times_or_judged_twice_is_one_system() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run");
    made(&dir, 3, |_, probe, _| reference(probe, "correct_answers"));
    let instructions = Instructions::of(&SUBTLEMEMORY, &SUBTLEMEMORY.rubric());
    judge(&dir, Instructions { references: None, ..instructions.clone() });
    judge(&dir, instructions);
    let table = done(palimpsest(["table", shown(&dir)])).out;
    assert!(!table.contains("contextual is above temporal"), "there is one system: {table}");
    assert!(table.contains("the first repetition of each setting is compared"), "{table}");
    assert!(table.contains("default, BM25, repeat 3"), "{table}");
}
