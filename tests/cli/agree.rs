//! Human agreement: the drawn items, the raters' page, the scores.
use palimpsest::agreement::key::Key;
use palimpsest::benchmarks::stale::STALE;
use palimpsest::judge::Instructions;
use palimpsest::runs::condition::Condition;
use palimpsest::runs::header::RunHeader;
use palimpsest::runs::plan::Selection;
use palimpsest::runs::rows::{AnswerRow, VerdictRow};

use super::*;
use crate::eval::{cases, header};

pub const JUDGE: &str = "http://127.0.0.1:8000/v1#judge-70b";

/// A run of `model` with `count` answered cases, half of each type. Some answers are not plain text.
pub fn answered(dir: &Path, model: &str, count: usize) {
    answered_under(dir, model, count, &[]);
}

/// Same under these conditions; under the plain one if empty.
pub fn answered_under(dir: &Path, model: &str, count: usize, conditions: &[&str]) {
    let cases = cases(count);
    let mut identity = header(None).identity;
    identity.model.name = model.to_owned();
    let named = |name: &&str| Condition { name: (*name).to_owned(), ..Condition::PLAIN };
    identity.conditions = conditions.iter().map(named).collect();
    let names = if conditions.is_empty() { &[""] } else { conditions };
    let header =
        RunHeader { machine: header(None).machine, ..RunHeader::new(identity, None, Default::default()) };
    let plan = Selection::of_all(&STALE).plan(&cases).unwrap();
    drop(RunStore::open_or_create(dir, &header, plan.clone()).unwrap());
    let mut rows = String::new();
    for case in plan {
        for (probe, condition) in
            case.probes.iter().flat_map(|probe| names.iter().map(move |name| (probe, name)))
        {
            let row = AnswerRow {
                case: case.case.clone(),
                probe: probe.id.clone(),
                condition: (*condition).to_owned(),
                labels: case.labels.clone(),
                query: probe.query.clone(),
                answer: Some(format!("- </script> \"é\" of {}/{}, said:\nline two", case.case, probe.id)),
                stop: Some(palimpsest::chat::StopReason::EndOfTurn),
                prompt_tokens: Some(100),
                completion_tokens: Some(9),
                dropped_sessions: vec![2, 3],
                ..AnswerRow::default()
            };
            rows += &format!("{}\n", serde_json::to_string(&row).unwrap());
        }
    }
    std::fs::write(dir.join("answers.jsonl"), rows).unwrap();
}

/// A verdict by the current rubric.
pub fn verdict(case: &str, probe: &str, correct: Option<bool>) -> VerdictRow {
    VerdictRow {
        case: case.to_owned(),
        probe: probe.to_owned(),
        judge: JUDGE.to_owned(),
        rubric: Some(Instructions::from(&STALE.rubric()).digest()),
        rubric_name: Some("released".to_owned()),
        correct,
        reason: correct.map(|_| "it says so".to_owned()),
        error: correct.is_none().then(|| "unreadable".to_owned()),
        ..VerdictRow::default()
    }
}

pub fn write_rows<T: serde::Serialize>(path: &Path, rows: &[T]) {
    let lines: String = rows.iter().map(|row| serde_json::to_string(row).unwrap() + "\n").collect();
    std::fs::write(path, lines).unwrap();
}

fn read_csv(path: &Path) -> (csv::StringRecord, Vec<csv::StringRecord>) {
    let text = std::fs::read_to_string(path).unwrap();
    let text = text.strip_prefix('\u{feff}').unwrap();
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    (reader.headers().unwrap().clone(), reader.records().map(Result::unwrap).collect())
}

/// A folder with two runs and a sheet of `per_cell` items per cell.
struct Desk {
    root: tempfile::TempDir,
}

impl Desk {
    fn new(cases: usize, per_cell: usize) -> Self {
        let desk = Desk { root: tempfile::tempdir().unwrap() };
        answered(&desk.at("gemini"), "Gemini-3.1-pro", cases);
        answered(&desk.at("gpt"), "GPT-5.4", cases);
        let done = desk.draw("sheet", per_cell, 0);
        assert_eq!(done.code, Some(0), "{}", done.err);
        desk
    }

    fn at(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn draw(&self, out: &str, per_cell: usize, seed: u64) -> Ended {
        let mut command = command(["agree", "draw"]);
        command.arg(self.at("gemini")).arg(self.at("gpt")).arg("--out").arg(self.at(out));
        command.args(["--per-cell", &per_cell.to_string(), "--seed", &seed.to_string()]);
        ended(command)
    }

    fn key(&self) -> Key {
        Key::read(&self.at("sheet")).unwrap()
    }

    fn score(&self, ratings: &[&str], more: &[&str]) -> Ended {
        let mut command = command(["agree", "score"]);
        command.arg(self.at("sheet")).args(more);
        for ratings in ratings {
            command.arg("--ratings").arg(self.at(ratings));
        }
        ended(command)
    }

    /// Writes a verdict for every drawn answer.
    fn judge(&self, verdict_of: impl Fn(usize, &palimpsest::agreement::key::KeyItem) -> Option<bool>) {
        let key = self.key();
        for (run, name) in ["gemini", "gpt"].iter().enumerate() {
            let own = key.items.iter().enumerate().filter(|(_, item)| item.run == run);
            let rows: Vec<VerdictRow> =
                own.map(|(at, item)| verdict(&item.case, &item.probe, verdict_of(at, item))).collect();
            write_rows(&self.at(name).join("verdicts.jsonl"), &rows);
            write_rows(&self.at(name).join("rubrics.jsonl"), &[Instructions::from(&STALE.rubric()).row()]);
        }
    }

    /// Writes a rated sheet.
    fn rate(&self, name: &str, rating_of: impl Fn(usize) -> &'static str) {
        let key = self.key();
        let rows =
            key.items.iter().enumerate().map(|(at, item)| format!("{};{}\r\n", item.item, rating_of(at)));
        std::fs::write(self.at(name), format!("\u{feff}Item;Rating\r\n{};\r\n", rows.collect::<String>()))
            .unwrap();
    }
}

#[test]
fn a_sheet_has_each_case_whole_and_names_neither_model_nor_verdict() {
    let desk = Desk::new(10, 4);
    desk.judge(|_, _| Some(true));
    let key = desk.key();
    assert_eq!(key.items.len(), 2 * 2 * 4 * 3);
    let mut cells: BTreeMap<(usize, &str), BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for item in &key.items {
        let cases = cells.entry((item.run, &item.split)).or_default();
        cases.entry(&item.case).or_default().push(&item.probe);
    }
    for (cell, cases) in &cells {
        assert_eq!(cases.len(), 4, "{cell:?}");
        assert!(cases.values().all(|probes| probes.len() == 3), "{cell:?}: {cases:?}");
    }
    // Items are shuffled across cases and runs.
    assert!(key.items.windows(3).any(|w| w[0].run != w[1].run && w[0].case != w[1].case));

    let (head, rows) = read_csv(&desk.at("sheet/sheet.csv"));
    let names = [
        "item",
        "rating",
        "comment",
        "query",
        "answer",
        "note_old",
        "note_new",
        "note_explanation",
        "rubric",
        "condition",
    ];
    assert_eq!(head, names.to_vec());
    assert_eq!(rows.len(), key.items.len());
    for (row, item) in rows.iter().zip(&key.items) {
        let number = item.case.strip_prefix("case-").unwrap();
        assert_eq!((&row[0], &row[1], &row[2]), (item.item.as_str(), "", ""));
        assert_eq!(&row[3], format!("{} question {number}?", item.probe));
        // A spreadsheet would evaluate a text that begins with a hyphen.
        assert_eq!(&row[4], format!("'- </script> \"é\" of {}/{}, said:\nline two", item.case, item.probe));
        assert_eq!(&row[5], format!("old {number}"));
        assert!(row[8].contains(&row[3]) && row[8].contains(&row[5]) && row[8].contains("You judge"));
    }
    let page = std::fs::read_to_string(desk.at("sheet/sheet.html")).unwrap();
    let table = std::fs::read_to_string(desk.at("sheet/sheet.csv")).unwrap();
    for text in [&page, &table] {
        for secret in ["Gemini", "GPT", "judge-70b", "it says so", "gemini", "sha256"] {
            assert!(!text.contains(secret), "{secret}");
        }
    }
    // Answers cannot escape their element, and the page makes no network requests.
    assert_eq!(page.matches("</script>").count(), 2);
    assert!(page.contains("default-src 'none'") && !page.contains("http://") && !page.contains("https://"));
    let data = page.split_once("type=\"application/json\">").unwrap().1.split_once("</script>").unwrap().0;
    let data: serde_json::Value = serde_json::from_str(data).unwrap();
    assert_eq!(data["items"][0]["item"], key.items[0].item.as_str());
    assert_eq!(data["items"][0]["notes"][0][0], "old");

    // The same seed draws the same items, another seed other ones; existing sheets are not overwritten.
    assert_eq!((desk.draw("again", 4, 0).code, desk.draw("other", 4, 1).code), (Some(0), Some(0)));
    assert_same_files(&desk.at("sheet"), &desk.at("again"));
    let other = Key::read(&desk.at("other")).unwrap();
    assert_ne!(key.sheet, other.sheet);
    let cases = |key: &Key| {
        key.items.iter().map(|i| (i.run, i.case.clone())).collect::<std::collections::BTreeSet<_>>()
    };
    assert_ne!(cases(&key), cases(&other));
    let refused = desk.draw("sheet", 4, 0);
    assert!(refused.code == Some(1) && refused.err.contains("holds a sheet already"), "{}", refused.err);
}

/// (TP, FP, FN, TN) of each model, type and probe, twenty answers each: one solution of the sums printed in table 7, found with
/// `scipy.optimize.milp` over the margins of PROTOCOLS: by probe (51, 1, 0, 28), (13, 1, 1, 65), (35, 0, 7, 38), by type (56, 1, 3, 60),
/// (43, 1, 5, 71), by model (79, 1, 3, 37), (20, 1, 5, 94).
const TABLE_7: [[[[usize; 4]; 3]; 2]; 2] = [
    [[[19, 1, 0, 0], [6, 0, 0, 14], [18, 0, 0, 2]], [[19, 0, 0, 1], [0, 0, 0, 20], [17, 0, 3, 0]]],
    [[[13, 0, 0, 7], [0, 0, 1, 19], [0, 0, 2, 18]], [[0, 0, 0, 20], [7, 1, 0, 12], [0, 0, 2, 18]]],
];

/// Rater and judge labels of each item that give the counts of table 7.
fn table_7(key: &Key) -> Vec<(bool, bool)> {
    let mut left = TABLE_7;
    let place = |of: &[&str], name: &str| of.iter().position(|own| *own == name).unwrap();
    let pair = |item: &palimpsest::agreement::key::KeyItem| {
        let cell = &mut left[item.run][place(&["T1", "T2"], &item.split)]
            [place(&["SR", "PR", "IPA"], &item.dimension)];
        let at = cell.iter().position(|n| *n > 0).unwrap();
        cell[at] -= 1;
        [(true, true), (false, true), (true, false), (false, false)][at]
    };
    key.items.iter().map(pair).collect()
}

#[test]
fn a_draw_of_two_models_rated_and_judged_as_in_the_paper_prints_its_table_7() {
    // Three cases of each type are not drawn.
    let desk = Desk::new(46, 20);
    let key = desk.key();
    assert_eq!(key.items.len(), 240);
    let pairs = table_7(&key);
    desk.judge(|at, _| Some(pairs[at].1));
    desk.rate("ratings.csv", |at| if pairs[at].0 { "Correct" } else { "i" });
    let scored = desk.score(&["ratings.csv"], &["--judge", JUDGE]);
    assert_eq!(scored.code, Some(0), "{}", scored.err);
    // Table 7 as printed; agreement and kappa of the models' rows are from the text of E.3, the rest follows from the counts.
    let printed = "\
subset            N  agree.   kappa   prec.  recall     F1   FPR    FNR
Overall         240   95.83  0.9152   98.02   92.52  95.19  1.50   7.48
SR               80   98.75  0.9728   98.08  100.00  99.03  3.45   0.00
PR               80   97.50  0.9134   92.86   92.86  92.86  1.52   7.14
IPA              80   91.25  0.8261  100.00   83.33  90.91  0.00  16.67
T1              120   96.67  0.9333   98.25   94.92  96.55  1.64   5.08
T2              120   95.00  0.8944   97.73   89.58  93.48  1.39  10.42
Gemini-3.1-pro  120   96.67  0.9241   98.75   96.34  97.53  2.63   3.66
GPT-5.4         120   95.00  0.8389   95.24   80.00  86.96  1.05  20.00
";
    let expected = format!(
        "judge: judge-70b (released, reasons last)\ncondition: plain\n\nratings.csv against the judge; in %, but for kappa\n\n{printed}"
    );
    assert_eq!(scored.out, expected);

    let json = desk.score(&["ratings.csv"], &["--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    let overall = &json["raters"][0]["subsets"][0];
    let counts =
        ["true_positive", "false_positive", "false_negative", "true_negative"].map(|n| overall[n].as_u64());
    assert_eq!(counts, [99, 2, 8, 131].map(Some));
    assert!((overall["kappa"].as_f64().unwrap() - 0.9152).abs() < 5e-5);
    let csv = desk.score(&["ratings.csv"], &["--format", "csv"]).out;
    let row = format!(
        "\"{JUDGE} (released, reasons last)\",plain,ratings.csv,type,T2,120,95.00,0.8944,97.73,89.58,93.48,1.39,10.42,43,1,5,71"
    );
    assert!(csv.lines().any(|line| line == row), "{csv}");
    let md = desk.score(&["ratings.csv"], &["--format", "md"]).out;
    assert!(md.contains("\n| IPA | 80 | 91.25 | 0.8261 | 100.00 | 83.33 | 90.91 | 0.00 | 16.67 |\n"), "{md}");
    let latex = desk.score(&["ratings.csv"], &["--format", "latex"]).out;
    assert!(
        latex.contains("\nPR & 80 & 97.50 & 0.9134 & 92.86 & 92.86 & 92.86 & 1.52 & 7.14 \\\\\n"),
        "{latex}"
    );
}

#[test]
fn what_is_not_rated_or_not_judged_is_counted_and_left_out() {
    let desk = Desk::new(10, 5);
    desk.judge(|at, _| (at > 0).then_some(at % 2 == 0));
    // Items 1 and 2 are unsure, 3, 4 and 5 unrated; every sixth of the rest disagrees with the judge.
    let agrees = |at: usize| if at.is_multiple_of(6) { at % 2 == 1 } else { at.is_multiple_of(2) };
    desk.rate("a.csv", |at| match at {
        1 | 2 => "unsure",
        3..=5 => "",
        at if agrees(at) => "correct",
        _ => "incorrect",
    });
    desk.rate("b.csv", |at| if at.is_multiple_of(2) { "c" } else { "I" });
    let scored = desk.score(&["a.csv", "b.csv"], &[]);
    assert_eq!(scored.code, Some(0), "{}", scored.err);
    let out = &scored.out;
    assert!(out.contains("1 of 60 items have no verdict of this judge and are left out"), "{out}");
    assert!(out.contains("a.csv against the judge (2 unsure and 3 not rated are left out)"), "{out}");
    // 60 items: one has no verdict, five have no rating; of the remaining 54, items 6, 12, ..., 54 disagree.
    let overall: Vec<&str> =
        out.lines().find(|line| line.starts_with("Overall")).unwrap().split_whitespace().collect();
    assert_eq!(overall[1..3], ["54", "83.33"]);
    // 60 - 5 are rated by both; item 0 and the nine differ.
    assert!(out.contains("a.csv and b.csv: agreement 81.82%, kappa") && out.contains("on 55 items"), "{out}");
    assert!(out.contains("\nb.csv against the judge; in %"), "{out}");
}

#[test]
fn the_files_of_the_page_are_read_and_wrong_ones_refused_by_name() {
    let desk = Desk::new(4, 2);
    let (key, file) = (desk.key(), desk.at("r.json"));
    let refused = |what: &str| {
        let ended = desk.score(&["r.json"], &[]);
        assert_eq!(ended.code, Some(1), "{}", ended.out);
        assert!(ended.err.contains(what), "{}", ended.err);
        assert_eq!(ended.err.trim_end().lines().count(), 1, "{}", ended.err);
    };
    let json = |sheet: &str, ratings: serde_json::Value| {
        let text =
            serde_json::json!({ "format": "palimpsest ratings 1", "sheet": sheet, "ratings": ratings });
        std::fs::write(&file, text.to_string()).unwrap();
    };
    let first = key.items[0].item.as_str();
    let rated =
        |item: &str, rating: &str| serde_json::json!({ "item": item, "rating": rating, "comment": "why" });
    json(&key.sheet, serde_json::json!([rated(first, "correct")]));
    refused("has no verdicts; judge it with `palimpsest judge`");
    desk.judge(|_, _| Some(true));
    let scored = desk.score(&["r.json"], &[]);
    assert!(
        scored.out.contains("0 unsure and 23 not rated") && scored.out.contains("100.00"),
        "{}{}",
        scored.out,
        scored.err
    );

    json(&key.sheet, serde_json::json!([rated(first, "correct"), rated(first, "correct")]));
    refused("ratings[1]: item `");
    json(&key.sheet, serde_json::json!([rated("s000000-001", "correct")]));
    refused("item `s000000-001` is not in the sheet");
    json(&key.sheet, serde_json::json!([rated(first, "maybe")]));
    refused("rating `maybe`: give correct, incorrect or unsure");
    json("s000000", serde_json::json!([]));
    refused("it rates the sheet s000000");
    std::fs::write(&file, "{\"format\": 1").unwrap();
    refused("it does not parse");
    std::fs::write(&file, "a,b\n1,2\n").unwrap();
    refused("it has no column `item`");
    std::fs::write(&file, format!("item,rating\n{first},c\n,\n{first},\n")).unwrap();
    refused("line 4: item `");
    // Several faults are told at once, by line; none of the file is used.
    let second = key.items[1].item.as_str();
    std::fs::write(&file, format!("item,rating\n{first},maybe\n{second},c\nx,c\n")).unwrap();
    let several = desk.score(&["r.json"], &[]);
    assert_eq!(several.code, Some(1), "{}", several.out);
    for words in [
        "2 rows cannot be read, and none is used: agreement without some",
        "\n  line 2: rating `maybe`: give",
        "\n  line 4: item `x` is not in the sheet",
    ] {
        assert!(several.err.contains(words), "{words}: {}", several.err);
    }
    std::fs::write(&file, b"item,rating\n\xff,c\n").unwrap();
    refused("it is not UTF-8");
    json(&key.sheet, serde_json::json!([]));
    let judge = desk.score(&["r.json"], &["--judge", "nobody"]);
    assert!(
        judge.err.contains("no verdict of the judge `nobody`") && judge.err.contains(JUDGE),
        "{}",
        judge.err
    );
}

#[test]
fn a_score_refuses_other_answers_other_rubrics_and_mixed_judges() {
    let desk = Desk::new(4, 2);
    desk.judge(|_, _| Some(true));
    desk.rate("r.csv", |_| "c");
    assert_eq!(desk.score(&["r.csv"], &[]).code, Some(0));
    let said = |name: &str, from: &str, to: &str, what: &str| {
        let path = desk.at(name);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{from}");
        std::fs::write(&path, text.replace(from, to)).unwrap();
        let ended = desk.score(&["r.csv"], &[]);
        assert!(ended.code == Some(1) && ended.err.contains(what), "{}{}", ended.out, ended.err);
        std::fs::write(&path, text).unwrap();
    };
    said("gpt/answers.jsonl", "line two", "line three", "is not the one that was rated");
    said(
        "gpt/rubrics.jsonl",
        &Instructions::from(&STALE.rubric()).criteria(),
        "another",
        "released that the raters read",
    );
    said("gpt/verdicts.jsonl", "judge-70b", "judge-8b", "choose one with --judge NAME");
    said("sheet/key.json", "palimpsest agreement 2", "palimpsest agreement 9", "its format is");
    said("sheet/key.json", "\"run\": 1", "\"run\": 7", "names run 7, and there are 2");
    let identity = desk.key().runs[1].identity_sha256.clone();
    said("sheet/key.json", &identity, "other", "is not the run that the sheet was drawn from");
    let nothing = palimpsest(["agree", "score", desk.at("gpt").to_str().unwrap(), "--ratings", "x"]);
    assert!(nothing.err.contains("give the folder that `palimpsest agree draw` wrote"), "{}", nothing.err);
}

#[test]
fn a_draw_refuses_small_cells_and_one_run_given_twice() {
    let desk = Desk::new(4, 2);
    let refused = desk.draw("more", 3, 0);
    assert!(
        refused.code == Some(1)
            && refused.err.contains("type T1 has 2 cases with all answers, and 3 are to be drawn")
            && refused.err.contains("--per-cell 2"),
        "{}",
        refused.err
    );
    let dir = desk.at("gpt").display().to_string();
    let out = desk.at("twice").display().to_string();
    let twice = palimpsest(["agree", "draw", &dir, &dir, "--per-cell", "1", "--out", &out]);
    assert!(twice.code == Some(1) && twice.err.contains("hold the same run"), "{}", twice.err);
    // A case with a missing answer cannot be drawn.
    let path = desk.at("gpt").join("answers.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.lines().skip(1).flat_map(|line| [line, "\n"]).collect::<String>()).unwrap();
    let refused = desk.draw("more", 2, 0);
    assert!(refused.err.contains("type T1 has 1 cases"), "{}", refused.err);
    assert!(!desk.at("more").exists() && !desk.at("twice").exists());
}

/// One condition per sheet: without a plain condition the first one is rated, and every output names it.
#[test]
fn a_sheet_is_of_one_condition_and_names_it() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let text = |name: &str| at(name).display().to_string();
    answered_under(&at("run"), "m", 4, &["", "knockout-query-old"]);
    answered_under(&at("without"), "n", 4, &["full", "rag"]);
    let draw = |run: &str, out: &str, more: &[&str]| {
        let (run, out) = (text(run), text(out));
        palimpsest([&["agree", "draw", &run, "--out", &out, "--per-cell", "1"][..], more].concat())
    };
    let drawn = draw("run", "plain", &[]);
    assert_eq!(drawn.code, Some(0), "{}", drawn.err);
    assert!(drawn.out.contains("of 1 runs under plain, by"), "{}", drawn.out);
    assert!(drawn.out.contains("answers under knockout-query-old are on no sheet"), "{}", drawn.out);
    let drawn = draw("run", "blocked", &["--condition", "knockout-query-old"]);
    assert!(drawn.out.contains("under knockout-query-old, by"), "{}{}", drawn.out, drawn.err);
    assert!(draw("without", "first", &[]).out.contains("under full, by"));
    // `plain` requested by name has no fallback.
    let refused = draw("without", "none", &["--condition", "plain"]);
    assert!(
        refused.code == Some(1)
            && refused.err.contains("no condition `plain`; its conditions are: full, rag"),
        "{}",
        refused.err
    );
    let conditions = |sheet: &str| {
        let (head, rows) = read_csv(&at(sheet).join("sheet.csv"));
        let column = head.iter().position(|name| name == "condition").unwrap();
        assert!(rows.iter().all(|row| row[column] == rows[0][column]));
        rows[0][column].to_owned()
    };
    assert_eq!([conditions("plain"), conditions("blocked")], ["plain", "knockout-query-old"]);
    let page = std::fs::read_to_string(at("blocked/sheet.html")).unwrap();
    assert!(page.contains("condition knockout-query-old"));

    // Verdicts of other conditions are ignored.
    let key = Key::read(&at("blocked")).unwrap();
    let under = |condition: &str, right: bool| {
        let row = |item: &palimpsest::agreement::key::KeyItem| VerdictRow {
            condition: condition.to_owned(),
            ..verdict(&item.case, &item.probe, Some(right))
        };
        key.items.iter().map(row).collect::<Vec<_>>()
    };
    write_rows(&at("run/verdicts.jsonl"), &[under("", false), under("knockout-query-old", true)].concat());
    write_rows(&at("run/rubrics.jsonl"), &[Instructions::from(&STALE.rubric()).row()]);
    let rated: String = key.items.iter().map(|item| format!("{},c\n", item.item)).collect();
    std::fs::write(at("r.csv"), format!("item,rating\n{rated}")).unwrap();
    let score = |more: &[&str]| {
        let (sheet, ratings) = (text("blocked"), text("r.csv"));
        palimpsest([&["agree", "score", &sheet, "--ratings", &ratings][..], more].concat())
    };
    let scored = score(&["--condition", "knockout-query-old"]);
    assert_eq!(scored.code, Some(0), "{}", scored.err);
    assert!(
        scored.out.contains("\ncondition: knockout-query-old\n") && scored.out.contains("100.00"),
        "{}",
        scored.out
    );
    let refused = score(&["--condition", "plain"]);
    assert!(
        refused.code == Some(2) && refused.err.contains("has condition knockout-query-old"),
        "{}",
        refused.err
    );
}
