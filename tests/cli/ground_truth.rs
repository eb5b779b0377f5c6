//! `palimpsest ground-truth`: numbers against SciPy's and scikit-learn's, faults of score files, and what run folders hold.

use std::collections::{BTreeMap, BTreeSet};

use palimpsest::ground_truth::metrics::{average_precision, outliers, top_drop};
use palimpsest::runs::causes::control_pool::Pools;
use palimpsest::runs::causes::rows::CauseRows;
use palimpsest::statistics::rank::spearman;
use serde_json::{Value, json};

use super::causes_figures::caused;
use super::*;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/ground-truth").join(name)
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

type Rows = Vec<BTreeMap<String, String>>;

fn csv(text: &str) -> Rows {
    csv::Reader::from_reader(text.as_bytes()).deserialize().map(Result::unwrap).collect()
}

fn truth(run: &Path, more: &[&str]) -> Ended {
    let mut command = command(["ground-truth"]);
    command.arg(run).args(more);
    ended(command)
}

/// Numbers of a method's measure.
fn of<'a>(rows: &'a Rows, method: &str, measure: &str) -> &'a BTreeMap<String, String> {
    rows.iter().find(|row| row["method"] == method && row["measure"] == measure).unwrap()
}

#[test]
fn agreement_is_what_scipy_and_scikit_learn_find() {
    let scores = fixture("scores.jsonl");
    let scores = shown(&scores);
    let expected = lines(&fixture("expected.jsonl"));
    let mut compared = 0;
    for by in [None, Some("role"), Some("distance"), Some("length")] {
        let split: Vec<&str> = by.into_iter().flat_map(|by| ["--by", by]).collect();
        let out = done(truth(
            &fixture("effects.jsonl"),
            &[&["--scores", scores, "--format", "csv"][..], &split].concat(),
        ))
        .out;
        let rows = csv(&out);
        let wanted: Vec<&Value> = expected.iter().filter(|row| row["by"].as_str() == by).collect();
        assert_eq!(rows.len(), wanted.len(), "{by:?}");
        for row in &rows {
            let same = |name: &str, wanted: &Value| wanted[name].as_str() == Some(&*row[name]);
            let found = wanted
                .iter()
                .find(|wanted| ["run", "group", "method", "measure"].iter().all(|name| same(name, wanted)));
            let found = found.unwrap_or_else(|| panic!("{by:?}: {row:?}"));
            for count in ["answers", "left_out", "undefined", "n"] {
                assert_eq!(row[count], found[count].to_string(), "{by:?} {count}: {row:?}");
            }
            let value = row["value"].parse::<f64>().ok();
            let near = match (value, found["value"].as_f64()) {
                (Some(value), Some(wanted)) => (value - wanted).abs() < 1e-9,
                (value, wanted) => value == wanted,
            };
            assert!(near, "{by:?}: {row:?} {found}");
            // Intervals from five cases on.
            let n: usize = row["n"].parse().unwrap();
            assert!(n >= 5 || row["low"].is_empty(), "{row:?}");
            compared += 1;
        }
        assert_eq!(of(&rows, "near", "map")["readings"], "2");
        assert_eq!(of(&rows, "far", "map")["readings"], "");
    }
    assert!(compared > 300, "{compared}");
}

#[test]
fn each_fault_of_a_score_file_is_named_by_its_line() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("mine.jsonl");
    let line = |case: &str, probe: &str, scores: &str| {
        format!(r#"{{"case":"{case}","probe":"{probe}","method":"mine","scores":{scores}}}"#)
    };
    let good = line("case-0", "A", r#"{"session[0]":1}"#);
    for (bad, words) in [
        (line("case-9", "A", "{}"), "no exact effects of a case `case-9`"),
        (line("case-0", "C", "{}"), "case `case-0` has no exact effects of a probe `C`"),
        (line("case-0", "A", r#"{"session[99]":1}"#), "`session[99]` is no session of case-0 A"),
        (line("case-0", "B", r#"{"session[1]":1,"session[1]":2}"#), "`session[1]` is scored twice"),
        (line("case-0", "B", r#"{"session[1]":NaN}"#), "NaN and Infinity are no numbers of JSON"),
        (line("case-0", "B", r#"{"session[1]":null}"#), "invalid type: null"),
        (line("case-0", "B", r#"{"session[1]":1e999}"#), "number out of range"),
        (good.clone(), "`mine` has scored this answer before"),
        (good.replace("\"mine\"", "\"exact\""), "the method `exact` is there already"),
        (good.replace("\"A\"", r#""A","condition":"repeat-2""#), "under a condition `repeat-2`"),
        (good.replace("\"A\"", r#""A","run":"other""#), "no run is called `other`; there are drawn"),
        (good.replace("\"method\"", "\"metod\""), "unknown field `metod`"),
        (good.replace("\"A\"", r#""A","readings":-1"#), "readings are below 0"),
    ] {
        std::fs::write(&file, format!("{good}\n\n{bad}\n{}\n", line("case-9", "A", "{}"))).unwrap();
        let refused = truth(&fixture("effects.jsonl"), &["--scores", shown(&file)]);
        assert_eq!(refused.code, Some(1), "{bad}");
        let err = &refused.err;
        assert!(err.contains("mine.jsonl line 3: ") && err.contains(words), "{bad}: {err}");
        assert!(err.contains("mine.jsonl line 4: no exact effects of a case `case-9`"), "all at once: {err}");
    }
    // Sessions without a score are counted, not guessed; `plain` is a condition's name.
    let whole =
        r#"{"session[0]":1,"session[1]":2,"session[2]":0,"session[3]":0,"session[4]":0,"session[5]":0}"#;
    let whole = line("case-0", "B", whole).replace("\"B\"", r#""B","condition":"plain""#);
    std::fs::write(&file, format!("{good}\n{whole}\n")).unwrap();
    let out = done(truth(&fixture("effects.jsonl"), &["--scores", shown(&file), "--format", "csv"])).out;
    let rows = csv(&out);
    let row = of(&rows, "mine", "spearman");
    assert_eq!((&*row["answers"], &*row["left_out"]), ("1", "15"));
}

#[test]
fn faults_of_exact_effects_are_named() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("effects.jsonl");
    let text = std::fs::read_to_string(fixture("effects.jsonl")).unwrap();
    let first = text.lines().next().unwrap();
    let doubled = first.replace("session[1]\"", "session[0]\"");
    for (text, words) in [
        (format!("{first}\n{first}\n"), "line 2: this answer was there before"),
        (format!("{doubled}\n"), "line 1: session[0] is there twice"),
        (first.replace("\"effect\"", "\"effekt\""), "line 1"),
        (first.replace("hidden", "removed"), "has no effects that are nats per answer token lost"),
    ] {
        std::fs::write(&file, text).unwrap();
        let refused = truth(&file, &[]);
        assert!(refused.code == Some(1) && refused.err.contains(words), "{}", refused.err);
    }
    let root = root.path().join("none");
    std::fs::create_dir(&root).unwrap();
    assert_eq!(truth(&root, &[]).code, Some(1));
}

#[test]
fn a_run_folder_is_held_against_its_own_effects() {
    let root = tempfile::tempdir().unwrap();
    let [one, four] = [("one", 1), ("four", 4)].map(|(name, cases)| {
        let dir = root.path().join(name);
        caused("llama-tiny", cases, &dir, &["--controls", "6"]);
        dir
    });
    let mut cite = command(["causes", "--contextcite", "4", "--ablate", "block"]);
    cite.arg(&one).arg("--model").arg(model());
    assert_eq!(ended(cite).code, Some(0));

    let out = root.path().join("out");
    let (four, place) = (shown(&four), shown(&out));
    let more = ["--learn-from", four, "--proxy", four, "--top", "2", "--out", place, "--format", "csv"];
    let text = done(truth(&one, &more)).out;
    let rows = csv(&text);
    assert_eq!(std::fs::read_to_string(out.join("ground-truth.csv")).unwrap(), text);
    let methods: BTreeSet<&str> = rows.iter().map(|row| &*row["method"]).collect();
    let expected = [
        "answer_mass",
        "attribution",
        "chance",
        "contextcite_blocked_4",
        "density",
        "exact",
        "flashtrace",
        "mass",
        "output_norm",
        "proxy four",
        "ridge from four",
        "value_norm",
    ];
    assert_eq!(methods, expected.into());

    // The rows of `causes`, by plain definitions.
    let CauseRows { blocked, controls, subsets, .. } = CauseRows::read(&one).unwrap();
    let pools = Pools::new(&controls);
    let effects = lines(&out.join("effects.jsonl"));
    let scores = lines(&out.join("scores.jsonl"));
    let mut means: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let mut sessions = 0;
    for answer in &effects {
        let rows: Vec<_> = blocked.iter().filter(|row| json!(row.answer.probe) == answer["probe"]).collect();
        sessions = rows.len();
        for (row, session) in rows.iter().zip(answer["sessions"].as_array().unwrap()) {
            assert_eq!((&json!(row.span), &json!(row.tokens)), (&session["span"], &session["tokens"]));
            assert_eq!(session["effect"].as_f64(), Some(row.effect.log_p_drop + 0.0));
            assert_eq!(session["control"].as_f64(), pools.control(row, |effect| effect.log_p_drop));
        }
        assert_eq!(answer["subsets"].as_array().unwrap().len(), 4);
        let mass =
            scores.iter().find(|row| row["method"] == "mass" && row["probe"] == answer["probe"]).unwrap();
        let mass: Vec<f64> = rows.iter().map(|row| mass["scores"][&row.span].as_f64().unwrap()).collect();
        let effects: Vec<f64> = rows.iter().map(|row| row.effect.log_p_drop).collect();
        let mut add = |name, value: Option<f64>| means.entry(name).or_default().extend(value);
        add("spearman", spearman(&mass, &effects));
        add("map", average_precision(&mass, &outliers(&effects)));
        add("top_drop", Some(top_drop(&mass, &effects, 2)));
    }
    assert_eq!((effects.len(), subsets.len()), (3, 12));
    for (measure, values) in means.iter().filter(|(_, values)| !values.is_empty()) {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let found: f64 = of(&rows, "mass", measure)["value"].parse().unwrap();
        assert!((found - mean).abs() < 1e-12, "{measure}: {found}, not {mean}");
    }
    let number = |method, measure, name: &str| of(&rows, method, measure)[name].parse::<f64>().ok();
    assert!(number("exact", "spearman", "value").unwrap() > 1.0 - 1e-12);
    // The proxy has the same model and case.
    assert!(number("proxy four", "spearman", "value").unwrap() > 0.999);
    assert_eq!(number("exact", "spearman", "readings"), Some(sessions as f64 + 1.0));
    assert_eq!(number("contextcite_blocked_4", "map", "readings"), Some(4.0));
    assert_eq!(number("flashtrace", "top_drop", "readings"), Some(2.0));
    assert_eq!((&*of(&rows, "flashtrace", "top_drop")["answers"], sessions > 2), ("3", true));
    // A fit is not judged on its own subsets.
    assert_eq!(number("contextcite_blocked_4", "lds", "value"), None);
    assert_eq!(of(&rows, "contextcite_blocked_4", "lds")["undefined"], "3");
    assert_eq!(number("mass", "lds", "subsets"), Some(4.0));

    // The remarks name the data of fits and tests.
    let text = std::fs::read_to_string(out.join("ground-truth.txt")).unwrap();
    for words in [
        "one, ridge: too few cases",
        "one, ridge from four: fitted to the exact effects of 12 answers of",
        "both runs are over the same data",
        "one, proxy four: effects of",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    for ending in ["svg", "pdf", "png", "csv"] {
        assert!(out.join(format!("ground-truth-methods.{ending}")).is_file(), "{ending}");
    }

    // The files give the same numbers again.
    let (effects, scores) = (out.join("effects.jsonl"), out.join("scores.jsonl"));
    let again = done(truth(&effects, &["--scores", shown(&scores), "--top", "2", "--format", "csv"])).out;
    assert_eq!(csv(&again), rows);

    // Without rows of causes, the remedy.
    std::fs::rename(one.join("causes.jsonl"), root.path().join("away")).unwrap();
    let refused = truth(&one, &[]);
    assert!(refused.code == Some(1) && refused.err.contains("palimpsest causes"), "{}", refused.err);
    let refused = truth(&one, &["--contrast"]);
    assert!(refused.err.contains("--contrast"), "{}", refused.err);
    assert_eq!(truth(&one, &["--contrast", "--total"]).code, Some(2));
}
