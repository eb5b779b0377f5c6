//! Tables of runs, against the published tables 2 and 6, as typed and in every format.
use std::collections::BTreeMap;
use std::path::Path;

use palimpsest::benchmarks::stale::STALE;
use palimpsest::benchmarks::{Context, Graded, ShownSegments};
use palimpsest::case::Notes;
use palimpsest::records::join;
use palimpsest::results::compare::{CompareError, compare};
use palimpsest::results::metrics::{AccuracyTable, repeats};
use palimpsest::results::outcomes::Outcomes;
use palimpsest::runs::condition::Condition;
use palimpsest::runs::header::{Machine, NameAndDigest, RunHeader};
use palimpsest::runs::plan::{CaseSample, PlannedCase, PlannedProbe, Selection, Shard};
use palimpsest::runs::rows::{AnswerRow, VerdictRow};
use serde_json::{Value, json};

use crate::cli::palimpsest;
use crate::toy::LOGBOOK;

mod conditions;
mod questions;

/// A probe answered after its whole history, without a verdict.
pub fn answered<'a>(
    labels: &'a BTreeMap<String, String>,
    facets: &'a BTreeMap<String, String>,
) -> Graded<'a> {
    Graded {
        run: "run",
        model: "model",
        dataset: "data",
        judge: Some("judge"),
        condition: "",
        context: Context::Whole,
        memory: None,
        repetition: 0,
        case: "case",
        probe: "probe",
        labels,
        facets,
        answered: true,
        answer: None,
        fits: true,
        shown: ShownSegments::default(),
        cut: false,
        correct: None,
        score: None,
        choice: None,
        history_cut: None,
    }
}

const PROBES: [&str; 3] = ["SR", "PR", "IPA"];
const JUDGE: &str = "http://host/v1#able-70b";
/// Short name in tables for people.
const SHORT: &str = "able-70b";

/// STALE, table 2: a star, SR, PR, IPA of type I, then of type II, then the printed overall, in percent.
#[rustfmt::skip]
const TABLE_2: [(&str, bool, [f64; 6], f64); 15] = [
    ("GPT-4o-mini",            true,  [30.0, 0.0, 11.0, 9.5, 0.0, 1.5], 8.7),
    ("GPT-5.4-nano",           false, [20.5, 1.5, 21.5, 9.0, 0.0, 6.5], 9.8),
    ("GPT-5.4",                false, [35.0, 2.0, 29.0, 9.0, 2.0, 17.0], 15.7),
    ("Gemini-3.1-flash-lite",  false, [41.0, 1.5, 42.0, 25.0, 1.5, 23.5], 22.4),
    ("Gemini-3.1-pro",         false, [92.0, 30.0, 71.0, 69.0, 14.0, 55.0], 55.2),
    ("Llama-3.3-70B-Instruct", true,  [6.5, 0.0, 3.0, 6.0, 0.0, 0.0], 2.6),
    ("Qwen3.5-9B",             false, [36.0, 1.0, 21.5, 21.5, 0.0, 7.5], 14.6),
    ("Qwen3.5-27B",            false, [76.0, 4.0, 39.0, 42.0, 3.5, 23.0], 31.3),
    ("MiniMax-M2.5",           false, [10.5, 1.5, 8.0, 5.5, 5.0, 2.5], 5.5),
    ("LightMem",               false, [52.5, 1.0, 23.5, 21.5, 0.5, 7.5], 17.8),
    ("Zep",                    false, [10.0, 0.0, 19.0, 3.0, 1.0, 3.0], 6.0),
    ("LiCoMemory",             false, [15.5, 0.5, 22.5, 1.5, 1.5, 4.0], 7.6),
    ("A-mem",                  false, [13.5, 0.0, 7.5, 8.0, 0.0, 1.5], 5.1),
    ("mem-0",                  false, [17.0, 1.0, 22.0, 3.5, 0.0, 6.5], 8.3),
    ("CUPMem",                 false, [91.0, 78.0, 32.0, 89.0, 75.0, 43.0], 68.0),
];

/// A model, a type, the printed cells (SR, PR, IPA, overall), and the correct answers of each repetition by probe.
type RowOfTable6 = (&'static str, &'static str, [&'static str; 4], [[usize; 5]; 3]);

/// STALE, table 6: the printed values, and counts of 20 over five calls that give them, found by exhaustive search. They are one of
/// several solutions: the printed digits leave 18, 8, 12 and 6 for the four rows, up to the order of calls.
#[rustfmt::skip]
const TABLE_6: [RowOfTable6; 4] = [
    ("Gemini-3.1-flash-lite", "T1", ["41.0±8.9", "0.0±0.0", "18.0±7.6", "19.7±2.2"], [[6, 7, 8, 10, 10], [0, 0, 0, 0, 0], [5, 4, 4, 1, 4]]),
    ("Gemini-3.1-flash-lite", "T2", ["25.0±5.0", "3.0±2.7", "27.0±4.5", "18.3±3.5"], [[4, 4, 5, 6, 6], [0, 1, 0, 1, 1], [4, 5, 6, 6, 6]]),
    ("Qwen3.5-9B",            "T1", ["36.0±7.4", "3.0±4.5", "18.0±5.7", "19.0±4.7"], [[5, 7, 7, 8, 9], [1, 0, 0, 0, 2], [4, 3, 2, 4, 5]]),
    ("Qwen3.5-9B",            "T2", ["13.0±2.7", "0.0±0.0", "12.0±4.5", "8.3±1.7"], [[2, 2, 3, 3, 3], [0, 0, 0, 0, 0], [2, 3, 3, 3, 1]]),
];

/// A run: `cases` of each type, and the correct counts of each condition by type and probe.
struct Run {
    model: String,
    cases: usize,
    truncated: bool,
    /// By condition; the first cases are the correct ones.
    right: Vec<[usize; 6]>,
    judge: Option<&'static str>,
    rubric: Option<&'static str>,
}

impl Run {
    fn of(model: &str, cases: usize, right: Vec<[usize; 6]>) -> Self {
        Run { model: model.to_owned(), cases, truncated: false, right, judge: Some(JUDGE), rubric: Some("r") }
    }

    fn conditions(&self) -> Vec<Condition> {
        Condition::beside(&[Condition::PLAIN], (&[], &[]), self.right.len() as u32)
    }

    fn plan(&self) -> Vec<PlannedCase> {
        let case = |position: usize| {
            let kind = 1 + position / self.cases;
            let id = format!("T{kind}-{:03}", position % self.cases);
            let probe = |probe: &str| PlannedProbe {
                id: probe.to_owned(),
                query: format!("{probe} of {id}?"),
                ..PlannedProbe::default()
            };
            PlannedCase {
                position,
                probes: PROBES.map(probe).to_vec(),
                labels: BTreeMap::from([("type".to_owned(), format!("T{kind}"))]),
                evidence: Vec::new(),
                judge: Notes::default(),
                broken: None,
                case: id,
            }
        };
        (0..2 * self.cases).map(case).collect()
    }

    /// Rows under one condition.
    fn rows(&self, condition: usize) -> (Vec<AnswerRow>, Vec<VerdictRow>) {
        let name = &self.conditions()[condition].name;
        let (mut answers, mut verdicts) = (Vec::new(), Vec::new());
        for case in self.plan() {
            let (kind, at) = (case.position / self.cases, case.position % self.cases);
            for (column, probe) in case.probes.iter().enumerate() {
                answers.push(AnswerRow {
                    case: case.case.clone(),
                    probe: probe.id.clone(),
                    condition: name.clone(),
                    labels: case.labels.clone(),
                    query: probe.query.clone(),
                    answer: Some("so".to_owned()),
                    dropped_sessions: if self.truncated { vec![3] } else { Vec::new() },
                    ..AnswerRow::default()
                });
                verdicts.extend(self.judge.map(|judge| VerdictRow {
                    case: case.case.clone(),
                    probe: probe.id.clone(),
                    condition: name.clone(),
                    judge: judge.to_owned(),
                    rubric: self.rubric.map(str::to_owned),
                    rubric_name: self.rubric.map(str::to_owned),
                    correct: Some(at < self.right[condition][3 * kind + column]),
                    ..VerdictRow::default()
                }));
            }
        }
        (answers, verdicts)
    }

    /// Writes the folder, with rows modified by `change`.
    fn write_with(&self, dir: &Path, change: impl FnOnce(&mut Vec<AnswerRow>, &mut Vec<VerdictRow>)) {
        let identity = json!({
            "dataset": NameAndDigest { name: "file.json".to_owned(), digest: "d".repeat(64) },
            "model": NameAndDigest { name: self.model.clone(), digest: "m".to_owned() },
            "dtype": null, "prompts": null, "sampling": null, "context": { "tokens": null, "policy": "full" },
            "seed": 0, "only": null, "limit": null, "attention": false, "version": "0.2.0",
        });
        let mut identity: palimpsest::runs::header::Identity = serde_json::from_value(identity).unwrap();
        if self.right.len() > 1 {
            identity.conditions = self.conditions();
        }
        let header = RunHeader::new(identity, None, Machine::here("cpu", 1));
        let (mut answers, mut verdicts) = (Vec::new(), Vec::new());
        for condition in 0..self.right.len() {
            let (more, also) = self.rows(condition);
            answers.extend(more);
            verdicts.extend(also);
        }
        change(&mut answers, &mut verdicts);
        let lines = |rows: Vec<Value>| rows.iter().map(|row| format!("{row}\n")).collect::<String>();
        std::fs::create_dir_all(dir).unwrap();
        std::fs::write(dir.join("run.json"), serde_json::to_string(&header).unwrap()).unwrap();
        for (name, rows) in [
            ("plan.jsonl", self.plan().iter().map(|row| json!(row)).collect()),
            ("answers.jsonl", answers.iter().map(|row| json!(row)).collect()),
            ("verdicts.jsonl", verdicts.iter().map(|row| json!(row)).collect()),
        ] {
            std::fs::write(dir.join(name), lines(rows)).unwrap();
        }
    }

    fn write(&self, dir: &Path) {
        self.write_with(dir, |_, _| {});
    }
}

/// Runs `palimpsest table` on folders of `root`.
fn table(root: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let of = |arg: &&str| {
        if root.join(arg).is_dir() { root.join(arg).display().to_string() } else { (*arg).to_owned() }
    };
    let ended = palimpsest(std::iter::once("table".to_owned()).chain(args.iter().map(of)));
    (ended.code, ended.out, ended.err)
}

fn done(root: &Path, args: &[&str]) -> String {
    let (code, out, err) = table(root, args);
    assert_eq!(code, Some(0), "{args:?}: {err}");
    out
}

fn refused(root: &Path, args: &[&str]) -> String {
    let (code, out, err) = table(root, args);
    assert!(
        matches!(code, Some(1 | 2)) && out.is_empty() && err.starts_with("error: "),
        "{args:?}: {out}{err}"
    );
    assert!(!err.contains("panicked"), "{err}");
    err
}

#[test]
fn table_2_is_that_of_the_paper_to_the_printed_digit_in_every_format() {
    let root = tempfile::tempdir().unwrap();
    let mut dirs = Vec::new();
    for (at, (model, truncated, cells, _)) in TABLE_2.iter().enumerate() {
        // Percentages of 200 cases are exact counts.
        let right = cells.map(|percent| (percent * 2.0) as usize);
        let dir = format!("{at:02}");
        Run { truncated: *truncated, ..Run::of(model, 200, vec![right]) }.write(&root.path().join(&dir));
        dirs.push(dir);
    }
    let of = |dirs: &[String], more: &[&str]| {
        let args: Vec<&str> = dirs.iter().map(String::as_str).chain(more.iter().copied()).collect();
        done(root.path(), &args)
    };
    let with = |more: &[&str]| of(&dirs, more);
    let few = |more: &[&str]| of(&[dirs[0].clone(), dirs[14].clone()], more);

    // Every printed cell, and the star. Rounding half up gives every digit of the paper's table.
    let markdown = with(&["--format", "md"]);
    // Below it is the context coverage of the two with a star.
    let (first, below) = markdown.split_once("\n### ").unwrap();
    assert!(below.contains("tokens kept %") && below.matches("all but 1.0").count() == 2, "{below}");
    let rows: Vec<Vec<String>> = first
        .lines()
        .filter(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect())
        .collect();
    assert_eq!(
        rows[0],
        ["model", "T1 SR", "T1 PR", "T1 IPA", "T2 SR", "T2 PR", "T2 IPA", "overall", "errors", "cut"]
    );
    assert_eq!(rows.len(), 2 + TABLE_2.len());
    for (row, (model, truncated, cells, overall)) in rows[2..].iter().zip(&TABLE_2) {
        assert_eq!(row[0], format!("{model}{}", if *truncated { "\\*" } else { "" }));
        for (cell, percent) in row[1..=7].iter().zip(cells.iter().chain([overall])) {
            let printed = cell.split("<br>").next().unwrap();
            assert_eq!(printed, format!("{percent:.1}"), "{model}");
        }
        assert_eq!(row[8..], ["0", "0"]);
    }
    assert!(rows[2][1].starts_with("30.0<br>60/200<br>24.1 to 36.7"), "{}", rows[2][1]);
    assert!(
        markdown.contains("GPT-4o-mini in 1200 of 1200 answers; Llama-3.3-70B-Instruct in 1200"),
        "{markdown}"
    );

    // Unrounded: within the paper's rounding, and the counts that PROTOCOLS names.
    let json: Value = serde_json::from_str(&with(&["--format", "json"])).unwrap();
    for (row, (model, _, cells, overall)) in json["rows"].as_array().unwrap().iter().zip(&TABLE_2) {
        let table = &row["table"];
        for (cell, percent) in table["cells"].as_array().unwrap().iter().zip(cells) {
            assert!((100.0 * cell["accuracy"].as_f64().unwrap() - percent).abs() < 0.0501, "{model}");
        }
        let ours = 100.0 * table["overall"]["accuracy"].as_f64().unwrap();
        assert!((ours - overall).abs() < 0.0501, "{model}: {ours}");
        let [low, high] =
            ["low", "high"].map(|end| 100.0 * table["overall"]["interval"][end].as_f64().unwrap());
        assert!(low < ours && ours < high && high - low < 8.0, "{model}: {low} {ours} {high}");
    }
    let correct = |at: usize| json["rows"][at]["table"]["overall"]["correct"].as_u64().unwrap();
    assert_eq!([correct(14), correct(9), correct(4)], [816, 213, 662]);

    // One number per line for other tools.
    let csv = few(&["--format", "csv"]);
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let records: Vec<BTreeMap<String, String>> = reader.deserialize().map(Result::unwrap).collect();
    assert_eq!(records.len(), 2 * 7);
    let (last, number) = (&records[records.len() - 1], |text: &str| text.parse::<f64>().unwrap());
    assert_eq!((&*last["kind"], &*last["correct"], &*last["expected"]), ("overall", "816", "1200"));
    assert!((number(&last["accuracy"]) - 0.68).abs() < 1e-12 && number(&last["low"]) < 0.68);

    // A tabular: every row ends, and the groups are ruled.
    let latex = few(&["--format", "latex"]);
    assert!(latex.contains("\\multicolumn{3}{c}{T1} & \\multicolumn{3}{c}{T2}"), "{latex}");
    assert!(latex.contains("\\cmidrule(lr){2-4}\\cmidrule(lr){5-7}"), "{latex}");
    assert!(
        latex.contains("GPT-4o-mini* & 30.0 & 0.0 & 11.0 & 9.5 & 0.0 & 1.5 & 8.7 & 0 & 0 \\\\"),
        "{latex}"
    );
    let body = latex.split("\\toprule").nth(1).unwrap().split("\\bottomrule").next().unwrap();
    let of_cells = |line: &&str| !line.is_empty() && !line.starts_with('\\');
    assert!(
        body.lines().filter(of_cells).all(|line| line.ends_with("\\\\") && line.matches('&').count() >= 4)
    );

    let text = few(&[]);
    assert!(
        text.lines().any(|line| line
            .split_whitespace()
            .eq(["CUPMem", "91.0", "78.0", "32.0", "89.0", "75.0", "43.0", "68.0", "0", "0"])),
        "{text}"
    );
    assert!(text.contains(&format!("judge: {SHORT} (r)")), "{text}");
}

#[test]
fn a_broken_row_without_a_type_has_a_row_of_its_own_and_is_wrong_in_every_total_over_probes() {
    let root = tempfile::tempdir().unwrap();
    let whole = Run { rubric: None, ..Run::of("m", 3, vec![[1, 2, 0, 0, 1, 1], [1, 2, 3, 0, 1, 1]]) };
    whole.write(&root.path().join("run"));
    // A seventh row without a readable type.
    let mut plan = whole.plan();
    plan.push(PlannedCase {
        position: 6,
        case: "row-6".to_owned(),
        labels: BTreeMap::new(),
        broken: Some("torn".to_owned()),
        ..plan[5].clone()
    });
    let lines = plan.iter().map(|case| format!("{}\n", json!(case))).collect::<String>();
    std::fs::write(root.path().join("run/plan.jsonl"), lines).unwrap();

    let text = done(root.path(), &["run", "--condition", "plain"]);
    // 1 + 2 + 0 + 0 + 1 + 1 correct of 3 x 7; the mean of the six cells is 5/18.
    for part in
        ["5/21", "27.8", "0/1", "unreadable", "m (plain): 1 broken row has no readable `type` (unreadable)"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(text.matches("in no cell").count(), 1, "{text}");
    let csv = done(root.path(), &["run", "--condition", "plain", "--format", "csv"]);
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let records: Vec<BTreeMap<String, String>> = reader.deserialize().map(Result::unwrap).collect();
    let of = |kind: &str| records.iter().filter(|row| row["kind"] == kind).collect::<Vec<_>>();
    assert_eq!((of("T1").len(), of("T2").len(), of("unreadable").len()), (3, 3, 3));
    for row in of("unreadable") {
        assert_eq!(["correct", "expected", "accuracy"].map(|name| &*row[name]), ["0", "1", "0"]);
    }
    assert_eq!(["correct", "expected", "missing"].map(|name| &*of("overall")[0][name]), ["5", "21", "3"]);
    assert!((of("overall")[0]["accuracy"].parse::<f64>().unwrap() - 5.0 / 18.0).abs() < 1e-12);

    // The mean of cells, its interval and Holm's family use the readable rows only.
    let outcomes = |plan: &'static [PlannedCase], condition: usize| {
        let (answers, verdicts) = whole.rows(condition);
        let (answers, verdicts) = (Vec::leak(answers), Vec::leak(verdicts));
        let name = &whole.conditions()[condition].name;
        Outcomes::of(&STALE, &join(plan, name, &*answers, &*verdicts), JUDGE)
    };
    let (all, readable): (&[PlannedCase], &[PlannedCase]) =
        (Vec::leak(plan.clone()), Vec::leak(plan[..6].to_vec()));
    let (with, without) =
        (AccuracyTable::of(&outcomes(all, 0), "j"), AccuracyTable::of(&outcomes(readable, 0), "j"));
    assert_eq!(
        (with.overall.accuracy, with.overall.interval),
        (without.overall.accuracy, without.overall.interval)
    );
    assert_eq!((with.overall.cells, with.overall.complete), (6, true));
    assert_eq!((with.overall.expected, without.overall.expected), (21, 18));
    let compared = |plan| compare(&outcomes(plan, 0), &outcomes(plan, 1), ("a", "b"), false).unwrap();
    let (with, without) = (compared(all), compared(readable));
    assert_eq!(with.cells, without.cells);
    assert_eq!((with.overall.pairs, without.overall.pairs), (21, 18));
    assert_eq!(
        (with.overall.difference, with.overall.interval),
        (without.overall.difference, without.overall.interval)
    );
    let spread = repeats(&[outcomes(all, 0), outcomes(all, 1)]);
    let kinds: Vec<Option<&str>> = spread.iter().map(|row| row.kind.as_deref()).collect();
    assert_eq!(kinds, [Some("T1"), Some("T2"), Some("unreadable"), None]);
    assert_eq!((spread[2].overall.mean, spread[3].overall.mean), (0.0, (5.0 / 18.0 + 8.0 / 18.0) / 2.0));
}

#[test]
fn table_6_is_that_of_the_paper_from_counts_of_five_calls() {
    let root = tempfile::tempdir().unwrap();
    for (dir, rows) in [("a", &TABLE_6[..2]), ("b", &TABLE_6[2..])] {
        let right = |call: usize| {
            let of = |row: usize| rows[row].3.map(|counts| counts[call]);
            [of(0), of(1)].concat().try_into().unwrap()
        };
        Run::of(rows[0].0, 20, (0..5).map(right).collect()).write(&root.path().join(dir));
    }
    let text = done(root.path(), &["a", "b", "--repeats"]);
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["model", "type", "SR", "PR", "IPA", "overall", "calls", "errors", "cut"]);
    for (model, kind, printed, _) in TABLE_6 {
        let expected: Vec<&str> = [model, kind].into_iter().chain(printed).chain(["5", "0", "0"]).collect();
        assert!(lines.contains(&expected), "{expected:?} is not in\n{text}");
    }
    // Without the flag, one row per repetition.
    let csv = done(root.path(), &["a", "--format", "csv"]);
    assert_eq!(csv.lines().count(), 1 + 5 * 7);
    assert!(csv.contains("Gemini-3.1-flash-lite (repeat-5),"), "{csv}");
    let one = done(root.path(), &["a", "--format", "csv", "--condition", "repeat-2"]);
    assert_eq!(one.lines().count(), 1 + 7);
    // Mean and standard deviation, unrounded.
    let csv = done(root.path(), &["b", "--repeats", "--format", "csv"]);
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let records: Vec<BTreeMap<String, String>> = reader.deserialize().map(Result::unwrap).collect();
    let pr = records.iter().find(|r| r["kind"] == "T1" && r["dimension"] == "PR").unwrap();
    // numpy.std([.05, 0, 0, 0, .1], ddof=1)
    assert!((pr["sd"].parse::<f64>().unwrap() - 0.044_721_359_549_995_79).abs() < 1e-9, "{pr:?}");
    assert!((pr["mean"].parse::<f64>().unwrap() - 0.03).abs() < 1e-9);
    let json: Value =
        serde_json::from_str(&done(root.path(), &["b", "--repeats", "--format", "json"])).unwrap();
    // Over both types: the mean of six cells each time.
    let all =
        json["rows"][0]["repeats"].as_array().unwrap().iter().find(|row| row["kind"].is_null()).unwrap();
    assert!((all["overall"]["mean"].as_f64().unwrap() - (0.19 + 0.25 / 3.0) / 2.0).abs() < 1e-9, "{all}");
}

#[test]
fn errors_count_as_wrong_and_are_shown_and_what_is_no_result_has_no_percentages() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let half = || vec![[5, 1, 3, 2, 0, 1]];
    Run::of("broken", 10, half()).write_with(&at("broken"), |answers, verdicts| {
        // A correct answer that failed when repeated, a missing one, and two without a verdict.
        let right = answers.iter_mut().find(|row| row.case == "T1-000" && row.probe == "SR").unwrap();
        (right.answer, right.error) = (None, Some("no memory".to_owned()));
        answers.retain(|row| !(row.case == "T1-001" && row.probe == "SR"));
        verdicts.retain(|row| row.case != "T2-009" || row.probe == "SR");
    });
    Run { judge: None, ..Run::of("unjudged", 10, half()) }.write(&at("unjudged"));
    Run { judge: Some("local:smollm2-135m"), ..Run::of("small", 10, half()) }.write(&at("small"));
    // Its ability is unknown.
    Run { judge: Some("http://host/v1#judge"), ..Run::of("constant", 10, vec![[0; 6]]) }
        .write(&at("constant"));
    let text = done(root.path(), &["broken", "unjudged", "small", "constant"]);
    let line = |name: &str| {
        text.lines().find(|line| line.starts_with(name)).unwrap().split_whitespace().collect::<Vec<_>>()
    };
    assert_eq!(
        line("broken")[1..],
        [SHORT, "(r)", "30.0", "10.0", "30.0", "20.0", "0.0", "10.0", "16.7", "1", "3", "0"]
    );
    assert_eq!(
        text.lines().nth(1).unwrap().split_whitespace().rev().take(3).collect::<Vec<_>>(),
        ["cut", "errors", "missing"]
    );
    assert!(text.contains("3/10"), "{text}");
    let noted =
        |count: &str| text.lines().filter(|line| line.starts_with(&format!("broken: {count} of 60"))).count();
    assert_eq!([noted("1"), noted("2")], [2, 1], "{text}");
    let reported = palimpsest(["report", at("broken").to_str().unwrap()]);
    assert_eq!(reported.code, Some(0), "{}", reported.err);
    let page = std::fs::read_to_string(at("broken/report.html")).unwrap();
    assert!(
        page.contains("58 of 60 questions were answered; 1 failed")
            && page.contains("; 1 is missing: not asked yet")
    );
    assert_eq!(line("unjudged")[1..], ["-", "-", "-", "-", "-", "-", "-", "no", "verdicts", "0", "0", "0"]);
    assert!(text.contains("palimpsest judge ") && text.contains("about 135 million parameters"), "{text}");
    assert_eq!(line("small")[3..], ["-", "-", "-", "-", "-", "-", "no", "result", "0", "0", "0"]);
    // All answers wrong is a result, shown with the judge's known ability.
    assert_eq!(line("constant")[3..], ["0.0", "0.0", "0.0", "0.0", "0.0", "0.0", "0.0!", "0", "0", "0"]);
    assert!(
        text.contains("! constant: http://host/v1#judge calls all 60 answers wrong, and its name"),
        "{text}"
    );
    assert_eq!(text.matches("answers wrong").count(), 1, "{text}");
    let csv = done(root.path(), &["constant", "--format", "csv"]);
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let records: Vec<BTreeMap<String, String>> = reader.deserialize().map(Result::unwrap).collect();
    let of = |record: &BTreeMap<String, String>| {
        (
            record["accuracy"] == "0",
            record["warning"].contains("all 60 answers wrong"),
            record["no_result"].is_empty(),
        )
    };
    assert!(records.len() == 7 && records.iter().all(|record| of(record) == (true, true, true)), "{csv}");
    // Two of them are compared like any others.
    Run { judge: Some("http://host/v1#judge"), ..Run::of("other", 10, half()) }.write(&at("other"));
    let compared = done(root.path(), &["constant", "other", "--compare"]);
    assert!(compared.contains("first: constant; second: other"), "{compared}");
    for format in ["md", "csv", "json", "latex"] {
        let text = done(root.path(), &["small", "--format", format]);
        assert!(!text.contains("0.5") && !text.contains("50.0"), "{text}");
    }
}
