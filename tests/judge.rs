//! What must hold for: judge.
use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;

use palimpsest::chat::{ChatError, ChatModel, Message, Reply, Sampling, ScoringModel, StopReason};
use palimpsest::judge::reply::parse_verdicts;
use palimpsest::judge::{Exchange, Judge, judge_by_reply, judge_by_scoring, judge_prompt, run};
use palimpsest::run::error::RunError;
use palimpsest::run::plan::Selection;
use palimpsest::run::runner::Summary;
use palimpsest::run::store::{RunFolder, RunStore};

use crate::eval::{cases, finished, header};

const GREEDY: Sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens: 64 };

fn exchanges() -> Vec<Exchange> {
    ["SR", "PR", "IPA"]
        .map(|id| Exchange { id: id.to_owned(), query: format!("{id}?"), answer: Some("yes".to_owned()) })
        .to_vec()
}

/// Says what it was told to, in order, and keeps what it was asked.
#[derive(Default)]
struct Scripted {
    replies: VecDeque<Result<String, String>>,
    scores: VecDeque<Vec<f64>>,
    reasons: VecDeque<String>,
    asked: Vec<Vec<Message>>,
    prefixes: Vec<String>,
}

impl ChatModel for Scripted {
    fn name(&self) -> String {
        "local:scripted".to_owned()
    }

    fn reply(&mut self, messages: &[Message], _: &Sampling) -> Result<Reply, ChatError> {
        self.asked.push(messages.to_vec());
        let text = self.replies.pop_front().expect("no more calls were expected").map_err(ChatError)?;
        Ok(Reply { text, stop: StopReason::EndOfTurn, prompt_tokens: None, completion_tokens: None })
    }
}

impl ScoringModel for Scripted {
    fn score(&mut self, messages: &[Message], prefix: &str, choices: &[&str]) -> Result<Vec<f64>, ChatError> {
        assert_eq!(choices, [" true", " false"]);
        self.asked.push(messages.to_vec());
        self.prefixes.push(prefix.to_owned());
        Ok(self.scores.pop_front().expect("no more calls were expected"))
    }

    fn continue_from(
        &mut self,
        _: &[Message],
        prefix: &str,
        until: &str,
        _: usize,
    ) -> Result<String, ChatError> {
        assert_eq!(until, "\"");
        self.prefixes.push(prefix.to_owned());
        Ok(self.reasons.pop_front().expect("no more calls were expected"))
    }
}

/// A judge by scoring that finds everything right, `calls` times.
fn agreeable(calls: usize) -> Scripted {
    Scripted {
        scores: vec![vec![-0.5, -1.5]; 3 * calls].into(),
        reasons: vec!["it fits".to_owned(); 3 * calls].into(),
        ..Scripted::default()
    }
}

#[test]
fn the_prompt_holds_all_that_the_judge_may_see_and_no_history() {
    let plan = Selection::default().plan(&cases(1)).unwrap();
    let mut exchanges = exchanges();
    exchanges[1].answer = None;
    let prompt = judge_prompt(&plan[0], &exchanges).unwrap();
    for part in [
        "old 0",
        "new 0",
        "because 0",
        "SR?",
        "IPA?",
        "(no response was given)",
        "Its keys are \"SR\", \"PR\", \"IPA\"; each holds an object with \"correct\" (true or false)",
    ] {
        assert!(prompt.contains(part), "{part} in {prompt}");
    }
    assert!(!prompt.contains("message 1"), "{prompt}");
}

#[test]
fn scoring_reads_softmax_probabilities_at_each_decision_and_builds_valid_json() {
    let mut model = Scripted {
        scores: vec![vec![-1.0, -3.0], vec![-4.0, -1.0], vec![-2.0, -2.0]].into(),
        reasons: vec!["it \\says\\ so\n".to_owned(), "  ".to_owned(), "tie\u{7}".to_owned()].into(),
        ..Scripted::default()
    };
    let verdicts = judge_by_scoring(&mut model, &[], &exchanges()).unwrap();
    let expected = [1.0 / (1.0 + (-2.0_f64).exp()), 1.0 / (1.0 + 3.0_f64.exp()), 0.5];
    for (verdict, expected) in verdicts.iter().zip(expected) {
        assert!((verdict.probability.unwrap() - expected).abs() < 1e-12);
    }
    // A tie is not correct.
    assert_eq!(verdicts.iter().map(|v| v.correct).collect::<Vec<_>>(), [true, false, false]);
    assert_eq!(verdicts[0].reason.as_deref(), Some("it says so"));
    assert_eq!((verdicts[1].reason.as_deref(), verdicts[2].reason.as_deref()), (None, Some("tie")));
    assert_eq!(model.prefixes[0], "{\"SR\": {\"correct\":");
    assert_eq!(model.prefixes[1], "{\"SR\": {\"correct\": true, \"reason\": \"");
    let last = model.prefixes.last().unwrap();
    let whole: serde_json::Value = serde_json::from_str(&format!("{last}tie\"}}}}")).unwrap();
    assert_eq!(whole["PR"]["correct"], false);
}

#[test]
fn scores_that_are_no_numbers_or_too_few_are_an_error_not_a_verdict() {
    for scores in [vec![f64::NAN, 0.0], vec![f64::NEG_INFINITY; 2], vec![0.0]] {
        let mut model = Scripted { scores: vec![scores].into(), ..Scripted::default() };
        assert!(judge_by_scoring(&mut model, &[], &exchanges()).is_err());
    }
    // One impossible word leaves no doubt.
    let mut model = Scripted {
        scores: vec![vec![f64::NEG_INFINITY, -1.0]].into(),
        reasons: vec![String::new()].into(),
        ..Scripted::default()
    };
    let verdicts = judge_by_scoring(&mut model, &[], &exchanges()[..1]).unwrap();
    assert_eq!((verdicts[0].correct, verdicts[0].probability), (false, Some(0.0)));
}

#[test]
fn replies_are_read_in_every_way_that_models_write_them() {
    let ids = ["SR", "PR", "IPA"];
    let spellings = [
        r#"{"SR": {"correct": true, "reason": "a"}, "PR": {"correct": false, "reason": "b"}, "IPA": {"correct": true, "reason": "c"}}"#,
        "Sure! Here it is:\n```json\n{\"SR\": {\"correct\": true, \"reason\": \"a\"},\n \"PR\": {\"correct\": false, \"reason\": \"b\"},\n \"IPA\": {\"correct\": true, \"reason\": \"c\"},\n}\n```\nHope that helps {smile}.",
        "{'SR': {'correct': True, 'reason': 'a'}, 'PR': {'correct': False, 'reason': 'b'}, 'IPA': {'correct': True, 'reason': 'c'}}",
        r#"{"sr": {"correct": "yes", "reason": "a"}, "pr": {"correct": "No", "reason": "b"}, "ipa": {"correct": 1, "reason": "c"}}"#,
        r#"{"SR_correct": true, "SR_reason": "a", "PR_correct": false, "PR_reason": "b", "IPA_correct": true, "IPA_reason": "c"}"#,
        r#"{"SR": true, "SR_reason": "a", "PR": false, "PR_reason": "b", "IPA": "correct", "IPA_reason": "c"}"#,
        r#"{"verdicts": {"SR": {"verdict": true, "explanation": "a"}, "PR": {"verdict": false, "explanation": "b"}, "IPA": {"verdict": true, "explanation": "c"}}}"#,
        r#"[{"id": "SR", "correct": true, "reason": "a"}, {"id": "PR", "correct": false, "reason": "b"}, {"id": "IPA", "correct": true, "reason": "c"}]"#,
        r#"<think>Perhaps {"SR": {"correct": false}, "PR": {"correct": true}, "IPA": {"correct": false}}? No.</think>{"SR": {"correct": true, "reason": "a"}, "PR": {"correct": false, "reason": "b"}, "IPA": {"correct": true, "reason": "c"}}"#,
        "{SR: {correct: true, reason: a}, PR: {correct: false, reason: b}, IPA: {correct: true, reason: c}}",
        r#"{"SR": {"correct": true, "reason": "a"}, "PR": {"correct": false, "reason": "b"}, "IPA": {"correct": true, "reason": "c""#,
    ];
    for text in spellings {
        let found = parse_verdicts(text, &ids);
        let seen: Vec<_> = found.iter().flatten().map(|v| (v.correct, v.reason.as_deref())).collect();
        assert_eq!(seen, [(true, Some("a")), (false, Some("b")), (true, Some("c"))], "{text}");
    }
}

#[test]
fn quotes_within_reasons_are_kept() {
    let text = r#"{'SR': {'correct': true, 'reason': 'it doesn't cite the "old" job'}}"#;
    let found = parse_verdicts(text, &["SR"]);
    assert_eq!(found[0].as_ref().unwrap().reason.as_deref(), Some("it doesn't cite the \"old\" job"));
}

#[test]
fn what_is_not_said_is_missing_and_never_guessed() {
    let none = |text: &str| assert!(parse_verdicts(text, &["SR"]).iter().all(Option::is_none), "{text}");
    none("");
    none("All three are correct.");
    none("{");
    none("{}[]{]}");
    none(r#"{"SR": {"correct": true or false, "reason": "..."}}"#);
    none(r#"{"SR": {"correct": "partly", "reason": "..."}}"#);
    none(r#"{"SR": {"correct": null}}"#);
    none(r#"{"SR": {"reason": "true"}}"#);
    none(&"{\"a\":".repeat(100_000));
    none(&"[".repeat(1_000_000));
    let found = parse_verdicts(r#"{"SR": {"correct": true}, "PR": "unsure"}"#, &["SR", "PR", "IPA"]);
    assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, false]);
    assert_eq!(found[0].as_ref().unwrap().reason, None);
}

#[test]
fn an_unreadable_reply_is_sent_back_once_and_then_an_error_for_the_probes_concerned() {
    let good = r#"{"SR": true, "PR": true, "IPA": false}"#;
    let mut model = Scripted {
        replies: vec![Ok("I would say so.".to_owned()), Ok(good.to_owned())].into(),
        ..Scripted::default()
    };
    let verdicts = judge_by_reply(&mut model, &GREEDY, &[], &exchanges()).unwrap();
    assert_eq!(verdicts.iter().map(|v| v.as_ref().unwrap().correct).collect::<Vec<_>>(), [true, true, false]);
    // A greedy judge would say the same again: the second call must differ.
    assert_eq!((model.asked[0].len(), model.asked[1].len()), (0, 2));
    assert_eq!(model.asked[1][0].content, "I would say so.");

    let mut model = Scripted {
        replies: vec![Ok(r#"{"SR": true}"#.to_owned()), Ok("What?".to_owned())].into(),
        ..Scripted::default()
    };
    let verdicts = judge_by_reply(&mut model, &GREEDY, &[], &exchanges()).unwrap();
    assert!(verdicts[0].is_ok());
    assert!(verdicts[1].as_ref().unwrap_err().contains("What?"));
}

fn judge(store: &mut RunStore, model: &mut Scripted) -> Result<Summary, RunError> {
    run(store, &mut Judge::Scoring(model), &AtomicBool::new(false), false)
}

#[test]
fn judging_makes_one_verdict_a_probe_and_skips_what_is_judged() {
    let (_root, dir) = finished(2);
    let mut store = RunStore::open(&dir).unwrap();
    let mut model = agreeable(2);
    let summary = judge(&mut store, &mut model).unwrap();
    assert_eq!(summary, Summary { planned: 6, skipped: 0, done: 6, errors: 0, stopped: false });
    let prompt = &model.asked[0][0].content;
    assert!(prompt.contains("because 0") && prompt.contains("answer to case-0/IPA"), "{prompt}");
    drop(store);
    let verdicts = RunFolder::read(&dir).unwrap().verdicts;
    assert_eq!(verdicts.len(), 6);
    assert!(verdicts.iter().all(|v| v.correct == Some(true) && v.judge == "local:scripted"));

    let mut store = RunStore::open(&dir).unwrap();
    assert_eq!(judge(&mut store, &mut Scripted::default()).unwrap().skipped, 6);
}

#[test]
fn judging_cut_off_at_any_byte_ends_with_the_same_bytes() {
    let (_root, dir) = finished(1);
    judge(&mut RunStore::open(&dir).unwrap(), &mut agreeable(1)).unwrap();
    let path = dir.join("verdicts.jsonl");
    let whole = std::fs::read(&path).unwrap();
    for length in 0..whole.len() {
        std::fs::write(&path, &whole[..length]).unwrap();
        judge(&mut RunStore::open(&dir).unwrap(), &mut agreeable(1)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), whole, "cut at byte {length}");
    }
}

#[test]
fn verdicts_of_two_judges_stand_side_by_side() {
    let (_root, dir) = finished(1);
    let mut store = RunStore::open(&dir).unwrap();
    judge(&mut store, &mut agreeable(1)).unwrap();
    struct Other(Scripted);
    impl ChatModel for Other {
        fn name(&self) -> String {
            "http://host/v1#m".to_owned()
        }
        fn reply(&mut self, messages: &[Message], sampling: &Sampling) -> Result<Reply, ChatError> {
            self.0.reply(messages, sampling)
        }
    }
    let reply = r#"{"SR": false, "PR": false, "IPA": false}"#;
    let mut other = Other(Scripted { replies: vec![Ok(reply.to_owned())].into(), ..Scripted::default() });
    let mut by_reply = Judge::Reply { model: &mut other, sampling: GREEDY };
    run(&mut store, &mut by_reply, &AtomicBool::new(false), false).unwrap();
    drop(store);
    let folder = RunFolder::read(&dir).unwrap();
    assert_eq!(folder.judges(), ["local:scripted", "http://host/v1#m"]);
    assert_eq!(folder.verdicts.len(), 6);
}

#[test]
fn missing_answers_cost_no_call_and_become_error_rows() {
    let all = cases(2);
    let root = tempfile::tempdir().unwrap();
    let plan = Selection::default().plan(&all).unwrap();
    let mut store = RunStore::open_or_create(root.path(), &header(None), plan).unwrap();
    assert_eq!(judge(&mut store, &mut Scripted::default()).unwrap().errors, 6);
    let rows = store.verdicts();
    assert_eq!(rows.len(), 6);
    assert!(
        rows.iter().all(|row| row.correct.is_none() && row.error.as_ref().unwrap().contains("no answer"))
    );
}

fn by_reply(store: &mut RunStore, replies: Vec<Result<String, String>>) -> Result<Summary, RunError> {
    let mut model = Scripted { replies: replies.into(), ..Scripted::default() };
    run(store, &mut Judge::Reply { model: &mut model, sampling: GREEDY }, &AtomicBool::new(false), false)
}

#[test]
fn a_judge_that_is_gone_ends_the_job_and_leaves_no_rows() {
    let (_root, dir) = finished(5);
    let mut store = RunStore::open(&dir).unwrap();
    let error = by_reply(&mut store, vec![Err("refused".to_owned()); 3]).unwrap_err().to_string();
    assert!(error.contains("refused") && error.contains("goes on"), "{error}");
    assert!(store.verdicts().is_empty());
}

#[test]
fn a_call_that_fails_becomes_error_rows_that_the_same_command_mends() {
    let (_root, dir) = finished(4);
    let mut store = RunStore::open(&dir).unwrap();
    let good = Ok(r#"{"SR": true, "PR": true, "IPA": true}"#.to_owned());
    let too_long = Err("too long".to_owned());
    let script = vec![too_long.clone(), too_long.clone(), good, too_long];
    let summary = by_reply(&mut store, script).unwrap();
    assert_eq!((summary.done, summary.errors), (3, 9));
    assert_eq!(store.verdicts().iter().filter(|row| row.error.as_deref() == Some("too long")).count(), 9);
    assert_eq!(judge(&mut store, &mut agreeable(3)).unwrap().done, 9);
    assert_eq!(store.verdicts().len(), 12);
    assert!(store.verdicts().iter().all(|row| row.error.is_none()));
}

#[test]
fn a_stop_keeps_the_verdicts_so_far() {
    let (_root, dir) = finished(2);
    let mut store = RunStore::open(&dir).unwrap();
    let mut model = Scripted::default();
    let summary = run(&mut store, &mut Judge::Scoring(&mut model), &AtomicBool::new(true), false).unwrap();
    assert!(summary.stopped && model.asked.is_empty());
    assert_eq!(judge(&mut store, &mut agreeable(2)).unwrap().done, 6);
}
