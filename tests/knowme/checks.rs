//! Checks of gold answers, on small data sets.

use super::*;

const FACTS: &str = "Information Extraction";
const TRAPS: &str = "Adversarial Abstention";
const TIMES: &str = "Temporal Reasoning";

/// Findings of these checks, as text.
fn found(folder: Folder, checks: &[&str]) -> Vec<String> {
    let report = KNOWME.check(Box::new(read(folder).into_iter()), &mut |_| {});
    assert!(report.is_sound(), "{:?}", report.problems);
    let wanted = report.findings.iter().filter(|finding| checks.contains(&finding.check.name));
    wanted.map(ToString::to_string).collect()
}

#[test]
fn durations_are_worked_out_again_from_what_they_cite() {
    let row = |id: u64, answer: &str, evidence: Value| json!({"id": id, "question": format!("Number {id}: how long?"), "answer": answer, "evidence": evidence});
    let stated = |id: u64, answer: &str| json!({"id": id, "question": format!("Number {id}: how long?"), "answer": answer});
    let rows = json!([
        row(1, "10 seconds", json!([0, 2])),
        row(2, "10 seconds", json!([2, 0])),
        row(3, "15 seconds", json!([0, 2])),
        row(4, "1 day 1 hour", json!([7, 0])),
        row(5, "1 hour", json!([0, 8])), // no such event
        row(6, "1 hour", json!([0, 4])), // no time
        row(7, "A -> B", json!([0, 2])),
        row(8, "two hours", json!([0, 2])), // not read
        stated(9, "45 seconds (start time 01:13:02, end time 01:13:47)"),
        stated(10, "40 seconds (start time 01:13:02, end time 01:13:47)"),
        stated(11, "20 minutes (start time 23:50:00, end time 00:10:00)"),
        stated(12, "5 minutes"),
    ]);
    let folder = || small("t3", &[(TIMES, rows.clone())]);
    assert_eq!(
        found(folder(), &["gold-recomputed", "no-anchor"]),
        [
            "gold-recomputed: case `t3` T3-3: the gold is \"15 seconds\"; cited are 10 s",
            "no-anchor: case `t3` T3-5: the gold is \"1 hour\"",
            "no-anchor: case `t3` T3-6: the gold is \"1 hour\"",
            "gold-recomputed: case `t3` T3-10: the gold is \"40 seconds (start time 01:13:02, end time 01:13:47)\"; cited are 45 s",
        ]
    );
    let without: Vec<String> = found(folder(), &["no-evidence"]);
    assert_eq!(without.len(), 4, "{without:?}");
}

#[test]
fn golds_are_held_against_their_task_and_their_evidence() {
    let rows = |answers: &[(&str, Value)]| -> Value {
        let row = |(at, (answer, evidence)): (usize, &(&str, Value))| json!({"id": at, "question": format!("Question {at} of the morning?"), "answer": answer, "evidence": evidence});
        answers.iter().enumerate().map(row).collect()
    };
    let traps = rows(&[
        ("The text does not mention it.", json!(0)),
        ("A -> B -> C", json!(0)),
        ("", json!(0)),
        ("In the boathouse.", json!(0)),
    ]);
    let facts = rows(&[
        ("She washed.", json!(2)),
        ("At 09:00 on January 2", json!(7)),
        ("A red umbrella", json!([2, 7])),
        ("not mentioned in the text", json!(2)),
        ("The umbrella of the morning", json!(99)), // no evidence that could hold it
    ]);
    let folder = small("d", &[(TRAPS, traps), (FACTS, facts)]);
    assert_eq!(
        found(folder, &["gold-form", "empty-gold", "gold-not-in-evidence"]),
        [
            "empty-gold: d/answer/Adversarial Abstention_answers.json: case `d` T2-2: the gold of \"Question 2 of the morning?\" is empty",
            "gold-form: case `d` T1-3: an abstention under T1: \"not mentioned in the text\"",
            "gold-form: case `d` T2-1: a trap whose gold is \"A -> B -> C\"",
            "gold-form: case `d` T2-3: a trap whose gold is \"In the boathouse.\"",
            "gold-not-in-evidence: case `d` T1-2: the evidence of \"A red umbrella\" does not have: red, umbrella",
        ]
    );
}

#[test]
fn one_text_with_several_golds_is_an_error_and_with_one_a_repetition() {
    let row = |id: u64, question: &str, answer: &str| json!({"id": id, "question": question, "answer": answer, "evidence": 0});
    let rows = json!([
        row(1, "A, B, C", "A -> C -> B"),
        row(2, "A, B, C", "B -> C -> A"),
        row(3, "Which came first? A: the rain. B: the letter.", "A -> B"),
        row(4, "How long did she row?", "10 minutes"),
        row(5, "how long did she row", "10 minutes."),
    ]);
    assert_eq!(
        found(small("d", &[(TIMES, rows)]), &["two-golds", "same-question", "no-options"]),
        [
            "no-options: case `d` T3-1: \"A, B, C\" says nowhere what A, B, C are",
            "no-options: case `d` T3-2: \"A, B, C\" says nowhere what A, B, C are",
            "two-golds: case `d` T3-1, T3-2: 2 golds for \"A, B, C\": T3-1, T3-2",
            "same-question: case `d` T3-1, T3-2: 2 questions are \"A, B, C\": T3-1, T3-2",
            "same-question: case `d` T3-4, T3-5: 2 questions are \"How long did she row?\": T3-4, T3-5",
        ]
    );
}
