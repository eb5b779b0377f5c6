//! Commands on pairs: data, run, judge, table.

use std::path::Path;

use palimpsest::runs::store::RunFolder;

use super::parquet_file::Row;
use super::{lines, row};
use crate::cli::{done, palimpsest, shown};
use crate::parity::fixture;

#[test]
fn pairs_go_from_a_file_to_tables_in_both_orders_without_a_judging_model() {
    let root = tempfile::tempdir().unwrap();
    let (data, out) = (root.path().join("pairs"), root.path().join("run"));
    let broken = r#"{"index": 9, "task": "LR", "subtask": "S-Drop", "ctx_length": "16k", "question": "q", "chosen": "c"}"#;
    std::fs::write(&data, lines(&[row(1), row(2)]) + broken + "\n").unwrap();

    let checked = palimpsest(["data", "check", shown(&data)]);
    assert_eq!(checked.code, Some(1), "{}", checked.err);
    assert!(checked.out.contains("row 2 (uid \"9\"), rejected: found no such field"), "{}", checked.out);

    let model = fixture("llama-tiny");
    let run = |more: &[&str]| {
        let fixed = [
            "run",
            "--data",
            shown(&data),
            "--model",
            shown(&model),
            "--out",
            shown(&out),
            "--max-new-tokens",
            "6",
        ];
        palimpsest([&fixed[..], &["--context", "4096", "--allow-longer"], more].concat())
    };
    let ran = run(&[]);
    assert!(ran.err.contains("1 of the 3 rows"), "{}", ran.err);
    let folder = RunFolder::read(&out).unwrap();
    assert_eq!(folder.header.identity.condition_names(), ["chosen-first", "rejected-first"]);
    let scored: Vec<_> = folder.answers.iter().filter(|row| !row.scores.is_empty()).collect();
    assert_eq!((folder.answers.len(), scored.len()), (6, 4));

    // A judge model is rejected; none is needed.
    let refused = palimpsest(["judge", shown(&out), "--judge", "local:smollm2-135m"]);
    assert!(refused.code == Some(2) && refused.err.contains("drop --judge"), "{}", refused.err);
    for flag in [&["--no-exact-match"][..], &["--reasons", "first"], &["--prompts", shown(root.path())]] {
        let refused = palimpsest([&["judge", shown(&out)][..], flag].concat());
        let words = format!("judged by rules, without a model; drop {}", flag[0]);
        assert!(refused.code == Some(2) && refused.err.contains(&words), "{}", refused.err);
    }
    let judged = done(palimpsest(["judge", shown(&out)]));
    assert!(
        judged.out.contains("lenient: 0 of 6 verdicts, 4 unparsed, 2 without an answer"),
        "{}",
        judged.out
    );
    assert!(
        judged.out.contains("scored: 4 of 6 verdicts, 0 unparsed, 2 without an answer"),
        "{}",
        judged.out
    );

    // Unparseable answers are a result: all incorrect.
    let table = done(palimpsest(["table", shown(&out), "--format", "json"]));
    let table: serde_json::Value = serde_json::from_str(&table.out).unwrap();
    let rows = table["rows"].as_array().unwrap();
    for judge in ["lenient", "strict"] {
        let own: Vec<_> = rows.iter().filter(|row| row["judge"] == judge).collect();
        assert_eq!(own.len(), 2, "{judge}: {rows:?}");
        for row in own {
            let overall = &row["table"]["overall"];
            assert_eq!((&overall["accuracy"], &overall["expected"]), (&0.0.into(), &3.into()), "{row}");
        }
        let own = table["tables"]["accuracy"]["rows"].as_array().unwrap();
        let own: Vec<_> = own.iter().filter(|row| row["judge"] == judge).collect();
        assert_eq!(own.len(), 2, "{judge}");
        assert!(own.iter().all(|row| row["Avg"] == "0.00 0/3" && row["does not fit"] == "0"), "{own:?}");
    }

    // With parseable answers.
    let mut rows = folder.answers.clone();
    let said = ["[[A]] it is", "**[[B]]**", "[[A]] again", "[[A]]"];
    rows.iter_mut()
        .filter(|row| row.answer.is_some())
        .zip(said)
        .for_each(|(row, said)| row.answer = Some(said.to_owned()));
    let written: String = rows.iter().map(|row| serde_json::to_string(row).unwrap() + "\n").collect();
    std::fs::write(out.join("answers.jsonl"), written).unwrap();
    let judged = done(palimpsest(["judge", shown(&out)]));
    assert!(judged.out.contains("lenient: 4 of 6 verdicts, 0 unparsed"), "{}", judged.out);
    assert!(judged.out.contains("strict: 3 of 6 verdicts, 1 unparsed"), "{}", judged.out);
    let count = |out: &Path| std::fs::read_to_string(out.join("verdicts.jsonl")).unwrap().lines().count();
    let before = count(&out);
    // Existing readings are not written again.
    done(palimpsest(["judge", shown(&out)]));
    assert_eq!(count(&out), before);

    let verdicts = RunFolder::read(&out).unwrap().verdicts;
    let lenient = verdicts.iter().rev().filter(|row| row.judge == "lenient" && row.is_clean());
    for verdict in lenient {
        let expected = if verdict.condition == "chosen-first" { "A" } else { "B" };
        assert_eq!(verdict.correct, Some(verdict.choice.as_deref() == Some(expected)), "{verdict:?}");
    }
    let table = done(palimpsest(["table", shown(&out), "--judge", "lenient"]));
    for part in ["Accuracy by setting", "Stable and right", "Both orders of each pair", "S-Drop"] {
        assert!(table.out.contains(part), "{part}\n{}", table.out);
    }
}

#[test]
fn the_sample_is_written_and_known_again_and_a_cut_off_file_is_one_line() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("pairs.jsonl");
    let wrote = done(palimpsest(["data", "sample", "--benchmark", "memrewardbench", "--out", shown(&file)]));
    assert!(wrote.out.contains("20 cases") && wrote.out.contains("20 questions"), "{}", wrote.out);
    let checked = done(palimpsest(["data", "check", shown(&file)]));
    assert!(checked.out.contains("Long-form_Generation"), "{}", checked.out);
    let refused = palimpsest(["data", "sample", "--benchmark", "memrewardbench", "--sessions", "4"]);
    assert!(refused.code != Some(0) && refused.err.contains("drop --sessions"), "{}", refused.err);

    let cut = root.path().join("pairs.parquet");
    std::fs::write(&cut, b"PAR1 and then the download ended").unwrap();
    let checked = palimpsest(["data", "check", shown(&cut)]);
    assert_eq!(checked.code, Some(1), "{}\n{}", checked.out, checked.err);
    let said = format!("{}{}", checked.out, checked.err);
    assert!(said.contains("cut off or damaged") && !said.contains("panicked"), "{said}");

    let (model, out) = (fixture("llama-tiny"), root.path().join("run"));
    let unknown = palimpsest([
        "run",
        "--data",
        shown(&file),
        "--model",
        shown(&model),
        "--out",
        shown(&out),
        "--conditions",
        "chosen-last",
        "--max-new-tokens",
        "4",
        "--context",
        "4096",
        "--allow-longer",
    ]);
    assert_eq!(unknown.code, Some(2), "{}", unknown.err);
    for part in ["`chosen-last`", "chosen-first: the better trajectory is agent A", "random-density-50"] {
        assert!(unknown.err.contains(part), "{}", unknown.err);
    }
}

#[test]
fn a_pair_that_does_not_fit_is_counted_as_wrong_and_as_that() {
    let root = tempfile::tempdir().unwrap();
    let (data, out) = (root.path().join("pairs"), root.path().join("run"));
    let long = Row { question: "The lamp is in the hall. ".repeat(200), ..row(2) };
    std::fs::write(&data, lines(&[row(1), long])).unwrap();
    let model = fixture("llama-tiny");
    let ran = palimpsest([
        "run",
        "--data",
        shown(&data),
        "--model",
        shown(&model),
        "--out",
        shown(&out),
        "--max-new-tokens",
        "4",
        "--context",
        "2048",
        "--allow-longer",
        "--no-attention",
    ]);
    assert!(ran.err.contains("needs") && ran.err.contains("raise --context"), "{}", ran.err);
    let folder = RunFolder::read(&out).unwrap();
    let overlong: Vec<&str> =
        folder.answers.iter().filter(|row| !row.fits()).map(|row| row.case.as_str()).collect();
    assert_eq!(overlong, ["2", "2"]);
    done(palimpsest(["judge", shown(&out)]));
    let table = done(palimpsest(["table", shown(&out), "--judge", "scored", "--format", "json"]));
    let table: serde_json::Value = serde_json::from_str(&table.out).unwrap();
    let rows = table["tables"]["accuracy"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| row["does not fit"] == "1"), "{rows:?}");
    let all = table["tables"]["orders"]["rows"].as_array().unwrap();
    assert!(all.iter().all(|row| row["unparsed"] == "0.0 0/4" && row["does not fit"] == "1"), "{all:?}");

    // A run without attention has no attention figures, but has those of its verdicts.
    let pictures = root.path().join("figures");
    let drawn = done(palimpsest(["figures", shown(&out), "--out", shown(&pictures), "--judge", "scored"]));
    assert!(drawn.out.contains("length: Accuracy and consistency by length"), "{}", drawn.out);
    let csv = std::fs::read_to_string(pictures.join("length.csv")).unwrap();
    assert!(csv.contains("all: accuracy,\"scored, chosen-first\",8k,"), "{csv}");
    assert!(csv.contains("all: consistency,\"scored, both orders\",8k,"), "{csv}");
}
