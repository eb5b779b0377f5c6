use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;

use palimpsest::benchmarks::stale::STALE;
use palimpsest::benchmarks::{Benchmark, JudgeUnit, Rubric, VerdictKind};
use palimpsest::chat::{
    ChatError, ChatModel, Message, MessageRole, Reply, Sampling, ScoringModel, StopReason,
};
use palimpsest::judge::{
    Exchange, Instructions, Judge, Reasons, Said, Verdict, judge_by_reply, judge_by_scoring, run,
};
use palimpsest::runs::error::RunError;
use palimpsest::runs::plan::{PlannedCase, PlannedProbe, Selection};
use palimpsest::runs::runner::Summary;
use palimpsest::runs::store::{RunFolder, RunStore};
use palimpsest_core::engine::{ContextLength, LocalModel, LocalOptions};

use crate::eval::{cases, finished, header};

mod instructions;
mod names;
mod parallel;
mod reply;
mod scales;
mod served;

const GREEDY: Sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens: 64 };

fn exchanges() -> Vec<Exchange> {
    ["SR", "PR", "IPA"]
        .map(|id| {
            let probe =
                PlannedProbe { id: id.to_owned(), query: format!("{id}?"), ..PlannedProbe::default() };
            Exchange { probe, answer: Some("yes".to_owned()), cut: false }
        })
        .to_vec()
}

/// Reply of a model that ended its turn.
pub fn said(text: String) -> Reply {
    let stop = StopReason::EndOfTurn;
    Reply { text, thought: None, stop, prompt_tokens: None, completion_tokens: None }
}

/// Gives scripted replies in order and records the requests.
#[derive(Default)]
struct Scripted {
    replies: VecDeque<Result<String, String>>,
    /// Stop reason of each reply; end of turn after the last one.
    stops: VecDeque<StopReason>,
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
        let text = self.replies.pop_front().expect("no more calls were expected").map_err(ChatError::from)?;
        let stop = self.stops.pop_front().unwrap_or(StopReason::EndOfTurn);
        Ok(Reply { stop, ..said(text) })
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

/// A scoring judge that finds everything correct, for `calls` calls.
fn agreeable(calls: usize) -> Scripted {
    Scripted {
        scores: vec![vec![-0.5, -1.5]; 3 * calls].into(),
        reasons: vec!["it fits".to_owned(); 3 * calls].into(),
        ..Scripted::default()
    }
}

/// The benchmark's own instructions.
fn stale() -> Instructions {
    Instructions::from(&STALE.rubric())
}

fn with(reasons: Reasons) -> Instructions {
    Instructions { reasons, ..stale() }
}

#[test]
fn scoring_reads_softmax_probabilities_at_each_decision_and_builds_valid_json() {
    let mut model = Scripted {
        scores: vec![vec![-1.0, -3.0], vec![-4.0, -1.0], vec![-2.0, -2.0]].into(),
        reasons: vec!["it \\says\\ so\n".to_owned(), "  ".to_owned(), "tie\u{7}".to_owned()].into(),
        ..Scripted::default()
    };
    let judged = judge_by_scoring(&mut model, &[], &exchanges(), &stale()).unwrap();
    let verdicts: Vec<Verdict> = judged.verdicts.into_iter().map(Result::unwrap).collect();
    let expected = [1.0 / (1.0 + (-2.0_f64).exp()), 1.0 / (1.0 + 3.0_f64.exp()), 0.5];
    for (verdict, expected) in verdicts.iter().zip(expected) {
        assert!((verdict.probability.unwrap() - expected).abs() < 1e-12);
    }
    // A tie is not correct.
    assert_eq!(
        verdicts.iter().map(|v| v.said.clone()).collect::<Vec<_>>(),
        [true, false, false].map(Said::Correct)
    );
    assert_eq!(verdicts[0].reason.as_deref(), Some("it says so"));
    assert_eq!((verdicts[1].reason.as_deref(), verdicts[2].reason.as_deref()), (None, Some("tie")));
    let said = judged.replies.iter().map(|reply| serde_json::from_str(reply).unwrap());
    let said: Vec<serde_json::Value> = said.collect();
    assert_eq!(said[0], serde_json::json!({"SR": {"correct": true, "reason": "it says so"}}));
    assert_eq!(said[1], serde_json::json!({"PR": {"correct": false, "reason": ""}}));
    assert_eq!(said[2], serde_json::json!({"IPA": {"correct": false, "reason": "tie"}}));
}

#[test]
fn no_verdict_by_scoring_is_conditioned_on_another_and_a_reason_stands_where_it_was_asked_for() {
    let prefixes = |reasons, first: Vec<f64>| {
        let mut model = Scripted {
            scores: vec![first, vec![-4.0, -1.0], vec![-1.0, -2.0]].into(),
            reasons: vec!["one".to_owned(), "two".to_owned(), "three".to_owned()].into(),
            ..Scripted::default()
        };
        judge_by_scoring(&mut model, &[], &exchanges(), &with(reasons)).unwrap();
        model.prefixes
    };
    let last = prefixes(Reasons::Last, vec![-1.0, -3.0]);
    assert_eq!(
        last,
        [
            r#"{"SR": {"correct":"#,
            r#"{"SR": {"correct": true, "reason": ""#,
            r#"{"PR": {"correct":"#,
            r#"{"PR": {"correct": false, "reason": ""#,
            r#"{"IPA": {"correct":"#,
            r#"{"IPA": {"correct": true, "reason": ""#,
        ]
    );
    // Another verdict on the first probe does not change the prefixes of the others.
    assert_eq!(prefixes(Reasons::Last, vec![-3.0, -1.0])[2..], last[2..]);
    assert_eq!(
        prefixes(Reasons::First, vec![-1.0, -3.0]),
        [
            r#"{"SR": {"reason": ""#,
            r#"{"SR": {"reason": "one", "correct":"#,
            r#"{"PR": {"reason": ""#,
            r#"{"PR": {"reason": "two", "correct":"#,
            r#"{"IPA": {"reason": ""#,
            r#"{"IPA": {"reason": "three", "correct":"#,
        ]
    );
    let none = prefixes(Reasons::None, vec![-1.0, -3.0]);
    assert_eq!(none, [r#"{"SR": {"correct":"#, r#"{"PR": {"correct":"#, r#"{"IPA": {"correct":"#]);
}

#[test]
fn a_local_judge_says_the_same_of_a_probe_whatever_it_was_asked_before() {
    let fixture = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama-tiny");
    let options = LocalOptions { context: ContextLength::AtMost(2048), ..LocalOptions::default() };
    let message = "Is every exchange correct?".to_owned();
    let messages = [Message { role: MessageRole::User, content: message }];
    for reasons in [Reasons::First, Reasons::Last, Reasons::None] {
        let judged = |order: &[usize]| {
            let mut model =
                LocalModel::open(&palimpsest_core::model::ModelFiles::at(&fixture).unwrap(), &options)
                    .unwrap();
            let all = exchanges();
            let asked: Vec<Exchange> = order.iter().map(|&at| all[at].clone()).collect();
            let judged = judge_by_scoring(&mut model, &messages, &asked, &with(reasons)).unwrap();
            judged.verdicts.into_iter().map(Result::unwrap).collect::<Vec<Verdict>>()
        };
        let together = judged(&[0, 1, 2]);
        let backwards = judged(&[2, 1, 0]);
        for at in 0..3 {
            for other in [&backwards[2 - at], &judged(&[at])[0]] {
                let (p, q) = (together[at].probability.unwrap(), other.probability.unwrap());
                assert!(p > 0.0 && p < 1.0 && (p - q).abs() < 1e-5, "{p} and {q}");
                assert_eq!((&together[at].said, &together[at].reason), (&other.said, &other.reason));
            }
            assert_eq!(together[at].reason.is_none(), reasons == Reasons::None);
        }
    }
}

#[test]
fn scores_that_are_no_numbers_or_too_few_are_an_error_not_a_verdict() {
    for scores in [vec![f64::NAN, 0.0], vec![f64::NEG_INFINITY; 2], vec![0.0]] {
        let mut model = Scripted { scores: vec![scores].into(), ..Scripted::default() };
        assert!(judge_by_scoring(&mut model, &[], &exchanges(), &stale()).is_err());
    }
    // An impossible word has probability 0.
    let mut model = Scripted {
        scores: vec![vec![f64::NEG_INFINITY, -1.0]].into(),
        reasons: vec![String::new()].into(),
        ..Scripted::default()
    };
    let judged = judge_by_scoring(&mut model, &[], &exchanges()[..1], &stale()).unwrap();
    let verdict = judged.verdicts[0].as_ref().unwrap();
    assert_eq!((&verdict.said, verdict.probability), (&Said::Correct(false), Some(0.0)));
}

#[test]
fn a_judge_by_scoring_weighs_every_word_that_it_may_say() {
    struct Weigher;
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
            Ok((0..choices.len()).map(|i| [-3.0, -1.0, -1.0, -2.0][i]).collect())
        }
        fn continue_from(&mut self, _: &[Message], _: &str, _: &str, _: usize) -> Result<String, ChatError> {
            Ok(String::new())
        }
    }
    let first = |kind| {
        let instructions = Instructions { verdict: kind, ..stale() };
        let judged = judge_by_scoring(&mut Weigher, &[], &exchanges()[..1], &instructions).unwrap();
        (judged.verdicts[0].clone().unwrap(), judged.replies)
    };
    let (verdict, replies) = first(VerdictKind::Score { most: 3, grades: &[] });
    // Ties go to the first; its probability is the softmax over all.
    assert_eq!(verdict.said, Said::Score(1.0));
    let total: f64 = [-3.0_f64, -1.0, -1.0, -2.0].iter().map(|x| x.exp()).sum();
    assert!((verdict.probability.unwrap() - (-1.0_f64).exp() / total).abs() < 1e-12);
    assert_eq!(replies, [r#"{"SR": {"score": 1, "reason": ""}}"#]);
    let (verdict, replies) = first(VerdictKind::Choice { of: &["a", "b"] });
    assert_eq!(
        (verdict.said, replies[0].as_str()),
        (Said::Choice("b".to_owned()), r#"{"SR": {"choice": "b", "reason": ""}}"#)
    );
}

#[test]
fn verdicts_by_another_rubric_are_not_taken_for_this_one_and_stay() {
    let (_root, dir) = finished(1);
    judge(&mut RunStore::open(&dir).unwrap(), &mut agreeable(1)).unwrap();
    let path = dir.join("verdicts.jsonl");
    let by_digest = std::fs::read_to_string(&path).unwrap();
    let digest = Instructions::from(&STALE.rubric()).digest();
    assert_eq!(by_digest.matches(&digest).count(), 3);
    // As version 0.1.0 wrote them: without a digest.
    let unnamed = by_digest.replace(&format!(r#""rubric":"{digest}","rubric_name":"released","#), "");
    std::fs::write(&path, &unnamed).unwrap();
    let summary = judge(&mut RunStore::open(&dir).unwrap(), &mut agreeable(1)).unwrap();
    assert_eq!((summary.skipped, summary.done), (0, 3), "the same judge judges again");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{unnamed}{by_digest}"));
    // The template's text, a call's coverage and its return format each change the rubric.
    let other = Rubric { template: "Judge.", ..STALE.rubric() };
    let by_probe = Rubric { unit: JudgeUnit::Probe, ..STALE.rubric() };
    let scored = Rubric { verdict: VerdictKind::Score { most: 5, grades: &[] }, ..STALE.rubric() };
    for rubric in [other, by_probe, scored] {
        assert_ne!(Instructions::from(&rubric).digest(), digest);
    }
    for reasons in [Reasons::First, Reasons::None] {
        assert_ne!(with(reasons).digest(), digest);
    }
    let folder = RunFolder::read(&dir).unwrap();
    let judges: Vec<(&str, Option<&str>)> =
        folder.judges().iter().map(|name| (name.label.as_str(), name.digest.as_deref())).collect();
    assert_eq!(
        judges,
        [("local:scripted", None), ("local:scripted (released, reasons last)", Some(digest.as_str()))]
    );
    let replies = std::fs::read_to_string(dir.join("replies.jsonl")).unwrap();
    assert_eq!(replies.lines().count(), 1, "of one call the last reply is kept: {replies}");
}

#[test]
fn an_unreadable_reply_is_sent_back_once_and_then_an_error_for_the_probes_concerned() {
    let good = r#"{"SR": true, "PR": true, "IPA": false}"#;
    let mut model = Scripted {
        replies: vec![Ok("I would say so.".to_owned()), Ok(good.to_owned())].into(),
        ..Scripted::default()
    };
    let verdicts = judge_by_reply(&mut model, &GREEDY, &[], &exchanges(), &stale()).unwrap().verdicts;
    assert_eq!(
        verdicts.iter().map(|v| v.as_ref().unwrap().said.clone()).collect::<Vec<_>>(),
        [true, true, false].map(Said::Correct)
    );
    // A greedy judge would repeat itself: the second call must differ.
    assert_eq!((model.asked[0].len(), model.asked[1].len()), (0, 2));
    assert_eq!(model.asked[1][0].content, "I would say so.");

    let mut model = Scripted {
        replies: vec![Ok(r#"{"SR": true}"#.to_owned()), Ok("What?".to_owned())].into(),
        ..Scripted::default()
    };
    let verdicts = judge_by_reply(&mut model, &GREEDY, &[], &exchanges(), &stale()).unwrap().verdicts;
    assert!(verdicts[0].is_ok());
    assert!(verdicts[1].as_ref().unwrap_err().to_string().contains("What?"));
}

fn judge(store: &mut RunStore, model: &mut Scripted) -> Result<Summary, RunError> {
    run(store, &mut Judge::Scoring(model), &STALE.rubric(), &AtomicBool::new(false), false)
}

#[test]
fn judging_makes_one_verdict_a_probe_and_skips_what_is_judged() {
    let (_root, dir) = finished(2);
    let mut store = RunStore::open(&dir).unwrap();
    let mut model = agreeable(2);
    let summary = judge(&mut store, &mut model).unwrap();
    assert_eq!(summary, Summary { planned: 6, done: 6, ..Summary::default() });
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
    let replies = dir.join("replies.jsonl");
    let whole = std::fs::read(&replies).unwrap();
    let verdicts = std::fs::read(&path).unwrap();
    for length in (0..whole.len()).step_by(7) {
        // A kill between a reply and its verdicts.
        std::fs::write(&replies, &whole[..length]).unwrap();
        std::fs::write(&path, b"").unwrap();
        judge(&mut RunStore::open(&dir).unwrap(), &mut agreeable(1)).unwrap();
        assert_eq!(std::fs::read(&replies).unwrap(), whole, "cut at byte {length}");
        assert_eq!(std::fs::read(&path).unwrap(), verdicts);
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
    let mut by_reply = Judge::Reply { models: vec![&mut other], sampling: GREEDY };
    run(&mut store, &mut by_reply, &STALE.rubric(), &AtomicBool::new(false), false).unwrap();
    drop(store);
    let folder = RunFolder::read(&dir).unwrap();
    let names: Vec<&str> = folder.judges().iter().map(|name| name.label.as_str()).collect();
    assert_eq!(
        names,
        ["local:scripted (released, reasons last)", "http://host/v1#m (released, reasons last)"]
    );
    assert_eq!(folder.verdicts.len(), 6);
}

#[test]
fn missing_answers_cost_no_call_and_become_error_rows() {
    let all = cases(2);
    let root = tempfile::tempdir().unwrap();
    let plan = Selection::of_all(&STALE).plan(&all).unwrap();
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
    let mut judge = Judge::Reply { models: vec![&mut model], sampling: GREEDY };
    run(store, &mut judge, &STALE.rubric(), &AtomicBool::new(false), false)
}

#[test]
fn a_judge_that_is_gone_ends_the_job_and_leaves_no_rows() {
    let (_root, dir) = finished(5);
    let mut store = RunStore::open(&dir).unwrap();
    let error = by_reply(&mut store, vec![Err("refused".to_owned()); 3]).unwrap_err().to_string();
    assert!(error.contains("refused") && error.contains("resumes"), "{error}");
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
    let summary =
        run(&mut store, &mut Judge::Scoring(&mut model), &STALE.rubric(), &AtomicBool::new(true), false)
            .unwrap();
    assert!(summary.stopped && model.asked.is_empty());
    assert_eq!(judge(&mut store, &mut agreeable(2)).unwrap().done, 6);
}
