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
        Condition::beside(&[Condition::PLAIN], &[], self.right.len() as u32)
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
    assert!(
        below.starts_with("What the contexts held") && below.matches("all but 1.0").count() == 2,
        "{below}"
    );
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
    assert!(text.contains("but are in none of the cells whose mean is the overall"), "{text}");
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
    for said in [
        "3/10",
        "broken: 1 of 60 probes are missing, which were not asked yet: the run is not finished",
        "broken: 1 of 60 probes ended in an error instead of an answer; they count as wrong",
        "broken: 2 of 60 probes have an answer and no verdict; they count as wrong",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let reported = palimpsest(["report", at("broken").to_str().unwrap()]);
    assert_eq!(reported.code, Some(0), "{}", reported.err);
    let page = std::fs::read_to_string(at("broken/report.html")).unwrap();
    assert!(
        page.contains("58 of 60 probes were answered; 1 failed")
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

#[test]
fn two_runs_are_compared_on_the_same_questions_alone() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let first = Run::of("first", 20, vec![[15, 2, 9, 10, 0, 5]]);
    let second = Run::of("http://host/v1#second", 20, vec![[6, 2, 12, 4, 0, 5]]);
    first.write(&at("first"));
    second.write(&at("second"));
    let json: Value =
        serde_json::from_str(&done(root.path(), &["first", "second", "--compare", "--format", "json"]))
            .unwrap();
    let comparison = &json["comparison"];
    assert_eq!((&comparison["first"], &comparison["second"]), (&json!("first"), &json!("second")));
    // The first cases are the correct ones, so the smaller set is a subset of the larger.
    let cells = comparison["cells"].as_array().unwrap();
    let tests: Vec<_> =
        cells.iter().map(|c| (c["test"]["b"].as_u64().unwrap(), c["test"]["c"].as_u64().unwrap())).collect();
    assert_eq!(tests, [(9, 0), (0, 0), (0, 3), (6, 0), (0, 0), (0, 0)]);
    let numbers = |name: &str| cells.iter().map(|c| c["test"][name].as_f64().unwrap()).collect::<Vec<_>>();
    // 2 / 2^9, 1, 2 / 2^3, 2 / 2^6, 1, 1; Holm over six: times 6, then 5, then 4.
    for (ours, expected) in numbers("p").iter().zip([2.0 / 512.0, 1.0, 0.25, 2.0 / 64.0, 1.0, 1.0]) {
        assert!((ours - expected).abs() < 1e-9, "{ours} {expected}");
    }
    for (ours, expected) in numbers("p_holm").iter().zip([12.0 / 512.0, 1.0, 1.0, 10.0 / 64.0, 1.0, 1.0]) {
        assert!((ours - expected).abs() < 1e-9, "{ours} {expected}");
    }
    let overall = &comparison["overall"];
    assert_eq!(
        (&overall["test"]["b"], &overall["test"]["c"], &overall["pairs"]),
        (&json!(15), &json!(3), &json!(120))
    );
    // 2 (1 + 18 + 153 + 816) / 2^18
    assert!((overall["test"]["p"].as_f64().unwrap() - 1976.0 / 262_144.0).abs() < 1e-9);
    assert!((overall["difference"].as_f64().unwrap() - 0.1).abs() < 1e-9);
    assert!(overall["test"]["p_holm"].is_null());
    // T1 SR differs in 9 of 20 cases, always by one; with one more difference either way the mean is 9/22 and the sum of squares 11.
    let interval = |of: &Value| ["low", "high"].map(|end| of["interval"][end].as_f64().unwrap());
    let [low, high] = interval(&cells[0]);
    let adjusted = |sum: f64, squares: f64| {
        let mean = sum / 22.0;
        (mean, 2.079_613_845 * ((squares - 22.0 * mean * mean) / 21.0 / 22.0).sqrt())
    };
    let (mean, half) = adjusted(9.0, 11.0);
    assert!((low - (mean - half)).abs() < 1e-9 && (high - (mean + half)).abs() < 1e-9, "{low} {high}");
    // No case differs, which does not prove that none would.
    let (_, half) = adjusted(0.0, 2.0);
    let [low, high] = interval(&cells[1]);
    assert!((low + half).abs() < 1e-9 && (high - half).abs() < 1e-9 && high > 0.1, "{low} {high}");
    // Swapping the runs flips every sign.
    let text = done(root.path(), &["second", "first", "--compare"]);
    let line = |name: &str| {
        text.lines().find(|line| line.starts_with(name)).unwrap().split_whitespace().collect::<Vec<_>>()
    };
    assert_eq!(line("T1 SR")[2..6], ["20", "30.0", "75.0", "-45.0"]);
    assert_eq!(line("T1 SR")[9..], ["0", "9", "0.0039", "0.0234"]);
    assert_eq!(line("overall ")[1..5], ["120", "24.2", "34.2", "-10.0"]);
    assert!(text.contains("exact McNemar") && text.contains("Holm over the cells"), "{text}");

    // A run with fewer cases.
    Run::of("short", 19, vec![[6, 2, 12, 4, 0, 5]]).write(&at("short"));
    let differs = refused(root.path(), &["first", "short", "--compare"]);
    assert!(
        differs.contains("6 in first alone (T1-019/SR, T1-019/PR, T1-019/IPA, ...)")
            && differs.contains("--common"),
        "{differs}"
    );
    let common = done(root.path(), &["first", "short", "--compare", "--common"]);
    assert!(
        common.contains("left out: 6 questions of the first alone, 0 of the second")
            && common.contains("same 114"),
        "{common}"
    );

    // Incomparable runs are rejected by name.
    Run { judge: Some("http://host/v1#other"), ..Run::of("other", 20, vec![[6, 2, 12, 4, 0, 5]]) }
        .write(&at("other"));
    Run { rubric: None, ..Run::of("old", 20, vec![[6, 2, 12, 4, 0, 5]]) }.write(&at("old"));
    Run { judge: None, ..Run::of("none", 20, vec![[0; 6]]) }.write(&at("none"));
    Run { judge: Some("local:tiny-0.5b"), ..Run::of("same", 20, vec![[0; 6]]) }.write(&at("same"));
    Run::of("five", 20, vec![[1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1]]).write(&at("five"));
    for (args, expected) in [
        (&["first", "other", "--compare"][..], "needs one judge and rubric for both"),
        (&["first", "old", "--compare"], "needs one judge and rubric for both"),
        (&["first", "none", "--compare"], "no verdicts to compare"),
        (&["first", "same", "--compare"], "cannot be compared: local:tiny-0.5b has about 500 million"),
        (&["first", "--compare"], "takes two rows, and these folders have 1"),
        (&["first", "second", "other", "--compare"], "takes two rows, and these folders have 3"),
        (&["first", "five", "--compare"], "takes two rows, and these folders have 3"),
        (&["first", "first"], "given twice"),
        (&["first", "--repeats"], "has no repetitions"),
        (&["first", "--judge", "nobody"], "holds no verdict of judge `nobody`; its judges are: http"),
        (&["first", "--rubric", "s"], "holds no verdict of judge by the rubric `s`; its judges are: http"),
        (&["first", "--condition", "repeat-7"], "no condition `repeat-7`"),
        (&["first", "no/such/folder"], "no/such/folder is no run folder"),
    ] {
        let error = refused(root.path(), args);
        assert!(error.contains(expected), "{args:?}: {error}");
    }
    // Two conditions of one run are two rows.
    let two = done(root.path(), &["five", "--compare"]);
    assert!(two.contains("first: five (plain); second: five (repeat-2)"), "{two}");
    // Rows with equal names show their folder.
    Run::of("first", 20, vec![[6, 2, 12, 4, 0, 5]]).write(&at("again"));
    let text = done(root.path(), &["first", "again"]);
    assert!(text.contains("first [") && text.contains("/again]"), "{text}");
}

/// Truncated answers and thoughts appear in every format of every table.
#[test]
fn answers_that_were_cut_are_counted_in_every_table() {
    use palimpsest::chat::StopReason;
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let cut = |answers: &mut Vec<AnswerRow>| {
        for row in answers.iter_mut().filter(|row| row.probe == "IPA" && row.case.starts_with("T1")) {
            row.stop = Some(StopReason::MaxNewTokens);
        }
        let thought = answers.iter_mut().find(|row| row.probe == "SR").unwrap();
        *thought = AnswerRow {
            answer: None,
            error: Some("the budget for thinking ended".to_owned()),
            cut: true,
            ..thought.clone()
        };
    };
    Run::of("cut", 10, vec![[5, 1, 3, 2, 0, 1]]).write_with(&at("cut"), |answers, _| cut(answers));
    Run::of("whole", 10, vec![[5, 1, 3, 2, 0, 1]]).write(&at("whole"));
    let said = "cut: 10 of 59 answers were cut at the limit of new tokens; 1 without an answer ended inside a thought";
    let text = done(root.path(), &["cut", "whole"]);
    let last = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().last().unwrap().to_owned()
    };
    assert_eq!((last("cut"), last("whole")), ("10".to_owned(), "0".to_owned()));
    assert!(text.contains(said) && !text.contains("whole: "), "{text}");
    let json: Value = serde_json::from_str(&done(root.path(), &["cut", "--format", "json"])).unwrap();
    assert_eq!((&json["rows"][0]["cut"], &json["rows"][0]["cut_thoughts"]), (&json!(10), &json!(1)));
    let csv = done(root.path(), &["cut", "--format", "csv"]);
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let records: Vec<BTreeMap<String, String>> = reader.deserialize().map(Result::unwrap).collect();
    assert!(records.iter().all(|record| record["cut"] == "10"), "{csv}");
    // Over repetitions too.
    Run::of("five", 10, vec![[5, 1, 3, 2, 0, 1]; 2]).write_with(&at("five"), |answers, _| cut(answers));
    let text = done(root.path(), &["five", "--repeats"]);
    assert!(text.contains("five: 20 of 119 answers were cut"), "{text}");
}

/// Not specific to one benchmark: scores, dimensions that are facets, an overall number over all probes.
#[test]
fn tables_of_any_benchmark_are_made_by_its_trait() {
    let probe = |id: &str, about: &str| PlannedProbe {
        id: id.to_owned(),
        query: format!("{id}?"),
        facets: BTreeMap::from([("about".to_owned(), about.to_owned())]),
        ..PlannedProbe::default()
    };
    let case = |position: usize, id: &str, ship: &str, probes: Vec<PlannedProbe>| PlannedCase {
        position,
        case: id.to_owned(),
        labels: BTreeMap::from([("ship".to_owned(), ship.to_owned())]),
        probes,
        evidence: Vec::new(),
        judge: Notes::default(),
        broken: None,
    };
    let plan = [
        case(0, "a", "Pequod", vec![probe("q1", "place"), probe("q2", "place"), probe("q3", "oil")]),
        case(1, "b", "Pequod", vec![probe("q1", "place")]),
        case(2, "c", "Rachel", vec![probe("q1", "oil")]),
    ];
    let rows = |scores: [u32; 5]| {
        let keys = [("a", "q1"), ("a", "q2"), ("a", "q3"), ("b", "q1"), ("c", "q1")];
        let of = |((case, probe), score): ((&str, &str), u32)| {
            let answer = json!({"case": case, "probe": probe, "labels": {}, "query": "", "answer": "x", "dropped_sessions": []});
            let (case, probe) = (case.to_owned(), probe.to_owned());
            let verdict = VerdictRow {
                case,
                probe,
                judge: "j".to_owned(),
                score: Some(f64::from(score)),
                ..VerdictRow::default()
            };
            (serde_json::from_value::<AnswerRow>(answer).unwrap(), verdict)
        };
        keys.into_iter().zip(scores).map(of).unzip::<_, _, Vec<_>, Vec<_>>()
    };
    let (answers, verdicts) = rows([2, 1, 0, 2, 1]);
    let first = Outcomes::of(&LOGBOOK, &join(&plan, "", &answers, &verdicts), "j");
    let table = AccuracyTable::of(&first, "j");
    let cells: Vec<_> =
        table.cells.iter().map(|c| (&*c.kind, &*c.dimension, c.counts.worth, c.counts.expected)).collect();
    assert_eq!(cells, [("Pequod", "place", 2.5, 3), ("Pequod", "oil", 0.0, 1), ("Rachel", "oil", 0.5, 1)]);
    assert_eq!((table.most, table.overall.accuracy), (Some(2), Some(0.6)));

    let (answers, verdicts) = rows([0, 1, 0, 2, 2]);
    let second = Outcomes::of(&LOGBOOK, &join(&plan, "", &answers, &verdicts), "j");
    let compared = compare(&first, &second, ("one", "other"), false).unwrap();
    let cells: Vec<_> = compared.cells.iter().map(|c| (c.pairs, c.difference, c.test)).collect();
    assert_eq!(cells.len(), 3);
    for ((pairs, difference, test), expected) in cells.iter().zip([(3, 1.0 / 3.0), (1, 0.0), (1, -0.5)]) {
        assert!(
            *pairs == expected.0 && (difference - expected.1).abs() < 1e-9 && test.is_none(),
            "{compared:?}"
        );
    }
    assert!((compared.overall.difference - 0.1).abs() < 1e-9);
    assert_eq!(compared.cells[1].interval, None, "of one case");

    let rows = repeats(&[first.clone(), second.clone()]);
    let overall: Vec<_> = rows.iter().map(|row| (row.kind.as_deref(), row.overall.mean)).collect();
    for ((kind, mean), expected) in
        overall.iter().zip([(Some("Pequod"), 0.5), (Some("Rachel"), 0.75), (None, 0.55)])
    {
        assert!(*kind == expected.0 && (mean - expected.1).abs() < 1e-9, "{overall:?}");
    }

    // Another question under the same id, and nothing in common.
    let mut other = plan.clone();
    other[0].probes[0].query = "another?".to_owned();
    let changed = Outcomes::of(&LOGBOOK, &join(&other, "", &answers, &verdicts), "j");
    let error = compare(&first, &changed, ("one", "other"), true).unwrap_err();
    assert!(
        matches!(&error, CompareError::Query { case, probe, .. } if case == "a" && probe == "q1"),
        "{error}"
    );
    let nothing = Outcomes::of(&LOGBOOK, &join(&[], "", &answers, &verdicts), "j");
    assert!(matches!(compare(&first, &nothing, ("one", "other"), true), Err(CompareError::Nothing { .. })));
}

#[test]
fn a_sample_is_the_same_for_every_order_filter_and_shard_and_moves_with_its_seed_alone() {
    let plan = Run::of("m", 200, vec![[0; 6]]).plan();
    let all_of = Selection::of_all(&STALE);
    let sample = |cases, seed| Selection { sample: Some(CaseSample { cases, seed }), ..all_of.clone() };
    let ids = |selection: &Selection, all: &[PlannedCase]| -> Vec<String> {
        selection.of(all.to_vec()).unwrap().into_iter().map(|case| case.case).collect()
    };
    let twenty = ids(&sample(20, 0), &plan);
    assert_eq!(twenty.iter().filter(|id| id.starts_with("T1")).count(), 20);
    assert_eq!(twenty.len(), 40);
    // In file order, and spread over the file.
    assert!(twenty.is_sorted());
    assert!(plan[..20].iter().zip(&twenty).any(|(case, drawn)| case.case != *drawn), "{twenty:?}");
    let mut reversed = plan.clone();
    reversed.reverse();
    let mut other_way = ids(&sample(20, 0), &reversed);
    other_way.reverse();
    assert_eq!(other_way, twenty);
    // A smaller sample is a subset; another seed gives another one.
    assert!(ids(&sample(5, 0), &plan).iter().all(|id| twenty.contains(id)));
    assert_ne!(ids(&sample(20, 1), &plan), twenty);
    // Filters and shards apply to the sampled cases.
    let only = Selection { only: Some("T1/PR".to_owned()), ..sample(20, 0) };
    assert_eq!(ids(&only, &plan), twenty[..20]);
    let shards: Vec<String> = (0..3)
        .flat_map(|index| ids(&Selection { shard: Some(Shard { index, count: 3 }), ..sample(20, 0) }, &plan))
        .collect();
    assert_eq!(shards.iter().collect::<std::collections::BTreeSet<_>>().len(), 40);
    // More than exist.
    let error = sample(201, 0).of(plan).unwrap_err();
    assert_eq!(error.to_string(), "--sample 201: type T1 has 200 cases in this dataset; give at most 200");
    assert_eq!(STALE.split, "type");
}
