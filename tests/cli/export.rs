//! Exports: contents of each format. tests/reference/check_exports.py tries other tools' readers.
use palimpsest::runs::rows::AnswerRow;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use serde_json::{Value, json};

use super::agree::{answered, answered_under, verdict, write_rows};
use super::*;

/// Four cases, judged by two judges; one answer and one verdict are errors.
struct Exported {
    root: tempfile::TempDir,
}

impl Exported {
    fn new() -> Self {
        let made = Exported { root: tempfile::tempdir().unwrap() };
        let dir = made.at("run");
        answered(&dir, "tiny", 4);
        let mut answers: Vec<AnswerRow> = RunFolder::read(&dir).unwrap().answers;
        (answers[1].answer, answers[1].error) = (None, Some("too long".to_owned()));
        answers[2].dropped_sessions.clear();
        answers[2].stop = Some(palimpsest::chat::StopReason::MaxNewTokens);
        write_rows(&dir.join("answers.jsonl"), &answers);
        let said = |at: usize| (at != 1 && at != 3).then_some(at.is_multiple_of(2));
        let mut verdicts: Vec<_> =
            answers.iter().enumerate().map(|(at, row)| verdict(&row.case, &row.probe, said(at))).collect();
        verdicts[4].settled = true;
        verdicts.insert(
            0,
            palimpsest::runs::rows::VerdictRow { judge: "first".to_owned(), ..verdicts[0].clone() },
        );
        write_rows(&dir.join("verdicts.jsonl"), &verdicts);
        let turn = |role: &str, content: &str| json!({ "role": role, "content": content });
        for row in &answers {
            let shown = json!({ "case": row.case, "query_time": null, "sessions": [
                { "index": 4, "time": "2026-01-02T08:30:00", "turns": [turn("user", "hello"), turn("where", "Riga")] },
            ]});
            std::fs::write(dir.join(format!("cases/{}.json", row.case)), shown.to_string()).unwrap();
        }
        made
    }

    fn at(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn export(&self, format: &str, more: &[&str]) -> Ended {
        let mut command = command(["export", "--format", format]);
        command.arg(self.at("run")).arg("--out").arg(self.at(format)).args(more);
        ended(command)
    }

    fn exported(&self, format: &str, more: &[&str]) -> Vec<u8> {
        let done = self.export(format, more);
        assert_eq!(done.code, Some(0), "{}", done.err);
        std::fs::read(self.at(format)).unwrap()
    }
}

#[test]
fn an_inspect_log_has_a_sample_an_answer_and_a_scorer_a_judge() {
    let made = Exported::new();
    let log: Value = serde_json::from_slice(&made.exported("inspect", &[])).unwrap();
    assert_eq!((&log["version"], &log["status"]), (&json!(2), &json!("success")));
    assert_eq!((&log["eval"]["task"], &log["eval"]["model"]), (&json!("stale"), &json!("tiny")));
    assert_eq!(log["eval"]["model_generate_config"]["max_tokens"], 16);
    let samples = log["samples"].as_array().unwrap();
    assert_eq!((samples.len(), &log["results"]["total_samples"]), (12, &json!(12)));
    assert_eq!(log["results"]["completed_samples"], 11);
    // Answers 0, 2, 4, ... of twelve are correct; the error and the missing verdict count as incorrect.
    let scores = log["results"]["scores"].as_array().unwrap();
    assert_eq!(scores.iter().map(|s| s["name"].as_str().unwrap()).collect::<Vec<_>>()[0], "first (released)");
    assert_eq!((&scores[1]["scored_samples"], &scores[1]["unscored_samples"]), (&json!(10), &json!(2)));
    assert_eq!(scores[1]["metrics"]["accuracy"]["value"], 0.5);
    assert_eq!(log["stats"]["model_usage"]["tiny"]["total_tokens"], 12 * 109);

    let sample = &samples[0];
    assert_eq!((&sample["id"], &sample["epoch"]), (&json!("case-0_SR"), &json!(1)));
    assert_eq!(sample["input"].as_array().unwrap().len(), 1);
    assert_eq!(sample["input"][0]["content"], "SR question 0?");
    let answer = "- </script> \"é\" of case-0/SR, said:\nline two";
    assert_eq!(sample["output"]["choices"][0]["message"]["content"], answer);
    assert_eq!(sample["messages"][1]["content"], answer);
    assert_eq!(
        (&sample["metadata"]["labels"]["type"], &sample["metadata"]["probe"]),
        (&json!("T1"), &json!("SR"))
    );
    let score = &sample["scores"].as_object().unwrap()[scores[1]["name"].as_str().unwrap()];
    assert_eq!((&score["value"], &score["explanation"]), (&json!("C"), &json!("it says so")));
    assert_eq!((&samples[1]["error"]["message"], &samples[1]["output"]), (&json!("too long"), &Value::Null));
    assert_eq!(samples[2]["output"]["choices"][0]["stop_reason"], "max_tokens");
    assert_eq!(samples[3].get("scores"), None, "an unreadable verdict is no score");

    let log: Value =
        serde_json::from_slice(&made.exported("inspect", &["--with-history", "--judge", "first"])).unwrap();
    assert_eq!(log["results"]["scores"].as_array().unwrap().len(), 1);
    let input = log["samples"][0]["input"].as_array().unwrap();
    let said: Vec<_> =
        input.iter().map(|m| (m["role"].as_str().unwrap(), m["content"].as_str().unwrap())).collect();
    assert_eq!(said, [("user", "hello"), ("user", "where: Riga"), ("user", "SR question 0?")]);
    assert_eq!(input[0]["metadata"]["index"], 4);
}

#[test]
fn verdicts_that_are_no_result_are_exported_with_the_reason_and_without_an_accuracy() {
    let made = Exported::new();
    let path = made.at("run/verdicts.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    let tiny = "local:smollm2-135m";
    let rename = |name: &str| text.replace(super::agree::JUDGE, name);
    std::fs::write(&path, text.clone() + &rename(tiny)).unwrap();
    let done = made.export("inspect", &[]);
    let said = "the verdicts of local:smollm2-135m (released) are no result: local:smollm2-135m has about 135 million";
    let labelled = |name: &str| format!("{name} (released)");
    assert!(done.code == Some(0) && done.err.contains(said), "{}", done.err);
    let log: Value = serde_json::from_slice(&std::fs::read(made.at("inspect")).unwrap()).unwrap();
    let scores = log["results"]["scores"].as_array().unwrap();
    let of = |name: &str| scores.iter().find(|score| score["name"] == labelled(name)).unwrap();
    assert_eq!(of(super::agree::JUDGE)["metrics"]["accuracy"]["value"], 0.5);
    assert_eq!(of(super::agree::JUDGE)["metadata"].get("no_result"), None);
    assert_eq!(of(tiny)["metrics"], json!({}));
    let why = of(tiny)["metadata"]["no_result"].as_str().unwrap();
    assert!(why.contains("cannot judge"), "{why}");
    // The first judge gave a single verdict, which is not flagged as constant.
    assert_eq!(log["eval"]["metadata"]["no_result"], json!({ labelled(tiny): why }));
    assert_eq!(log["eval"]["tags"], json!(["no result by local:smollm2-135m (released)"]));
    // Its verdict stays with the samples.
    assert_eq!(log["samples"][0]["scores"][labelled(tiny)]["value"], "C");

    let done = made.export("parquet", &[]);
    assert!(done.code == Some(0) && done.err.contains(said), "{}", done.err);
    let metadata = |judge: &str| {
        made.exported("parquet", &["--judge", judge]);
        let reader = SerializedFileReader::new(std::fs::File::open(made.at("parquet")).unwrap()).unwrap();
        let pairs = reader.metadata().file_metadata().key_value_metadata().unwrap().clone();
        pairs.into_iter().find(|pair| pair.key == "palimpsest.no_result").and_then(|pair| pair.value)
    };
    assert_eq!((metadata(tiny).as_deref(), metadata(super::agree::JUDGE)), (Some(why), None));
}

#[test]
fn a_parquet_file_has_the_rows_fields_and_the_verdicts() {
    let made = Exported::new();
    let label = json!({
        "case": "case-0", "probe": "SR", "label": "overridden", "why": "The old session outweighs the new one.", "judge": "tiny",
        "certificate": {
            "sessions": ["session[1]", "session[4]"], "irreducible": true, "before": 1.0, "after": -1.0,
            "controls": { "sets": 5, "flips": 0 }
        },
        "readings": 9, "settings": { "seed": 0, "controls": 5, "readings": 60 }
    });
    std::fs::write(made.at("run").join("why.jsonl"), format!("{label}\n")).unwrap();
    let bytes = made.exported("parquet", &[]);
    let reader = SerializedFileReader::new(std::fs::File::open(made.at("parquet")).unwrap()).unwrap();
    assert_eq!(&bytes[..4], b"PAR1");
    let of_run = reader.metadata().file_metadata().key_value_metadata().unwrap();
    let header = of_run.iter().find(|pair| pair.key == "palimpsest.run").unwrap().value.clone().unwrap();
    assert!(header.contains("\"dataset\""), "{header}");
    let rows: Vec<BTreeMap<String, Field>> = reader
        .get_row_iter(None)
        .unwrap()
        .map(|row| row.unwrap().into_columns().into_iter().collect())
        .collect();
    assert_eq!(rows.len(), 12);
    let names: std::collections::BTreeSet<&str> = rows[0].keys().map(String::as_str).collect();
    let expected = "model case probe condition labels query answer stop prompt_tokens completion_tokens dropped_sessions \
                    attention error judge rubric rubric_name correct score choice probability reason settled verdict_error why why_reason \
                    certificate";
    assert_eq!(names, expected.split_whitespace().collect());
    let text = |row: usize, name: &str| match &rows[row][name] {
        Field::Str(text) => Some(text.clone()),
        Field::Null => None,
        other => panic!("{other:?}"),
    };
    assert_eq!(text(0, "answer").unwrap(), "- </script> \"é\" of case-0/SR, said:\nline two");
    assert_eq!((text(1, "answer"), text(1, "error").unwrap()), (None, "too long".to_owned()));
    assert_eq!(
        (text(0, "model").unwrap(), text(2, "stop").unwrap()),
        ("tiny".into(), "max_new_tokens".into())
    );
    assert_eq!(rows[0]["labels"].to_string(), "{type: \"T1\"}");
    assert_eq!(rows[0]["dropped_sessions"].to_string(), "[2, 3]");
    assert_eq!(rows[2]["dropped_sessions"].to_string(), "[]");
    assert_eq!(rows[3]["dropped_sessions"].to_string(), "[2, 3]");
    assert_eq!(
        (&rows[0]["correct"], &rows[5]["correct"], &rows[3]["correct"]),
        (&Field::Bool(true), &Field::Bool(false), &Field::Null)
    );
    assert_eq!(text(3, "verdict_error").unwrap(), "unreadable");
    assert_eq!((&rows[0]["settled"], &rows[4]["settled"]), (&Field::Bool(false), &Field::Bool(true)));
    assert_eq!((text(0, "why").unwrap(), text(1, "why")), ("overridden".to_owned(), None));
    assert_eq!(text(0, "why_reason").unwrap(), "The old session outweighs the new one.");
    assert_eq!(
        (text(0, "certificate").unwrap(), text(2, "certificate")),
        ("session[1], session[4]".to_owned(), None)
    );
    assert_eq!((&rows[0]["prompt_tokens"], &rows[0]["probability"]), (&Field::Long(100), &Field::Null));
    made.exported("parquet", &["--judge", "first"]);
    let reader = SerializedFileReader::new(std::fs::File::open(made.at("parquet")).unwrap()).unwrap();
    let judged = reader.get_row_iter(None).unwrap().filter(|row| {
        let row = row.as_ref().unwrap();
        row.get_column_iter().any(|(name, field)| name == "judge" && *field == Field::Str("first".to_owned()))
    });
    assert_eq!(judged.count(), 1);
}

#[test]
fn hypotheses_are_lines_of_two_fields_and_a_missing_one_is_refused_or_empty() {
    let made = Exported::new();
    let refused = made.export("longmemeval", &[]);
    assert!(
        refused.code == Some(1) && refused.err.contains("case-0/PR") && refused.err.contains("--partial"),
        "{}",
        refused.err
    );
    assert!(!made.at("longmemeval").exists());
    let text = String::from_utf8(made.exported("longmemeval", &["--partial"])).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 12);
    assert!(lines.iter().all(|line| line.as_object().unwrap().len() == 2));
    assert_eq!(
        lines[0],
        json!({
            "question_id": "case-0_SR",
            "hypothesis": "- </script> \"é\" of case-0/SR, said:\nline two",
        })
    );
    assert_eq!(lines[1], json!({ "question_id": "case-0_PR", "hypothesis": "" }));
}

#[test]
fn the_authors_format_has_two_spellings_and_flags_that_make_no_sense_are_refused() {
    let made = Exported::new();
    let dir = made.at("run").display().to_string();
    let short = palimpsest(["export", "--stale", &dir, "--partial"]);
    assert_eq!(short.code, Some(0), "{}", short.err);
    assert_eq!(short.out.as_bytes(), made.exported("stale", &["--partial"]));
    for (args, what) in [
        (vec!["export", &dir], "--format"),
        (vec!["export"], "required"),
        (vec!["export", "--format", "stale", "--stale", &dir], "cannot be used with"),
        (
            vec!["export", "--format", "stale", &dir, "--with-history"],
            "--with-history is for --format inspect",
        ),
        (vec!["export", "--format", "longmemeval", &dir, "--judge", "x"], "--judge and --rubric are for"),
    ] {
        let refused = palimpsest(&args);
        assert!(refused.code == Some(2) && refused.err.contains(what), "{args:?}: {}", refused.err);
    }
    let unknown = made.export("inspect", &["--judge", "x"]);
    assert!(unknown.code == Some(1) && unknown.err.contains("verdict of the judge `x`"), "{}", unknown.err);
    // An unasked question is not an error row: available rows are exported, missing ones reported.
    let path = made.at("run").join("answers.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.lines().skip(1).flat_map(|line| [line, "\n"]).collect::<String>()).unwrap();
    for format in ["inspect", "parquet"] {
        let done = made.export(format, &[]);
        assert!(done.code == Some(0) && done.out.contains("11 "), "{}{}", done.out, done.err);
        let said = "1 of 12 questions were not asked yet and are not in the file: case-0/SR; the same `palimpsest run`";
        assert!(done.err.contains(said), "{}", done.err);
    }
    let log: Value = serde_json::from_slice(&std::fs::read(made.at("inspect")).unwrap()).unwrap();
    assert_eq!((&log["status"], &log["eval"]["metadata"]["missing"]), (&json!("cancelled"), &json!(1)));
    // Formats that would score a gap as wrong reject it and report both reasons.
    let refused = made.export("stale", &[]);
    let said = "2 questions have no answer: 1 were not asked yet, 1 ended in an error (case-0/SR, case-0/PR)";
    assert!(refused.code == Some(1) && refused.err.contains(said), "{}", refused.err);
    let partial = made.export("stale", &["--partial"]);
    assert!(
        partial.code == Some(0) && partial.err.contains("1 were not asked yet, 1 ended"),
        "{}",
        partial.err
    );
}

/// Two conditions never share a key, and omitted conditions are reported.
#[test]
fn a_run_without_a_plain_condition_is_exported_under_all_that_it_has() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    answered_under(&at("run"), "tiny", 2, &["full", "rag"]);
    let rows = RunFolder::read(&at("run")).unwrap().answers;
    let judged = |row: &AnswerRow| palimpsest::runs::rows::VerdictRow {
        condition: row.condition.clone(),
        ..verdict(&row.case, &row.probe, Some(row.condition == "full"))
    };
    write_rows(&at("run/verdicts.jsonl"), &rows.iter().map(judged).collect::<Vec<_>>());
    let export = |format: &str, out: Option<&str>, more: &[&str]| {
        let mut command = command(["export", "--format", format]);
        command.arg(at("run")).args(more);
        if let Some(out) = out {
            command.arg("--out").arg(at(out));
        }
        ended(command)
    };
    let done = export("inspect", Some("log.json"), &[]);
    assert!(
        done.code == Some(0) && done.out.contains("12 samples under full, rag"),
        "{}{}",
        done.out,
        done.err
    );
    let log: Value = serde_json::from_slice(&std::fs::read(at("log.json")).unwrap()).unwrap();
    let ids: std::collections::BTreeSet<&str> =
        log["samples"].as_array().unwrap().iter().map(|sample| sample["id"].as_str().unwrap()).collect();
    assert!(ids.len() == 12 && ids.contains("case-0_SR_full") && ids.contains("case-0_SR_rag"), "{ids:?}");
    // An average over both would be 0.5, correct for neither.
    let scores: Vec<(&str, f64)> = (log["results"]["scores"].as_array().unwrap().iter())
        .map(|score| {
            (score["name"].as_str().unwrap(), score["metrics"]["accuracy"]["value"].as_f64().unwrap())
        })
        .collect();
    let [full, rag] = ["full", "rag"].map(|name| format!("{} (released) [{name}]", super::agree::JUDGE));
    assert_eq!(scores, [(full.as_str(), 1.0), (rag.as_str(), 0.0)]);
    assert!(log["results"]["scores"][1]["metrics"]["accuracy"]["value"].as_f64().unwrap().is_sign_positive());
    let sample = &log["samples"][0];
    assert_eq!(sample["metadata"]["condition"], "full");
    assert_eq!(sample["scores"].as_object().unwrap().keys().collect::<Vec<_>>(), [&full]);
    let tokens = json!({ "input_tokens": 100, "output_tokens": 9, "total_tokens": 109 });
    assert_eq!((&sample["model_usage"]["tiny"], &sample["output"]["usage"]), (&tokens, &tokens));

    // One selected by name: the other is reported as omitted.
    let done = export("parquet", Some("rag.parquet"), &["--condition", "rag"]);
    assert!(
        done.out.contains("6 rows under rag") && done.err.contains("answers under full are not exported"),
        "{}",
        done.err
    );
    let unknown = export("parquet", None, &["--condition", "plain"]);
    assert!(unknown.err.contains("no condition `plain`; its conditions are: full, rag"), "{}", unknown.err);

    // One answer per question: one file per condition, or one by name.
    let refused = export("longmemeval", None, &[]);
    assert!(refused.code == Some(2) && refused.err.contains("answers under full, rag"), "{}", refused.err);
    let done = export("longmemeval", Some("answers.jsonl"), &[]);
    assert!(done.code == Some(0) && done.out.contains("6 hypotheses under rag"), "{}{}", done.out, done.err);
    for label in ["full", "rag"] {
        let text = std::fs::read_to_string(at(&format!("{label}-answers.jsonl"))).unwrap();
        assert_eq!(text.lines().count(), 6);
    }
    assert!(!at("answers.jsonl").exists());
    let one = export("stale", Some("answers.json"), &["--condition", "full"]);
    assert!(one.code == Some(0) && at("answers.json").exists(), "{}", one.err);
}

/// The sum of no numbers is -0.0, which is not an accuracy.
#[test]
fn of_no_samples_there_is_no_accuracy() {
    let made = Exported::new();
    std::fs::write(made.at("run/answers.jsonl"), "").unwrap();
    let log: Value = serde_json::from_slice(&made.exported("inspect", &[])).unwrap();
    assert_eq!(log["samples"], json!([]));
    for score in log["results"]["scores"].as_array().unwrap() {
        assert_eq!(score["metrics"], json!({}), "{score}");
    }
    assert_eq!(log["stats"]["model_usage"], json!({}));
}

/// Inspect has no value for unknown usage: a zero or a partial sum would be read as the total.
#[test]
fn tokens_that_an_answer_does_not_tell_leave_no_usage() {
    let made = Exported::new();
    let path = made.at("run/answers.jsonl");
    let rows = std::fs::read_to_string(&path).unwrap();
    let rows = rows.lines().enumerate().map(|(at, line)| {
        let mut row: Value = serde_json::from_str(line).unwrap();
        if at == 0 {
            row.as_object_mut().unwrap().remove("completion_tokens");
        }
        format!("{row}\n")
    });
    std::fs::write(&path, rows.collect::<String>()).unwrap();
    let log: Value = serde_json::from_slice(&made.exported("inspect", &[])).unwrap();
    let tokens: Vec<&Value> =
        log["samples"].as_array().unwrap().iter().map(|sample| &sample["model_usage"]["tiny"]).collect();
    assert_eq!((tokens[0], &tokens[1]["total_tokens"]), (&Value::Null, &json!(109)));
    assert_eq!(log["stats"]["model_usage"], json!({}));
}
