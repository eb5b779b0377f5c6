//! Verdict rows from an endpoint's replies, one by one and all together.

use palimpsest::runs::rows::VerdictRow;

use super::*;
use crate::endpoint::{Scripted as Served, Server, ok, serve, status};

const GOOD: &str = r#"{"SR": {"correct": true, "reason": "a"}, "PR": {"correct": false, "reason": "b"}, "IPA": {"correct": true, "reason": "c"}}"#;

/// Result of judging `n` cases.
struct Came {
    server: Server,
    summary: Summary,
    rows: Vec<VerdictRow>,
    /// Lines of replies.jsonl, without repeated fields.
    replies: Vec<Vec<String>>,
}

fn judged(n: usize, retries: usize, script: Vec<Served>) -> Came {
    let (_root, dir) = finished(n);
    let mut store = RunStore::open(&dir).unwrap();
    let server = serve(script);
    let mut endpoint = server.endpoint(retries);
    let mut judge = Judge::Reply { models: vec![&mut endpoint], sampling: GREEDY };
    let summary = run(&mut store, &mut judge, stale(), &AtomicBool::new(false), false).unwrap();
    let rows = store.verdicts();
    let replies = std::fs::read_to_string(dir.join("replies.jsonl")).unwrap_or_default();
    let replies = replies.lines().map(|line| {
        let row: palimpsest::runs::rows::ReplyRow = serde_json::from_str(line).unwrap();
        row.replies
    });
    Came { summary, rows, replies: replies.collect(), server }
}

impl Came {
    fn row(&self, case: usize, probe: &str, outcome: Result<(bool, &str), &str>) -> VerdictRow {
        let row = VerdictRow {
            case: format!("case-{case}"),
            probe: probe.to_owned(),
            judge: self.server.endpoint(0).name(),
            rubric: Some(stale().digest()),
            rubric_name: Some("released".to_owned()),
            ..VerdictRow::default()
        };
        match outcome {
            Ok((correct, reason)) => {
                VerdictRow { correct: Some(correct), reason: Some(reason.to_owned()), ..row }
            }
            Err(error) => VerdictRow { error: Some(error.to_owned()), ..row },
        }
    }

    /// Asserts the rows of the only case and the kept replies.
    fn are(&self, outcomes: [Result<(bool, &str), &str>; 3], replies: &[&str]) {
        let rows = ["SR", "PR", "IPA"].into_iter().zip(outcomes);
        let rows: Vec<VerdictRow> = rows.map(|(probe, outcome)| self.row(0, probe, outcome)).collect();
        assert_eq!(self.rows, rows);
        assert_eq!(self.replies, if replies.is_empty() { vec![] } else { vec![replies.to_vec()] });
        let errors = outcomes.iter().filter(|outcome| outcome.is_err()).count();
        assert_eq!((self.summary.done, self.summary.errors), (3 - errors, errors));
    }

    /// Last message of request `at`.
    fn asked(&self, at: usize) -> String {
        let request = &self.server.seen()[at];
        let body: serde_json::Value =
            serde_json::from_str(request.split_once("\r\n\r\n").unwrap().1).unwrap();
        let messages = body["messages"].as_array().unwrap();
        messages.last().unwrap()["content"].as_str().unwrap().to_owned()
    }
}

const CLEAN: [Result<(bool, &str), &str>; 3] = [Ok((true, "a")), Ok((false, "b")), Ok((true, "c"))];

#[test]
fn three_objects_on_three_lines_are_three_verdicts() {
    let lines = "{\"SR\": {\"correct\": true, \"reason\": \"a\"}}\n{\"PR\": {\"correct\": false, \"reason\": \"b\"}}\n\
                 {\"IPA\": {\"correct\": true, \"reason\": \"c\"}}";
    let came = judged(1, 0, vec![ok(lines, "stop")]);
    came.are(CLEAN, &[lines]);
    assert_eq!(came.server.seen().len(), 1);
}

#[test]
fn what_the_final_group_lacks_is_asked_for_again_and_not_taken_from_a_draft() {
    let first = "Draft: {\"SR\": false, \"PR\": true, \"IPA\": false}. That was hasty.\n{\"SR\": {\"correct\": true, \"reason\": \"a\"}}";
    let second =
        r#"{"SR": false, "PR": {"correct": false, "reason": "b"}, "IPA": {"correct": true, "reason": "c"}}"#;
    let came = judged(1, 0, vec![ok(first, "stop"), ok(second, "stop")]);
    came.are(CLEAN, &[first, second]);
    let asked = came.asked(1);
    assert!(
        asked.contains("no verdict on PR, IPA.") && asked.contains("with the keys PR, IPA, each"),
        "{asked}"
    );
    assert!(!asked.contains("SR"), "{asked}");
}

#[test]
fn two_different_verdicts_on_one_probe_are_an_error_and_not_asked_for_again() {
    let reply = "{\"SR\": {\"correct\": true, \"reason\": \"a\"}, \"PR\": true}\n{\"PR\": false}\n\
                 {\"IPA\": {\"correct\": true, \"reason\": \"c\"}}";
    let came = judged(1, 0, vec![ok(reply, "stop")]);
    let error = "two different verdicts in one reply of the judge: true and false";
    came.are([Ok((true, "a")), Err(error), Ok((true, "c"))], &[reply]);
}

#[test]
fn half_a_reply_is_asked_for_again_until_patience_ends() {
    let Served::Reply(_, _, body) = ok(GOOD, "stop") else { unreachable!() };
    for with_length in [true, false] {
        let half = || Served::Half(body.clone(), with_length);
        let came = judged(1, 1, vec![half(), ok(GOOD, "stop")]);
        came.are(CLEAN, &[GOOD]);
        assert_eq!(came.server.seen().len(), 2);

        let came = judged(1, 1, vec![half(), half()]);
        let error = came.rows[0].error.clone().unwrap();
        let url = came.server.endpoint(0).name().replace("#some/model", "/chat/completions");
        let broke = format!("endpoint {url} model some/model: the connection broke");
        assert!(error.starts_with(&broke) && error.ends_with("; look at the server's log"), "{error}");
        came.are([Err(&error), Err(&error), Err(&error)], &[]);
        assert_eq!(came.server.seen().len(), 2);
    }
}

#[test]
fn a_reply_that_the_limit_cut_is_asked_for_again_once() {
    let cut = r#"{"SR": {"correct": true, "reason": "a"}, "PR": {"corr"#;
    let rest = r#"{"PR": {"correct": false, "reason": "b"}, "IPA": {"correct": true, "reason": "c"}}"#;
    let came = judged(1, 0, vec![ok(cut, "length"), ok(rest, "stop")]);
    came.are(CLEAN, &[cut, rest]);
    let asked = came.asked(1);
    assert!(
        asked.starts_with("That was cut off.") && asked.contains("with the keys PR, IPA, each"),
        "{asked}"
    );

    let draft = "First {\"SR\": true, \"PR\": true, \"IPA\": true}, but finally {\"SR\": {\"reason\": \"it";
    let came = judged(1, 0, vec![ok(draft, "length"), ok("{\"SR\": {\"corr", "length")]);
    let error = "the judge's reply was cut at 64 tokens before the verdict, twice; allow it more tokens; it began: {\"SR\": {\"corr";
    came.are([Err(error), Err(error), Err(error)], &[draft, "{\"SR\": {\"corr"]);
}

#[test]
fn a_rate_limit_is_waited_for() {
    let limited = || Served::Reply("429 Too Many Requests", "Retry-After: 1\r\n", "slow down".to_owned());
    let came = judged(1, 2, vec![limited(), limited(), ok(GOOD, "stop")]);
    came.are(CLEAN, &[GOOD]);
    assert_eq!(came.server.seen().len(), 3);
    let came = judged(1, 0, vec![limited()]);
    let error = came.rows[0].error.clone().unwrap();
    assert!(error.contains("status 429: slow down; the server limits the rate"), "{error}");
    came.are([Err(&error), Err(&error), Err(&error)], &[]);
}

#[test]
fn a_judge_that_declines_in_prose_is_asked_again_and_quoted() {
    let said = "I'm sorry, but I can't\nassist with that.";
    let came = judged(1, 0, vec![ok(said, "stop"), ok(said, "stop")]);
    let error = "no verdict in the judge's reply, twice (does it decline?); the last one began: I'm sorry, but I can't assist with that.";
    came.are([Err(error), Err(error), Err(error)], &[said, said]);
    assert!(came.asked(1).starts_with("That could not be read."), "{}", came.asked(1));
}

#[test]
fn a_judge_that_refuses_leaves_error_rows_and_does_not_end_the_job() {
    let message =
        serde_json::json!({"role": "assistant", "content": null, "refusal": "I can't help with that."});
    let body = serde_json::json!({"choices": [{"message": message, "finish_reason": "stop"}]}).to_string();
    let script = (0..4).map(|_| status("200 OK", &body)).chain([ok(GOOD, "stop")]).collect();
    let came = judged(5, 0, script);
    assert_eq!(came.server.seen().len(), 5, "a refusal is not argued with");
    let mut rows = Vec::new();
    for case in 0..4 {
        let error = Err("the judge refused: I can't help with that.");
        rows.extend(["SR", "PR", "IPA"].map(|probe| came.row(case, probe, error)));
    }
    rows.extend(["SR", "PR", "IPA"].into_iter().zip(CLEAN).map(|(probe, good)| came.row(4, probe, good)));
    assert_eq!(came.rows, rows);
    assert_eq!((came.summary.done, came.summary.errors), (3, 12));
}

#[test]
fn e08_a_judge_that_refuses_the_temperature_judges_without_and_its_rows_say_so() {
    let refusal = r#"{"error": {"message": "Unsupported value: 'temperature' does not support 0 with this model.", "param": "temperature"}}"#;
    let came = judged(2, 0, vec![status("400 Bad Request", refusal), ok(GOOD, "stop"), ok(GOOD, "stop")]);
    assert_eq!((came.summary.done, came.summary.errors, came.server.seen().len()), (6, 0, 3));
    assert!(came.rows.iter().all(|row| row.refused_parameters == ["temperature"]));
    let body = |at: usize| came.server.seen()[at].split_once("\r\n\r\n").unwrap().1.to_owned();
    assert!(body(0).contains("\"temperature\"") && !(body(1) + &body(2)).contains("\"temperature\""));
}
