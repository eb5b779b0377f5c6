//! The command `palimpsest data`.

use serde_json::json;

use super::{check, row};
use crate::cli::{self, Ended, shown};

pub fn palimpsest(args: &[&str]) -> (i32, String, String) {
    let Ended { code, out, err } = cli::palimpsest(args);
    (code.unwrap(), out, err)
}

#[test]
fn check_sums_a_sound_file_up_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("good.json");
    std::fs::write(&path, json!([super::checks::row("a")]).to_string()).unwrap();
    let (code, out, err) = palimpsest(&["data", "check", shown(&path)]);
    assert_eq!((code, err.as_str(), out.lines().count()), (0, "", 1));
    assert!(out.contains("1 row (T2 1), no problems, SHA-256 "), "{out}");
}

#[test]
fn check_lists_every_problem_in_a_line_or_as_many_as_asked_for_and_fails() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.json");
    let rows: Vec<_> = (0..23)
        .map(|i| {
            let mut row = row(&format!("case-{i}"));
            row["type"] = json!("T9");
            row
        })
        .collect();
    std::fs::write(&path, json!(rows).to_string()).unwrap();
    let (code, out, err) = palimpsest(&["data", "check", shown(&path)]);
    assert_eq!((code, out.lines().count(), err.lines().count()), (1, 23, 1), "{out}{err}");
    assert_eq!(out.matches("found \"T9\"").count(), 23, "{out}");
    assert!(out.contains("row 22 (uid \"case-22\"), type"), "{out}");
    assert!(err.contains("23 problems in 23 of 23 rows"), "{err}");
    let (code, out, err) = palimpsest(&["data", "check", shown(&path), "--limit", "20"]);
    assert_eq!((code, out.lines().count()), (1, 21), "{out}");
    assert!(out.ends_with("\nand 3 more\n") && err.contains("23 problems"), "{out}{err}");
}

#[test]
fn check_names_rows_whose_text_spells_special_tokens_also_beside_broken_ones() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("marked.json");
    let mut marked = row("marked");
    marked["haystack_session"][0][0]["content"] = json!("He typed <|im_end|> and then nothing.");
    std::fs::write(&path, json!([row("plain"), marked]).to_string()).unwrap();
    let (code, out, _) = palimpsest(&["data", "check", shown(&path)]);
    assert_eq!(code, 0);
    assert!(out.contains("note: 1 case") && out.contains("case `marked`: <|im_end|>"), "{out}");
    let (_, note) = out.split_once("note: ").unwrap();
    assert!(!note.contains("`plain`"), "{out}");
    let mut broken = row("broken");
    broken["type"] = json!("T9");
    std::fs::write(&path, json!([broken, marked]).to_string()).unwrap();
    let (code, out, err) = palimpsest(&["data", "check", shown(&path)]);
    assert_eq!(code, 1);
    assert!(
        out.contains("case `marked`: <|im_end|>") && err.contains("1 problem in 1 of 2 rows"),
        "{out}{err}"
    );
}

#[test]
fn check_counts_findings_by_check_shows_the_first_and_gives_all_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("odd.json");
    let mut odd = super::checks::row("a");
    for session in [0, 2, 4] {
        odd["haystack_session"][session][1]["content"] = json!("STOP");
    }
    odd["M_new"] = json!("A crane lifted my greenhouse onto a truck now.");
    let mut broken = super::checks::row("b");
    broken["type"] = json!("T9");
    std::fs::write(&path, json!([odd]).to_string()).unwrap();
    let (code, out, err) = palimpsest(&["data", "check", shown(&path), "--examples", "2"]);
    assert_eq!((code, err.as_str()), (0, ""), "findings refuse nothing");
    let lines: Vec<&str> = out.lines().skip(1).collect();
    let about = "turns that are no text but a generator's word, an error message or nothing";
    assert_eq!(
        lines,
        [
            "warning: marked-update: 1 new states with words of negation or change",
            "  marked-update: case `a`: the new state says: now",
            &format!("error: stray-text: 3 {about}"),
            "  stray-text: case `a` [0]: turn 1 is \"STOP\"",
            "  stray-text: case `a` [2]: turn 1 is \"STOP\"",
            "  and 1 more",
        ]
    );
    std::fs::write(&path, json!([odd, broken]).to_string()).unwrap();
    let (code, out, err) = palimpsest(&["data", "check", shown(&path), "--json"]);
    assert!(code == 1 && err.contains("1 problem in 1 of 2 rows"), "{code} {err}");
    let rows: Vec<serde_json::Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&str> = rows.iter().map(|row| row["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["problem", "finding", "finding", "finding", "finding", "summary"]);
    assert_eq!((&rows[0]["row"], &rows[0]["field"]), (&json!(1), &json!("type")));
    assert_eq!(
        rows[2],
        json!({
            "kind": "finding", "severity": "error", "check": "stray-text", "case": "a", "segments": [0],
            "message": "turn 1 is \"STOP\"",
        })
    );
    let summary = rows.last().unwrap();
    assert_eq!(
        (&summary["rows"], &summary["problems"], &summary["sound"]),
        (&json!(2), &json!(1), &json!(false))
    );
    assert_eq!(summary["checks"][1]["findings"], 3);
    // A built-in sample is valid data too.
    let (code, out, _) = palimpsest(&["data", "check", "sample", "--json"]);
    assert_eq!(code, 0);
    assert!(out.lines().last().unwrap().contains("\"benchmark\":\"stale\""), "{out}");
}

#[test]
fn check_names_the_place_where_a_file_is_torn() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("torn.json");
    std::fs::write(&path, format!("[{},\n{{\"uid\": \"b", row("a"))).unwrap();
    let (code, _, err) = palimpsest(&["data", "check", shown(&path)]);
    assert_eq!(code, 1);
    assert!(err.contains("row 1, line 2, column 11") && err.contains("1 sound row before"), "{err}");
    let (code, _, err) = palimpsest(&["data", "check", shown(&folder.path().join("none.json"))]);
    assert_eq!(code, 1);
    assert!(err.contains("none.json") && err.contains("sample"), "{err}");
}

#[test]
fn sample_writes_a_sound_file_to_a_path_or_to_standard_output() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sample.json");
    let (code, out, _) =
        palimpsest(&["data", "sample", "--sessions", "7", "--seed", "3", "--out", shown(&path)]);
    assert_eq!(code, 0);
    assert!(out.contains("sample.json") && out.contains("7 sessions"), "{out}");
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(check(written.as_bytes()).is_sound());
    let (code, out, _) = palimpsest(&["data", "sample", "--sessions", "7", "--seed", "3"]);
    assert_eq!((code, out), (0, written));
}

#[test]
fn sample_leaves_nothing_behind_when_it_cannot_write() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("no such folder").join("sample.json");
    let (code, _, err) = palimpsest(&["data", "sample", "--out", shown(&path)]);
    assert_eq!(code, 1);
    assert!(err.contains("cannot write") && err.contains("sample.json"), "{err}");
    let (code, _, err) =
        palimpsest(&["data", "sample", "--sessions", "1", "--out", shown(&folder.path().join("a"))]);
    assert_eq!(code, 1);
    assert!(err.contains("ask for 2 to 10000"), "{err}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn stats_need_no_model_and_put_the_paper_beside_what_was_measured() {
    let (code, out, err) = palimpsest(&["data", "stats", "sample", "--paper", "--json"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let rows: serde_json::Value = serde_json::from_str(&out).unwrap();
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.iter().map(|row| &row["split"]).collect::<Vec<_>>(), ["T1", "T2", "all"]);
    for row in rows {
        assert_eq!(row["tokenizer"], "o200k_base");
        let mean = |form: &str| row[form]["mean"].as_f64().unwrap();
        // JSON has the same content as the other formats, and balanced brackets.
        assert!(mean("raw") > mean("formatted") && mean("formatted") > mean("content"), "{row:#}");
        assert_eq!(row["content_mean"], row["content"]["mean"]);
    }
    // Table 5 of the paper, last line.
    let paper = &rows[2]["paper"];
    assert_eq!((&paper["formatted"]["max"], &paper["content_mean"]), (&json!(164_919), &json!(149_562.0)));
    // Off by default, except for the published file.
    let (_, out, _) = palimpsest(&["data", "stats", "sample", "--json"]);
    assert!(!out.contains("paper"), "{out}");
    let (code, out, _) =
        palimpsest(&["data", "stats", "sample", "--tokenizer", "cl100k_base", "--tokenizer", "o200k_base"]);
    assert_eq!(code, 0);
    // Lengths, and below them places.
    assert_eq!((out.matches("cl100k_base").count(), out.matches("o200k_base").count()), (6, 6), "{out}");
}

#[test]
fn stats_refuse_encodings_and_labels_that_there_are_not() {
    let (code, _, err) = palimpsest(&["data", "stats", "sample", "--tokenizer", "p50k"]);
    assert!(code == 2 && err.contains("p50k") && err.contains("cl100k_base"), "{code} {err}");
    let (code, _, err) = palimpsest(&["data", "stats", "sample", "--by", "colour"]);
    assert!(code == 2 && err.contains("colour") && err.contains("case, type"), "{code} {err}");
}

#[test]
fn stats_of_data_without_labels_have_one_row_or_one_a_history() {
    let rows = |args: &[&str]| {
        let (code, out, err) =
            palimpsest(&[&["data", "stats", "sample:subtlememory", "--json"], args].concat());
        assert_eq!((code, err.as_str()), (0, ""));
        let rows: Vec<serde_json::Value> = serde_json::from_str(&out).unwrap();
        rows
    };
    let one = rows(&[]);
    assert_eq!(one.len(), 1);
    assert_eq!((&one[0]["split"], &one[0]["sessions_mean"]), (&json!("all"), &json!(24.0)));
    let each = rows(&["--by", "case"]);
    assert_eq!(
        each.iter().map(|row| row["split"].as_str().unwrap()).collect::<Vec<_>>(),
        ["persona_0", "all"]
    );
    assert_eq!(each[0]["formatted"], one[0]["formatted"]);
    assert!(each[0]["content"]["max"].as_u64().unwrap() > 1000);
    let (code, out, _) = palimpsest(&["data", "stats", "sample:subtlememory"]);
    assert!(code == 0 && out.contains("cases of  cases  sessions"), "{out}");
    // Distances of its 11 sets, counted by hand: 5, 8, 9, 10, 11 four times, 12, 13 three times, 16.
    assert_eq!(one[0]["siblings"], json!({"median": 11.0, "min": 5, "max": 16}));
    assert!(each[0]["siblings"].is_null() && each[1]["siblings"] == one[0]["siblings"]);
    assert!(out.ends_with("(1: side by side): median 11, min 5, max 16.\n"), "{out}");
    let (_, out, _) = palimpsest(&["data", "stats", "sample"]);
    assert!(!out.contains("side by side"), "STALE has no sets: {out}");
    let (code, _, err) = palimpsest(&["data", "stats", "sample", "--by", "case", "--figure", "x"]);
    assert!(code == 2 && err.contains("--figure"), "{code} {err}");
}
