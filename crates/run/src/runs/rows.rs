//! The rows of a run folder's files: `answers.jsonl` and `verdicts.jsonl`.
//!
//! Rows hold nothing that differs between two undisturbed runs of the same identity: no clock, no machine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};

use super::context_budget::BudgetError;
use crate::chat::StopReason;
use palimpsest_core::attention::AttentionStore;
use palimpsest_data::ground::numbers::in_json;
use palimpsest_data::prompt::PromptError;

/// The names of an answer in its run: case, probe and condition, which is empty for the plain one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(bound(serialize = "S: Serialize + AsRef<str>", deserialize = "S: Deserialize<'de> + Default"))]
pub struct AnswerKey<S = String> {
    pub case: S,
    pub probe: S,
    /// The condition's name; in rows absent for the plain one.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub condition: S,
}

fn is_empty(name: &impl AsRef<str>) -> bool {
    name.as_ref().is_empty()
}

impl AnswerKey {
    pub fn by_ref(&self) -> AnswerKey<&str> {
        AnswerKey::of(&self.case, &self.probe, &self.condition)
    }
}

impl<'a> AnswerKey<&'a str> {
    pub fn of(case: &'a str, probe: &'a str, condition: &'a str) -> Self {
        AnswerKey { case, probe, condition }
    }

    pub fn of_store(store: &'a AttentionStore) -> Self {
        AnswerKey::of(&store.case, &store.probe, &store.condition)
    }

    pub fn owned(self) -> AnswerKey {
        AnswerKey {
            case: self.case.to_owned(),
            probe: self.probe.to_owned(),
            condition: self.condition.to_owned(),
        }
    }
}

/// One line of `answers.jsonl`: what the model answered to one probe of one case, or why it could not.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AnswerRow {
    pub case: String,
    pub probe: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub condition: String,
    pub labels: BTreeMap<String, String>,
    /// The probe's query, so that exports and reports need no dataset.
    pub query: String,
    /// The answer; absent when `error` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// Thought before the answer, without markers; absent where there is none. No part of the answer, and shown to no judge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thought: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopReason>,
    /// The natural-log probability of each of the probe's options right after the prompt; absent where there is none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub scores: BTreeMap<String, f64>,
    /// Log-probabilities of the probe's contrasted values right after the prompt; absent where there is none. Since version 0.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contrast: Option<Contrast>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_tokens: Option<usize>,
    /// Parameters that the endpoint refused, so that its own defaults held. Since version 0.2.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_parameters: Vec<String>,
    /// Original indices of the segments in the condition's context before truncation; absent for the whole history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<Vec<usize>>,
    /// Ids of the memories that were shown, by rank, where a memory system was; those that did not fit the context are not among them.
    /// `context` is then empty: no segment of the history was shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memories: Option<Vec<String>>,
    /// Original indices of the segments that truncation dropped; ranks of memories, where a memory system was shown.
    pub dropped_sessions: Vec<usize>,
    /// Tokens of the history that truncation left out; absent where none. Since version 0.2, as the next.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped_tokens: usize,
    /// Tokens of the history that it left them out of, as they add up segment by segment; absent where it left out none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub history_tokens: usize,
    /// Dropped segments that are immediate neighbours of evidence, the noise baseline; absent where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped_neighbours: Vec<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// True if the prompt was longer than the context. Since version 0.2.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub too_long: bool,
    /// True if generation ended inside the thought. The same would come again, so resuming leaves the row unless told otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl AnswerRow {
    pub fn key(&self) -> AnswerKey<&str> {
        AnswerKey::of(&self.case, &self.probe, &self.condition)
    }

    pub fn fits(&self) -> bool {
        !self.too_long
    }

    /// True if the limit of new tokens cut the answer off. A thought that was cut left none ([`AnswerRow::cut`]).
    pub fn reached_limit(&self) -> bool {
        self.error.is_none() && self.answer.is_some() && self.stop == Some(StopReason::MaxNewTokens)
    }

    /// True if the history that the condition's context held was cut.
    pub fn was_cut_to_fit(&self) -> bool {
        !self.dropped_sessions.is_empty() || self.dropped_tokens > 0
    }

    /// The share of the history's tokens that was shown; absent where the row does not say.
    pub fn history_shown(&self) -> Option<f64> {
        match (self.was_cut_to_fit(), self.history_tokens) {
            (false, _) => Some(1.0),
            (true, 0) => None,
            (true, of) => Some(of.saturating_sub(self.dropped_tokens) as f64 / of as f64),
        }
    }

    pub fn shows(&self, index: usize) -> bool {
        self.context.as_ref().is_none_or(|context| context.contains(&index))
            && !self.dropped_sessions.contains(&index)
    }
}

/// Log-probabilities of values right after a prompt, without sampling.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Contrast {
    /// log p of the current value less log p of the stale (else the absent) one, in nats.
    pub value: f64,
    pub current: ValueLogP,
    /// The value that the current one replaced; absent where it replaced none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale: Option<ValueLogP>,
    /// The first of the values that the history does not give; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent: Option<ValueLogP>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<ValueLogP>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<ValueLogP>,
}

impl Contrast {
    pub fn values(&self) -> impl Iterator<Item = &ValueLogP> {
        let one = std::iter::once(&self.current).chain(&self.stale).chain(&self.absent);
        one.chain(&self.earlier).chain(&self.others)
    }

    pub fn against(&self) -> Option<&ValueLogP> {
        self.stale.as_ref().or(self.absent.as_ref())
    }
}

/// A value and the log-probability of its first token that differs from the current value's, given the tokens before.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ValueLogP {
    pub text: String,
    pub token: u32,
    pub log_p: f64,
}

/// Why a probe has no answer.
pub use crate::chat::ChatError as NoAnswer;

impl From<PromptError> for NoAnswer {
    fn from(error: PromptError) -> Self {
        BudgetError::from(error).into()
    }
}

impl From<BudgetError> for NoAnswer {
    fn from(error: BudgetError) -> Self {
        let too_long = error.is_too_long();
        NoAnswer { message: format!("{:#}", anyhow::Error::from(error)), too_long }
    }
}

/// One line of `verdicts.jsonl`: what the judge said of one probe of one case, or why it said nothing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VerdictRow {
    pub case: String,
    pub probe: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub condition: String,
    /// Which judge, for example `local:smollm2-135m`.
    pub judge: String,
    /// SHA-256 of the rubric that it judged by (lower-case hexadecimal); absent in rows of version 0.1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rubric: Option<String>,
    /// The rubric's name; absent where a rule read the answer, and in rows of versions whose rubrics had no names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rubric_name: Option<String>,
    /// True if the answer is right, where that is what the judge was asked or follows from its choice; absent when `error` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correct: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "in_short")]
    pub score: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<String>,
    /// A judge by scoring: the probability of what it said, of `true` where that is right or wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Parameters that the judge's endpoint refused. Since version 0.2.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_parameters: Vec<String>,
    /// True if the answer equals a reference answer, so that the judge was not asked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub settled: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Whole scores as they were written before there were others.
fn in_short<S: Serializer>(score: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    score.map(in_json).serialize(serializer)
}

impl VerdictRow {
    pub fn key(&self) -> AnswerKey<&str> {
        AnswerKey::of(&self.case, &self.probe, &self.condition)
    }

    /// True if the judge gave a verdict without error: right or wrong, a score, or a choice.
    pub fn is_clean(&self) -> bool {
        self.error.is_none() && (self.correct.is_some() || self.score.is_some() || self.choice.is_some())
    }

    /// Worth of the answer by it, from 0 to 1: a right one 1, a score its share of `most`; absent without a clean verdict.
    pub fn worth(&self, most: u32) -> Option<f64> {
        if self.error.is_some() {
            return None;
        }
        let right = self.correct.map(|correct| f64::from(u8::from(correct)));
        right.or_else(|| Some(self.score? / f64::from(most.max(1))))
    }
}

/// One line of `rubrics.jsonl`: what a judge was told, so that people can rate by the same and anyone can read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RubricRow {
    /// SHA-256 of all of it, as verdict rows carry it.
    pub rubric: String,
    pub name: String,
    /// SHA-256 of what raters must share: the template and the kind of verdict.
    pub criteria: String,
    /// Where reasons stand: `first`, `last` or `none`.
    pub reasons: String,
    /// Thinking settings of the judge; absent where it was told nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// The note of a probe with right reference answers, where an answer that equals one was settled without the judge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted: Option<String>,
    /// The same with known wrong ones. Absent of rows with `accepted` of versions that compared words alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected: Option<String>,
    pub template: String,
}

/// One line of `replies.jsonl`: what a judge literally replied in one call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyRow {
    pub case: String,
    /// The ids of the probes that the call was about.
    pub probes: Vec<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub condition: String,
    pub judge: String,
    pub rubric: String,
    /// Its replies in order, the second one where the first lacked a verdict; by scoring, the JSON that was written for it.
    pub replies: Vec<String>,
}
