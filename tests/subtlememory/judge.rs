//! The judge's prompt for an answer, and the parsing of its reply.

use std::collections::{BTreeMap, VecDeque};

use palimpsest::benchmarks::subtlememory::SUBTLEMEMORY;
use palimpsest::benchmarks::{Said, VerdictKind};
use palimpsest::chat::{ChatError, ChatModel, Message, Reply, Sampling, ScoringModel};
use palimpsest::judge::reply::{Found, ReplyText, read_verdicts};
use palimpsest::judge::{Exchange, Instructions, Reasons, judge_by_reply, judge_by_scoring};
use palimpsest::runs::plan::PlannedCase;

use super::sample_case;
use crate::judge::said;

const SAMPLING: Sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens: 64 };

fn planned() -> PlannedCase {
    PlannedCase::of(&sample_case())
}

fn exchange(case: &PlannedCase, probe: &str, answer: &str) -> Exchange {
    let probe = case.probes.iter().find(|p| p.id == probe).unwrap().clone();
    Exchange { probe, answer: Some(answer.to_owned()), cut: false }
}

#[test]
fn the_judge_sees_the_set_the_references_and_the_rule_of_its_relation() {
    let case = planned();
    let rules = [
        ("related-picnic-q1", "the question needs several of them"),
        ("related-tea-q1", "It is enough that the answer"),
        ("unrelated-museum-q1", "at the time that the question asks about"),
        ("related-notes-q1", "on the occasion that the question asks about"),
        ("unrelated-bridge-q1", "makes the conflict visible or asks which side holds"),
    ];
    for (probe, rule) in rules {
        let prompt = Instructions::from(&SUBTLEMEMORY.rubric())
            .prompt(&case, &[exchange(&case, probe, "my answer")])
            .unwrap();
        let notes = &case.probes.iter().find(|p| p.id == probe).unwrap().judge;
        for name in ["correct_answers", "incorrect_answers", "facts"] {
            for text in notes[name].as_array().unwrap() {
                assert!(prompt.contains(text.as_str().unwrap()), "{probe} {text}");
            }
        }
        assert!(prompt.contains(rule) && prompt.contains("my answer"), "{prompt}");
        let others = rules.iter().filter(|(_, other)| *other != rule && prompt.contains(other)).count();
        assert_eq!(others, 0, "{prompt}");
        assert!(prompt.contains("\"label\" (\"CORRECT\" or \"WRONG\")"));
    }
}

/// Like the authors: the profile is shown for sets about the user, and only to the judge.
#[test]
fn the_judge_sees_the_users_profile_with_questions_about_the_user_and_with_no_other() {
    let case = planned();
    let profile = "a flat above the harbour workshop";
    let mut about_user = 0;
    for probe in &case.probes {
        let prompt = Instructions::from(&SUBTLEMEMORY.rubric())
            .prompt(&case, &[exchange(&case, &probe.id, "my answer")])
            .unwrap();
        let is_about_user = probe.facets["source"] == "user-related";
        assert_eq!(prompt.contains(profile), is_about_user, "{}", probe.id);
        about_user += usize::from(is_about_user);
        // A run of an earlier version has no profile in its plan.
        let mut bare = exchange(&case, &probe.id, "my answer");
        bare.probe.judge.remove("persona");
        let prompt = Instructions::from(&SUBTLEMEMORY.rubric()).prompt(&case, &[bare]).unwrap();
        assert!(!prompt.contains("profile"), "{prompt}");
    }
    assert!((1..15).contains(&about_user));
}

#[test]
fn of_a_set_of_single_evidence_one_fact_decides() {
    let case = planned();
    let mut single = exchange(&case, "related-picnic-q1", "my answer");
    single.probe.facets.insert("subtype".to_owned(), "single_evidence".to_owned());
    let prompt = Instructions::from(&SUBTLEMEMORY.rubric()).prompt(&case, &[single]).unwrap();
    assert!(prompt.contains("One of the facts decides the question"), "{prompt}");
    assert!(!prompt.contains("needs several of them"), "{prompt}");
}

#[test]
fn a_cut_answer_is_told_to_be_one_and_settling_by_references_is_a_judging_of_its_own() {
    let case = planned();
    let rubric = SUBTLEMEMORY.rubric();
    let whole = exchange(&case, "related-picnic-q1", "my answer");
    let cut = Exchange { cut: true, ..whole.clone() };
    let said = |exchange: &Exchange| {
        Instructions::from(&rubric).prompt(&case, std::slice::from_ref(exchange)).unwrap()
    };
    assert!(said(&cut).contains("cut this answer off") && !said(&whole).contains("cut this answer off"));

    let asking = Instructions::from(&rubric);
    let settling = Instructions::of(&SUBTLEMEMORY, &rubric);
    assert_ne!(asking.digest(), settling.digest(), "verdicts with and without are not alike");
    let right = whole.probe.judge["correct_answers"][0].as_str().unwrap();
    let right = exchange(&case, "related-picnic-q1", right);
    assert_eq!((settling.settled(&right), asking.settled(&right)), (Some(true), None));
}

#[test]
fn a_label_is_read_from_a_bare_object_and_nothing_else_is_guessed() {
    let kind = SUBTLEMEMORY.rubric().verdict;
    assert_eq!((kind.key(), kind.values(&BTreeMap::new())), ("label", "\"CORRECT\" or \"WRONG\"".to_owned()));
    let read = |text: &str| {
        let found = read_verdicts(ReplyText { text, cut: false, sole: Some(0) }, &["x-q1"], kind);
        match found.into_iter().next().unwrap() {
            Found::Verdict(verdict) => Some((verdict.said, verdict.reason)),
            _ => None,
        }
    };
    let right = Some((Said::Correct(true), Some("it fits".to_owned())));
    assert_eq!(read(r#"{"label": "CORRECT", "reason": "it fits"}"#), right);
    assert_eq!(read(r#"Well. {"reason": "it fits", "label": "correct"}"#), right);
    assert_eq!(read(r#"{"label": "WRONG"}"#), Some((Said::Correct(false), None)));
    for text in ["CORRECT", "", r#"{"label": "PARTLY"}"#, r#"{"reason": "CORRECT"}"#, r#"{"label": ""}"#] {
        assert_eq!(read(text), None, "{text}");
    }
    // The words come from the rubric.
    let other = VerdictKind::Label { right: "SOUND", wrong: "UNSOUND" };
    let found = read_verdicts(
        ReplyText { text: r#"{"label": "unsound"}"#, cut: false, sole: Some(0) },
        &["p"],
        other,
    );
    assert!(matches!(&found[0], Found::Verdict(verdict) if verdict.said == Said::Correct(false)));
}

/// Scripted replies.
#[derive(Default)]
struct Scripted {
    replies: VecDeque<&'static str>,
    asked: Vec<Vec<Message>>,
    prefixes: Vec<String>,
    scores: VecDeque<Vec<f64>>,
}

impl ChatModel for Scripted {
    fn name(&self) -> String {
        "scripted".to_owned()
    }

    fn reply(&mut self, messages: &[Message], _: &Sampling) -> Result<Reply, ChatError> {
        self.asked.push(messages.to_vec());
        let text = self.replies.pop_front().unwrap().to_owned();
        Ok(said(text))
    }
}

impl ScoringModel for Scripted {
    fn score(&mut self, _: &[Message], prefix: &str, choices: &[&str]) -> Result<Vec<f64>, ChatError> {
        assert_eq!(choices, [" \"CORRECT\"", " \"WRONG\""]);
        self.prefixes.push(prefix.to_owned());
        Ok(self.scores.pop_front().unwrap())
    }

    fn continue_from(&mut self, _: &[Message], _: &str, _: &str, _: usize) -> Result<String, ChatError> {
        Ok("so".to_owned())
    }
}

#[test]
fn a_reply_without_a_label_is_asked_for_again_in_the_same_form_and_then_an_error() {
    let case = planned();
    let exchanges = [exchange(&case, "related-tea-q1", "Rooibos")];
    let instructions = Instructions::from(&SUBTLEMEMORY.rubric());
    let mut model = Scripted {
        replies: ["Fine!", "{\"label\": \"CORRECT\", \"reason\": \"so\"}"].into(),
        ..Scripted::default()
    };
    let judged = judge_by_reply(&mut model, &SAMPLING, &[], &exchanges, &instructions).unwrap();
    assert_eq!(judged.verdicts[0].as_ref().unwrap().said, Said::Correct(true));
    let again = &model.asked[1].last().unwrap().content;
    assert!(again.contains("with \"label\" (\"CORRECT\" or \"WRONG\") and \"reason\"."), "{again}");
    assert!(!again.contains("with the keys"), "{again}");
    let mut model = Scripted { replies: ["Fine!", "Fine, I said."].into(), ..Scripted::default() };
    let judged = judge_by_reply(&mut model, &SAMPLING, &[], &exchanges, &instructions).unwrap();
    assert!(judged.verdicts[0].as_ref().unwrap_err().to_string().contains("no verdict in the judge's reply"));
}

#[test]
fn a_judge_by_scoring_weighs_the_two_words_in_the_object_that_was_asked_for() {
    let case = planned();
    let exchanges =
        [exchange(&case, "related-tea-q1", "Rooibos"), exchange(&case, "related-seat-q1", "Aisle")];
    let instructions = Instructions { reasons: Reasons::Last, ..Instructions::from(&SUBTLEMEMORY.rubric()) };
    let mut model =
        Scripted { scores: vec![vec![-1.0, -3.0], vec![-2.0, -2.0]].into(), ..Scripted::default() };
    let judged = judge_by_scoring(&mut model, &[], &exchanges, &instructions).unwrap();
    assert_eq!(model.prefixes, ["{\"label\":", "{\"label\":"]);
    let verdicts: Vec<_> = judged.verdicts.into_iter().map(Result::unwrap).collect();
    // A tie is incorrect.
    assert_eq!((&verdicts[0].said, &verdicts[1].said), (&Said::Correct(true), &Said::Correct(false)));
    assert!((verdicts[0].probability.unwrap() - 1.0 / (1.0 + (-2.0f64).exp())).abs() < 1e-12);
    assert_eq!(judged.replies[0], r#"{"label": "CORRECT", "reason": "so"}"#);
    assert_eq!(judged.replies[1], r#"{"label": "WRONG", "reason": "so"}"#);
}
