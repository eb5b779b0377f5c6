//! Scores in a reply: which numbers are on the rubric's scale.

use std::collections::BTreeMap;

use palimpsest::benchmarks::knowme::KNOWME;
use palimpsest::benchmarks::{Grades, rubric_named};
use palimpsest::judge::reply::{Found, ReplyText, read_verdicts};

use super::*;

const OF_5: VerdictKind = VerdictKind::Score { most: 5, grades: &[] };

/// Result for one question: a score, `?` if there is none, the rejected text, or both of two.
fn read(text: &str, kind: VerdictKind) -> String {
    let reply = ReplyText { text, cut: false, sole: Some(0) };
    match read_verdicts(reply, &["T6-1"], kind).remove(0) {
        Found::Verdict(verdict) => verdict.said.to_string(),
        Found::Missing => "?".to_owned(),
        Found::Unread(text) => format!("not {text}"),
        Found::Differing(one, other) => format!("{one} and {other}"),
    }
}

#[test]
fn scores_are_read_on_the_scale_of_the_rubric_and_on_no_other() {
    let all = [
        (r#"{"score": 4}"#, "4"),
        (r#"{"score": 4.0}"#, "4"),
        (r#"{"score": 4.5}"#, "4.5"),
        (r#"{"score": "4.5"}"#, "4.5"),
        (r#"{"score": -0.0}"#, "0"),
        (r#"{"score": "**4**"}"#, "4"),
        (r#"{"score": "`4`"}"#, "4"),
        // With the scale's own maximum.
        (r#"{"score": "4/5"}"#, "4"),
        (r#"{"score": 4/5}"#, "4"),
        (r#"{"score": "4 / 5"}"#, "4"),
        (r#"{"score": "4 out of 5"}"#, "4"),
        (r#"{"score": "4.5 of 5"}"#, "4.5"),
        (r#"{"score": 4, "max_score": 5}"#, "4"),
        (r#"{"T6-1": "4/5"}"#, "4"),
        // With another maximum.
        (r#"{"reason": "weak", "score": "3/10"}"#, "not \"3/10\""),
        (r#"{"score": 3/10}"#, "not \"3/10\""),
        (r#"{"score": "2/4"}"#, "not \"2/4\""),
        (r#"{"score": "3 out of 10"}"#, "not \"3 out of 10\""),
        (r#"{"score": "4/5/5"}"#, "not \"4/5/5\""),
        (r#"{"score": 3, "out_of": 10}"#, "not 3 of 10"),
        (r#"{"score": 3, "max_score": "10"}"#, "not 3 of 10"),
        (r#"{"T6-1": "3/10"}"#, "not \"3/10\""),
        (r#"{"score": "80%"}"#, "not \"80%\""),
        (r#"{"score": 0.8, "max": 1}"#, "not 0.8 of 1"),
        (r#"{"score": 3, "scale": "1-10"}"#, "not 3 of 10"),
        (r#"{"score": 3, "scale": "0 to 5"}"#, "3"),
        (r#"{"score": 80}"#, "not 80"),
        (r#"{"score": 5.5}"#, "not 5.5"),
        (r#"{"score": -1}"#, "not -1"),
        // Not a number.
        (r#"{"score": "four"}"#, "not \"four\""),
        (r#"{"score": "3-4"}"#, "not \"3-4\""),
        (r#"{"score": "4,5"}"#, "not \"4,5\""),
        (r#"{"score": "NaN"}"#, "not \"NaN\""),
        (r#"{"score": "inf"}"#, "not \"inf\""),
        (r#"{"score": null}"#, "not null"),
        (r#"{"score": true}"#, "not true"),
        (r#"{"score": ""}"#, "not \"\""),
        (r#"{"score": [4]}"#, "?"),
    ];
    for (text, expected) in all {
        assert_eq!(read(text, OF_5), expected, "{text}");
    }
}

#[test]
fn the_key_that_was_asked_for_decides_and_a_named_total_outweighs_its_parts() {
    let all = [
        // A verdict of another kind beside the score is ignored.
        (r#"{"reason": "ok", "correct": true, "score": 5}"#, "5"),
        (r#"{"reason": "ok", "is_correct": true, "score": 4}"#, "4"),
        (r#"{"correct": 1, "rating": 4}"#, "4"),
        (r#"{"correct": true}"#, "?"),
        (r#"{"score": "n/a", "rating": 4}"#, "not \"n/a\""),
        (r#"{"verdict": "good", "grade": 3}"#, "3"),
        // Criteria.
        (r#"{"criteria": {"outer": {"score": 1}, "inner": {"score": 2}}, "score": 3}"#, "3"),
        (r#"{"score": 3, "criteria": [{"name": "outer", "score": 1}, {"name": "inner", "score": 2}]}"#, "3"),
        (r#"{"T6-1": {"criteria": {"outer": {"score": 1}}, "score": 3, "reason": "x"}}"#, "3"),
        (r#"{"scores": {"outer": 1, "inner": 2}, "total": 3}"#, "3"),
        (r#"{"outer_score": 1, "inner_score": 2, "total_score": 3}"#, "3"),
        (r#"{"evaluation": {"outer": {"score": 1}, "score": 3}}"#, "3"),
        (r#"{"score": 3, "final_score": 3}"#, "3"),
        (r#"{"score": 2, "final_score": 3}"#, "2 and 3"),
        (r#"{"score": 2, "score": 3}"#, "2 and 3"),
        // Criteria alone are not a total, even if they agree.
        (r#"{"outer": {"score": 1}, "inner": {"score": 2}}"#, "?"),
        (r#"{"T6-1": {"outer": {"score": 2}, "inner": {"score": 2}}}"#, "?"),
        (r#"{"result": {"score": 2, "reason": "x"}}"#, "2"),
        (r#"{"T6-1": {"evaluation": {"score": 2}}}"#, "2"),
    ];
    for (text, expected) in all {
        assert_eq!(read(text, OF_5), expected, "{text}");
    }
}

#[test]
fn what_judges_write_around_a_score_is_not_taken_for_it() {
    let all = [
        ("```json\n{\"score\": 4}\n```", "4"),
        ("```\n{\"T6-1\": {\"score\": 4}}\n```\nI hope that this helps!", "4"),
        ("**Verdict:**\n\n{\"score\": 4, \"reason\": \"It names the *image*.\"}", "4"),
        ("Score: {\"score\": \"4\"} (out of 5).", "4"),
        // An example after the verdict could as well be the verdict after a draft.
        ("{\"score\": 4}\n\nNote: {\"score\": 5} would need the image.", "?"),
        ("{\"score\": 4}\n\nAgain: {\"score\": 4} as said above.", "4"),
        ("{\"score\": 4}\n\nNo: {\"score\": 5}.", "5"),
        ("{\"name\": \"give_score\", \"arguments\": {\"score\": 4, \"reason\": \"x\"}}", "4"),
        ("{\"type\": \"object\", \"properties\": {\"score\": {\"type\": \"integer\"}}}", "?"),
        ("{“score”: 4}", "4"),
        ("{score: 4, reason: good}", "4"),
        // Quoted in a reason.
        (r#"{"reason": "He wrote {score: 1} himself", "score": 4}"#, "4"),
        (r#"{"reason": "He wrote \"score\": 1 himself", "score": 4}"#, "4"),
        (r#"{"reason": "He wrote "score": 1 himself", "score": 4}"#, "?"),
        // Drafts and thoughts.
        ("First {\"score\": 2}. On reflection {\"score\": 4}.", "4"),
        ("First {\"score\": 2}. On reflection {\"score\": \"4/10\"}.", "not \"4/10\""),
        ("<think>Perhaps {\"score\": 2}</think>\n{\"score\": 4}", "4"),
        ("<thinking>Perhaps {\"score\": 2}</thinking>{\"score\": 4}", "4"),
        ("<think>Perhaps {\"score\": 2}</think> It deserves full marks.", "?"),
        ("<think>Perhaps {\"score\": 2}, or", "?"),
        ("Perhaps {\"score\": 2}</think>", "?"),
        // The format, repeated before it is filled in.
        ("{\"score\": 0-5}\n{\"score\": 4}", "4"),
        ("{\"score\": 4}\n{\"score\": 4}", "4"),
        ("{\"score\": 4}\n{\"score\": 5}", "4 and 5"),
        // No JSON.
        ("Score: 4/5", "?"),
        ("4", "?"),
        ("\\boxed{4}", "?"),
        ("<score>4</score>", "?"),
    ];
    for (text, expected) in all {
        assert_eq!(read(text, OF_5), expected, "{text}");
    }
}

#[test]
fn words_of_right_and_wrong_are_read_by_the_key_that_was_asked_for() {
    let label = VerdictKind::Label { right: "CORRECT", wrong: "WRONG" };
    let choice = VerdictKind::Choice { of: &["A", "B"] };
    let all = [
        (VerdictKind::Correct, r#"{"correct": "**true**"}"#, "true"),
        (VerdictKind::Correct, r#"{"correct": "No."}"#, "false"),
        (VerdictKind::Correct, r#"{"correct": "partly", "score": 1}"#, "not \"partly\""),
        (VerdictKind::Correct, r#"{"correct": 0.8}"#, "not 0.8"),
        (VerdictKind::Correct, r#"{"judgment": "incorrect", "score": 4}"#, "false"),
        (VerdictKind::Correct, r#"{"score": 4}"#, "?"),
        (VerdictKind::Correct, r#"{"score": 1}"#, "?"),
        (VerdictKind::Correct, r#"{"rating": "1"}"#, "?"),
        (VerdictKind::Correct, r#"{"result": 0}"#, "?"),
        (VerdictKind::Correct, r#"{"correct": 0}"#, "false"),
        (VerdictKind::Correct, r#"{"grade": "CORRECT"}"#, "true"),
        (VerdictKind::Correct, r#"{"draft": {"correct": true}, "correct": false}"#, "false"),
        (label, r#"{"score": 1, "label": "WRONG"}"#, "false"),
        (label, r#"{"label": "**CORRECT**"}"#, "true"),
        (label, r#"{"label": "CORRECT or WRONG"}"#, "not \"CORRECT or WRONG\""),
        (choice, r#"{"verdict": "[[B]]"}"#, "B"),
        (choice, r#"{"choice": "C", "verdict": "A"}"#, "not \"C\""),
        (choice, r#"{"label": "right", "choice": "A"}"#, "A"),
    ];
    for (kind, text, expected) in all {
        assert_eq!(read(text, kind), expected, "{text}");
    }
}

/// A question of one task.
fn of_task(task: &str) -> Vec<Exchange> {
    let facets = BTreeMap::from([("task".to_owned(), task.to_owned())]);
    let probe = PlannedProbe { id: format!("{task}-1"), facets, ..PlannedProbe::default() };
    vec![Exchange { probe, answer: Some("an answer".to_owned()), cut: false }]
}

/// Verdict on a question of one task after these replies, or the error; and the retry message.
fn judged(rubric: &str, task: &str, replies: [&str; 2]) -> (Result<Said, String>, Option<String>) {
    let instructions = Instructions::from(&rubric_named(&KNOWME, rubric).unwrap());
    let mut model =
        Scripted { replies: replies.map(|text| Ok(text.to_owned())).into(), ..Scripted::default() };
    let mut judged = judge_by_reply(&mut model, &GREEDY, &[], &of_task(task), &instructions).unwrap();
    let again = model.asked.get(1).map(|messages| messages[1].content.clone());
    let verdict = judged.verdicts.remove(0);
    (verdict.map(|verdict| verdict.said).map_err(|error| error.to_string()), again)
}

#[test]
fn a_score_that_the_rubric_does_not_give_is_asked_for_again_and_then_none() {
    let score = |score: &str| format!("{{\"score\": {score}}}");
    let (verdict, again) = judged("released", "T3", [&score("4"), &score("3")]);
    assert_eq!(verdict, Ok(Said::Score(3.0)));
    let again = again.unwrap();
    assert!(again.starts_with("4 is no verdict here.") && again.contains("\"score\" (0, 3 or 5)"), "{again}");
    let (verdict, _) = judged("released", "T3", [&score("4"), &score("4.5")]);
    let error = verdict.unwrap_err();
    assert!(error.contains("(0, 3 or 5)") && error.contains("4.5"), "{error}");
    // Valid scores depend on the rubric and the task; a fraction between two valid scores counts.
    for (rubric, task, given, not) in [
        ("released", "T1", "4.5", "5.5"),
        ("released", "T2", "2", "-1"),
        ("released", "T5", "5", "2.5"),
        ("released", "T7", "0.5", "6"),
        ("graded", "T2", "0.5", "4"),
        ("graded", "T3", "3.5", "2"),
        ("graded", "T5", "2", "7"),
    ] {
        let (verdict, again) = judged(rubric, task, [&score(given), "-"]);
        assert_eq!((verdict, again), (Ok(Said::Score(given.parse().unwrap())), None), "{rubric} {task}");
        assert!(judged(rubric, task, [&score(not), &score(not)]).0.is_err(), "{rubric} {task}");
    }
    // Another template may allow others.
    let own = Instructions::from(&KNOWME.rubric()).with_template("Score it.".to_owned());
    let replies = vec![Ok(score("4"))].into();
    let mut model = Scripted { replies, ..Scripted::default() };
    let judged = judge_by_reply(&mut model, &GREEDY, &[], &of_task("T3"), &own).unwrap();
    assert_eq!(judged.verdicts[0].as_ref().unwrap().said, Said::Score(4.0));
}

#[test]
fn a_judge_by_scoring_weighs_the_scores_that_the_rubric_gives() {
    struct Weigher(Vec<String>);
    impl ChatModel for Weigher {
        fn name(&self) -> String {
            "local:weigher".to_owned()
        }
        fn reply(&mut self, _: &[Message], _: &Sampling) -> Result<Reply, ChatError> {
            unreachable!("it is scored")
        }
    }
    impl ScoringModel for Weigher {
        fn score(&mut self, _: &[Message], _: &str, choices: &[&str]) -> Result<Vec<f64>, ChatError> {
            self.0 = choices.iter().map(|&choice| choice.to_owned()).collect();
            Ok(choices.iter().map(|choice| if *choice == " 4" { 0.0 } else { -1.0 }).collect())
        }
        fn continue_from(&mut self, _: &[Message], _: &str, _: &str, _: usize) -> Result<String, ChatError> {
            Ok(String::new())
        }
    }
    let weighed = |task: &str| {
        let mut model = Weigher(Vec::new());
        let instructions = Instructions::from(&KNOWME.rubric());
        let judged = judge_by_scoring(&mut model, &[], &of_task(task), &instructions).unwrap();
        (model.0.concat(), judged.verdicts[0].clone().unwrap().said)
    };
    assert_eq!(weighed("T3"), (" 0 3 5".to_owned(), Said::Score(0.0)));
    assert_eq!(weighed("T1"), (" 0 1 2 3 4 5".to_owned(), Said::Score(4.0)));
}

#[test]
fn a_score_is_given_where_it_or_both_of_its_neighbours_are() {
    let of_b = [Grades { facet: ("task", "b"), scores: &[0, 1, 3] }];
    let grades: &'static [Grades] = Box::leak(Box::new(of_b));
    let kind = VerdictKind::Score { most: 3, grades };
    let facets = |task: &str| BTreeMap::from([("task".to_owned(), task.to_owned())]);
    let given = |task: &str| {
        let halves = (-1..=7).map(|half| f64::from(half) / 2.0);
        halves.filter(|score| kind.gives(*score, &facets(task))).collect::<Vec<_>>()
    };
    assert_eq!(given("b"), [0.0, 0.5, 1.0, 3.0]);
    assert_eq!(given("a"), [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]);
    assert_eq!(kind.values(&facets("b")), "0, 1 or 3");
}

#[test]
fn e09_a_score_of_another_scale_is_no_verdict() {
    for (reply, expected) in [
        (r#"{"reason": "weak", "score": "3/10"}"#, None),
        (r#"{"score": "2/4"}"#, None),
        (r#"{"reason": "ok", "correct": true, "score": 5}"#, Some(5.0)),
        (r#"{"reason": "ok", "is_correct": true, "score": 4}"#, Some(4.0)),
        (r#"{"criteria": {"outer": {"score": 1}, "inner": {"score": 2}}, "score": 3}"#, Some(3.0)),
        // More of the kind.
        (r#"{"score": "3 / 10 points"}"#, None),
        (r#"{"score": {"value": 3, "max": 10}}"#, None),
        (r#"{"score": 3, "out of": 10}"#, None),
        (r#"{"score": "60%"}"#, None),
        (r#"{"rating": "3/10"}"#, None),
        (r#"{"score": "3:10"}"#, None),
        (r#"{"score": "4 of 5"}"#, Some(4.0)),
    ] {
        let (verdict, again) = judged("released", "T6", [reply, reply]);
        assert_eq!(verdict.ok(), expected.map(Said::Score), "{reply}");
        assert_eq!(again.is_none(), expected.is_some(), "{reply}");
    }
}

/// The prompt names exactly the scores that the rubric allows for the question.
#[test]
fn e15_a_score_that_the_rubric_does_not_give_is_no_verdict_and_not_asked_for() {
    for (rubric, task, score, given, values) in [
        ("released", "T3", "4", false, "(0, 3 or 5)"),
        ("released", "T5", "4", false, "(0, 3 or 5)"),
        ("released", "T5", "\"4\"", false, "(0, 3 or 5)"),
        ("released", "T3", "3.0", true, "(0, 3 or 5)"),
        ("released", "T6", "4", true, "(0, 1, 2, 3, 4 or 5)"),
        ("graded", "T2", "4", false, "(0, 1, 3 or 5)"),
        ("graded", "T3", "2", false, "(0, 1, 3, 4 or 5)"),
    ] {
        let reply = format!("{{\"reason\": \"He wrote {{score: 1}} himself\", \"score\": {score}}}");
        assert_eq!(judged(rubric, task, [&reply, &reply]).0.is_ok(), given, "{rubric} {task} {score}");
        let instructions = Instructions::from(&rubric_named(&KNOWME, rubric).unwrap());
        let kind = instructions.verdict;
        let shown = format!("({})", kind.values(&of_task(task)[0].probe.facets));
        assert_eq!(shown, values, "{rubric} {task}");
    }
}
