//! Raters and a judge that give scores: sampling by question, plain and quadratic kappa.

use std::path::Path;

use palimpsest::agreement::key::Key;
use palimpsest::judge::Instructions;
use palimpsest::runs::condition::Condition;
use palimpsest::runs::header::RunHeader;
use palimpsest::runs::plan::Selection;
use palimpsest::runs::rows::{AnswerRow, VerdictRow};
use palimpsest::runs::store::RunStore;

use super::*;
use crate::cli::agree::write_rows;
use crate::cli::palimpsest;
use crate::eval::header;

const JUDGE: &str = "local:judge";

/// A run that answered every question of a case under `full`.
fn answered(dir: &Path, case: &Case) {
    let mut identity = header(None).identity;
    identity.benchmark = "knowme".to_owned();
    identity.conditions = vec![Condition::of_setting(&KNOWME.settings[0])];
    let header =
        RunHeader { machine: header(None).machine, ..RunHeader::new(identity, None, Default::default()) };
    let plan = Selection::of_all(&KNOWME).plan(std::slice::from_ref(case)).unwrap();
    drop(RunStore::open_or_create(dir, &header, plan).unwrap());
    let row = |probe: &Probe| AnswerRow {
        case: case.id.clone(),
        probe: probe.id.clone(),
        condition: "full".to_owned(),
        labels: case.labels.clone(),
        query: probe.query.clone(),
        answer: Some(format!("an answer to {}", probe.id)),
        stop: Some(palimpsest::chat::StopReason::EndOfTurn),
        ..AnswerRow::default()
    };
    write_rows(&dir.join("answers.jsonl"), &case.probes.iter().map(row).collect::<Vec<_>>());
}

/// Writes a verdict for every question.
fn judged(dir: &Path, case: &Case, score: impl Fn(&str) -> Option<f64>) {
    let row = |probe: &Probe| VerdictRow {
        case: case.id.clone(),
        probe: probe.id.clone(),
        condition: "full".to_owned(),
        judge: JUDGE.to_owned(),
        rubric: Some(Instructions::from(&KNOWME.rubric()).digest()),
        rubric_name: Some("released".to_owned()),
        score: score(&probe.id),
        error: score(&probe.id).is_none().then(|| "unreadable".to_owned()),
        ..VerdictRow::default()
    };
    write_rows(&dir.join("verdicts.jsonl"), &case.probes.iter().map(row).collect::<Vec<_>>());
}

/// The reference's six-by-six table, and statsmodels' results for it.
fn reference() -> (Vec<(u32, u32)>, f64, f64) {
    let all: Value = serde_json::from_str(include_str!("../fixtures/statistics.json")).unwrap();
    let row = all["kappa"].as_array().unwrap().iter().find(|row| row["table"].as_array().unwrap().len() == 6);
    let row = row.unwrap();
    let mut pairs = Vec::new();
    for (i, counts) in row["table"].as_array().unwrap().iter().enumerate() {
        for (j, count) in counts.as_array().unwrap().iter().enumerate() {
            pairs.extend(vec![(i as u32, j as u32); count.as_u64().unwrap() as usize]);
        }
    }
    (pairs, row["plain"].as_f64().unwrap(), row["quadratic"].as_f64().unwrap())
}

#[test]
fn kappa_of_scores_is_that_of_statsmodels_plain_and_quadratic() {
    let (pairs, plain, quadratic) = reference();
    let rows: Vec<Value> =
        (0..pairs.len()).map(|id| json!({"id": id, "question": format!("{id}?"), "answer": "so"})).collect();
    let case = case(small("many", &[("Mind-Body Interaction", json!(rows))]));
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name).display().to_string();
    answered(&root.path().join("run"), &case);
    let pair = |probe: &str| pairs[probe.strip_prefix("T6-").unwrap().parse::<usize>().unwrap()];
    judged(&root.path().join("run"), &case, |probe| Some(f64::from(pair(probe).1)));
    let all = pairs.len().to_string();
    let drawn = palimpsest(["agree", "draw", &at("run"), "--out", &at("sheet"), "--per-cell", &all]);
    assert_eq!(drawn.code, Some(0), "{}", drawn.err);
    let key = Key::read(&root.path().join("sheet")).unwrap();
    assert_eq!((key.items.len(), key.most, key.condition.as_str()), (pairs.len(), Some(5), "full"));
    let ratings: String =
        key.items.iter().map(|item| format!("{},{}\n", item.item, pair(&item.probe).0)).collect();
    std::fs::write(root.path().join("r.csv"), format!("item,rating\n{ratings}")).unwrap();
    let score = |more: &[&str]| {
        palimpsest([&["agree", "score", &at("sheet"), "--ratings", &at("r.csv")], more].concat())
    };
    let scored = score(&["--format", "json"]);
    assert_eq!(scored.code, Some(0), "{}", scored.err);
    let scored: Value = serde_json::from_str(&scored.out).unwrap();
    let overall = &scored["raters"][0]["subsets"][0];
    let number = |name: &str| overall[name].as_f64().unwrap();
    assert!((number("kappa") - plain).abs() < 1e-9, "{} {plain}", number("kappa"));
    assert!(
        (number("kappa_quadratic") - quadratic).abs() < 1e-9,
        "{} {quadratic}",
        number("kappa_quadratic")
    );
    let share = |near: u32| {
        let agree = pairs.iter().filter(|(a, b)| a.abs_diff(*b) <= near).count();
        agree as f64 / pairs.len() as f64
    };
    assert!((number("agreement") - share(0)).abs() < 1e-12 && (number("within_1") - share(1)).abs() < 1e-12);
    let mean = pairs.iter().map(|(a, _)| f64::from(*a)).sum::<f64>() / pairs.len() as f64;
    assert!((number("mean_rater") - mean).abs() < 1e-12);
    assert_eq!(overall["table"][3][3], 20);
    for format in ["text", "md", "csv", "latex"] {
        let out = score(&["--format", format]).out;
        let (plain, quadratic) = (format!("{plain:.4}"), format!("{quadratic:.4}"));
        assert!(out.contains(&plain) && out.contains(&quadratic), "{format}: {out}");
    }
}

#[test]
fn questions_are_drawn_by_task_and_ratings_are_scores() {
    let case = case(sample());
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name).display().to_string();
    answered(&root.path().join("run"), &case);
    let score = |probe: &str| if probe == "T7-2" { 4.5 } else { 4.0 };
    judged(&root.path().join("run"), &case, |probe| (probe != "T1-1").then(|| score(probe)));
    let rows = std::fs::read_to_string(root.path().join("run/verdicts.jsonl")).unwrap();
    assert_eq!(
        (rows.matches("\"score\":4}").count(), rows.matches("\"score\":4.5}").count()),
        (12, 1),
        "{rows}"
    );
    let draw = |per_cell: &str, out: &str| {
        palimpsest([
            "agree",
            "draw",
            &at("run"),
            "--out",
            &at(out),
            "--per-cell",
            per_cell,
            "--condition",
            "full",
        ])
    };
    let refused = draw("3", "none");
    let expected = "task T1 has 2 answered questions, and 3 are to be drawn";
    assert!(refused.code == Some(1) && refused.err.contains(expected), "{}", refused.err);
    assert_eq!(draw("1", "one").code, Some(0));
    let one = Key::read(&root.path().join("one")).unwrap();
    let mut tasks: Vec<&str> = one.items.iter().map(|item| item.dimension.as_str()).collect();
    tasks.sort_unstable();
    assert_eq!(tasks, ["T1", "T2", "T3", "T4", "T5", "T6", "T7"]);

    assert_eq!(draw("2", "sheet").code, Some(0));
    let key = Key::read(&root.path().join("sheet")).unwrap();
    let page = std::fs::read_to_string(root.path().join("sheet/sheet.html")).unwrap();
    assert!(page.contains("\"most\":5") && page.contains("an answer to T4-2"), "{page}");
    let rated = |rating_of: &dyn Fn(&str) -> &'static str| {
        let rows = key.items.iter().map(|item| format!("{},{}\n", item.item, rating_of(&item.probe)));
        std::fs::write(root.path().join("r.csv"), format!("item,rating\n{}", rows.collect::<String>()))
            .unwrap();
        palimpsest(["agree", "score", &at("sheet"), "--ratings", &at("r.csv")])
    };
    let scored = rated(&|probe| match probe {
        "T2-1" => "u",
        "T3-1" => "",
        "T4-1" => "5",
        "T5-1" => "2",
        _ => "4",
    });
    assert_eq!(scored.code, Some(0), "{}", scored.err);
    assert!(scored.out.contains("1 of 14 items have no verdict of this judge"), "{}", scored.out);
    assert!(scored.out.contains("(1 unsure and 1 not rated are left out); shares in %"), "{}", scored.out);
    let between = "the judge gave 1 of 14 items";
    assert!(scored.out.contains(between), "{}", scored.out);
    // 14 items minus one without a verdict, one between two scores, one unsure and one unrated: ten, of which eight agree and one differs
    // by one.
    let overall: Vec<&str> =
        scored.out.lines().find(|line| line.starts_with("Overall")).unwrap().split_whitespace().collect();
    assert_eq!(overall, ["Overall", "10", "80.00", "90.00", "0.0000", "0.0000", "3.90", "4.00"]);
    for (wrong, said) in
        [("6", "rating `6`: give a whole number from 0 to 5"), ("correct", "rating `correct`")]
    {
        let refused = rated(&|probe| if probe == "T7-2" { wrong } else { "1" });
        assert!(refused.code == Some(1) && refused.err.contains(said), "{}", refused.err);
    }
}
