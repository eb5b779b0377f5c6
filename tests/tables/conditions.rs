//! Conditions and judgings of one run side by side, and the coverage of their contexts.

use palimpsest::runs::plan::PlannedEvidence;

use super::*;

/// `plain` is an ordinary name; a heading, column or title names each number's condition.
#[test]
fn conditions_of_one_run_stand_beside_each_other_by_name_and_are_compared_question_by_question() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    Run::of("five", 20, vec![[9, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1], [1, 1, 1, 1, 1, 1]]).write(&at("five"));
    Run::of("alone", 20, vec![[9, 2, 3, 4, 5, 6]]).write(&at("alone"));
    let rows = |text: &str| -> Vec<Vec<String>> {
        let of = |line: &str| line.split_whitespace().take(2).map(str::to_owned).collect();
        text.lines().filter(|line| line.starts_with("five ")).map(of).collect()
    };
    let text = done(root.path(), &["five"]);
    assert!(text.lines().any(|line| line.split_whitespace().take(2).eq(["model", "condition"])), "{text}");
    assert_eq!(rows(&text), [["five", "plain"], ["five", "repeat-2"], ["five", "repeat-3"]]);
    for (asked, expected) in
        [("plain", &["plain"][..]), ("plain,plain", &["plain"]), ("repeat-3,plain", &["plain", "repeat-3"])]
    {
        let csv = done(root.path(), &["five", "--condition", asked, "--format", "csv"]);
        let mut reader = csv::Reader::from_reader(csv.as_bytes());
        let records: Vec<BTreeMap<String, String>> = reader.deserialize().map(Result::unwrap).collect();
        let mut found: Vec<&str> = records.iter().map(|record| record["condition"].as_str()).collect();
        found.dedup();
        assert_eq!(found, expected, "{asked}: {csv}");
    }
    // A non-plain condition is named too; in a run without others only the CSV needs a name.
    assert_eq!(rows(&done(root.path(), &["five", "--condition", "repeat-2"])), [["five", "repeat-2"]]);
    assert!(!done(root.path(), &["alone"]).contains("condition"));
    let compared =
        done(root.path(), &["five", "--condition", "plain,repeat-2", "--compare", "--format", "json"]);
    let json: Value = serde_json::from_str(&compared).unwrap();
    assert_eq!(json["conditions"], json!(["plain", "repeat-2"]));
    let test = &json["comparison"]["cells"][0]["test"];
    // 9 and 6 of 20 are correct, the smaller set within the larger.
    assert_eq!((&test["b"], &test["c"]), (&json!(3), &json!(0)));
    assert_eq!(json["comparison"]["first"], "five (plain)");
    let unknown = refused(root.path(), &["five", "--condition", "plain,other"]);
    assert!(
        unknown.contains("no condition `other`; its conditions are: plain, repeat-2, repeat-3"),
        "{unknown}"
    );
    // With one address the judge's name stays short; with two the addresses distinguish them.
    Run { judge: Some("http://other/v1#able-70b"), ..Run::of("theirs", 20, vec![[1; 6]]) }
        .write(&at("theirs"));
    let text = done(root.path(), &["alone", "theirs"]);
    assert!(
        text.contains("http://other/v1#able-70b (r)") && text.contains(&format!("{JUDGE} (r)")),
        "{text}"
    );
}

/// A truncated full history is a context like a retrieved one: its lost evidence is in the same table.
#[test]
fn what_was_left_of_cut_full_histories_is_said() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("cut");
    let evidence = |segment: usize| PlannedEvidence {
        segment,
        turn: None,
        bytes: None,
        role: if segment == 3 { "old" } else { "new" }.to_owned(),
    };
    Run::of("m", 10, vec![[5, 1, 3, 2, 0, 1]]).write_with(&dir, |answers, _| {
        // Every history of type 1 lost the old one of two pieces of evidence, and a quarter of its tokens.
        for row in answers.iter_mut().filter(|row| row.case.starts_with("T1")) {
            (row.dropped_sessions, row.dropped_tokens, row.history_tokens) = (vec![3, 8], 25, 100);
        }
    });
    let plan: Vec<PlannedCase> = Run::of("m", 10, vec![[0; 6]])
        .plan()
        .into_iter()
        .map(|case| PlannedCase { evidence: vec![evidence(3), evidence(5)], ..case })
        .collect();
    std::fs::write(
        dir.join("plan.jsonl"),
        plan.iter().map(|row| format!("{}\n", json!(row))).collect::<String>(),
    )
    .unwrap();
    let json: Value = serde_json::from_str(&done(root.path(), &["cut", "--format", "json"])).unwrap();
    let row = &json["tables"]["retrieval"]["rows"][0];
    // Half of 60 answers kept one of two pieces; two dropped sessions in half of them average to one.
    for (name, expected) in [
        ("condition", "plain"),
        ("segments", "all but 1.0"),
        ("tokens kept %", "87.5"),
        ("questions with evidence", "60"),
        ("evidence shown %", "75.0"),
        ("all of it %", "50.0"),
        ("clipped", "30"),
    ] {
        assert_eq!(row[name], expected, "{name}: {row}");
    }
    Run::of("whole", 10, vec![[5, 1, 3, 2, 0, 1]]).write(&root.path().join("whole"));
    assert!(!done(root.path(), &["whole"]).contains("tokens kept %"));
}

/// A judge with only unreadable replies differs from a judge that was never asked.
#[test]
fn a_judge_of_which_nothing_could_be_read_stands_as_0_of_n() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    Run::of("m", 10, vec![[5, 1, 3, 2, 0, 1]]).write_with(&at("m"), |_, verdicts| {
        let silent: Vec<VerdictRow> = verdicts
            .iter()
            .map(|row| VerdictRow {
                judge: "http://host/v1#silent-70b".to_owned(),
                correct: None,
                error: Some("no JSON".to_owned()),
                ..row.clone()
            })
            .collect();
        verdicts.extend(silent);
    });
    let text = done(root.path(), &["m"]);
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("m  ")).collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(
        lines[1].contains("silent-70b (r)")
            && lines[1].split_whitespace().rev().take(3).eq(["0", "60", "0.0!"]),
        "{text}"
    );
    assert!(
        text.lines().any(|line| line.starts_with("m: 60 of 60 ") && line.contains("silent-70b (r)")),
        "{text}"
    );
    assert!(
        text.contains("0/60") && text.contains("gave no readable verdict on any of 60 answers"),
        "{text}"
    );
}
