//! Rows of `answers.jsonl` and `verdicts.jsonl`.
//!
//! Rows are identical for identical runs: no clock, no machine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};

use super::context_budget::{BudgetError, Dropped};
use crate::chat::{Reply, StopReason};
use palimpsest_core::attention::AttentionStore;
use palimpsest_data::ground::numbers::in_json;
use palimpsest_data::prompt::PromptError;

/// Key of an answer: case, probe, condition (empty for the plain one).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(bound(serialize = "S: Serialize + AsRef<str>", deserialize = "S: Deserialize<'de> + Default"))]
pub struct AnswerKey<S = String> {
    pub case: S,
    pub probe: S,
    /// Absent in rows of the plain condition.
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

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AnswerRow {
    pub case: String,
    pub probe: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub condition: String,
    pub labels: BTreeMap<String, String>,
    /// Stored so that exports and reports need no dataset.
    pub query: String,
    /// Absent if `error` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// Thought before the answer, without markers. Never shown to judges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thought: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopReason>,
    /// Log-probability of each option directly after the prompt, in nats.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub scores: BTreeMap<String, f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contrast: Option<Contrast>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_tokens: Option<usize>,
    /// Request parameters that the endpoint refused; its defaults applied. Since version 0.2.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_parameters: Vec<String>,
    /// Original indices of the condition's segments before truncation; absent for the whole history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<Vec<usize>>,
    /// Ids of the shown memories by rank, without those that did not fit. `context` is then empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memories: Option<Vec<String>>,
    /// Original indices of the dropped segments; with a memory system, ranks of memories.
    pub dropped_sessions: Vec<usize>,
    /// Dropped history tokens. Since version 0.2.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped_tokens: usize,
    /// Tokens of the full history, summed over segments; absent if nothing was dropped. Since version 0.2.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub history_tokens: usize,
    /// Dropped immediate neighbours of evidence: the noise baseline.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped_neighbours: Vec<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention: Option<String>,
    /// Under an eviction: the share of keys that were kept, of all keys before the question (`all`), of all segments (`session`) and of
    /// each role that has tokens.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub kept: BTreeMap<String, f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The prompt exceeded the context. Since version 0.2.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub too_long: bool,
    /// Generation ended inside the thought. Deterministic, so resuming skips the row by default.
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

    /// Row of a reply, without its question; of an error if generation ended inside the thought (of at most `max_thinking` tokens).
    pub fn of_reply(reply: Reply, max_thinking: Option<usize>) -> Self {
        let Reply { text, thought, stop, prompt_tokens, completion_tokens } = reply;
        let error = stop.without_answer(max_thinking);
        let row = AnswerRow { thought, prompt_tokens, completion_tokens, ..AnswerRow::default() };
        match error {
            Some(_) => AnswerRow { error, cut: true, ..row },
            None => AnswerRow { answer: Some(text), stop: Some(stop), ..row },
        }
    }

    #[must_use]
    pub fn without(self, Dropped { segments, neighbours, tokens, of }: Dropped) -> Self {
        AnswerRow {
            dropped_sessions: segments,
            dropped_neighbours: neighbours,
            dropped_tokens: tokens,
            history_tokens: of,
            ..self
        }
    }

    pub fn fits(&self) -> bool {
        !self.too_long
    }

    /// The answer was cut at the token limit. For cut thoughts see [`AnswerRow::cut`].
    pub fn reached_limit(&self) -> bool {
        self.error.is_none() && self.answer.is_some() && self.stop == Some(StopReason::MaxNewTokens)
    }

    pub fn was_cut_to_fit(&self) -> bool {
        !self.dropped_sessions.is_empty() || self.dropped_tokens > 0
    }

    /// Fraction of the history's tokens that was shown; `None` if unknown.
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

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Contrast {
    /// log p(current) - log p(stale, or absent if nothing is stale), in nats.
    pub value: f64,
    pub current: ValueLogP,
    /// The replaced value, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale: Option<ValueLogP>,
    /// First of the values that are not in the history, if any.
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

/// A value, and the log-probability of its first token that differs from the current value's, given the tokens before it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ValueLogP {
    pub text: String,
    pub token: u32,
    pub log_p: f64,
}

pub use crate::chat::ChatError as NoAnswer;

impl From<PromptError> for NoAnswer {
    fn from(error: PromptError) -> Self {
        BudgetError::from(error).into()
    }
}

impl From<BudgetError> for NoAnswer {
    fn from(error: BudgetError) -> Self {
        let too_long = error.is_too_long();
        NoAnswer { too_long, ..NoAnswer::from(format!("{:#}", anyhow::Error::from(error))) }
    }
}

/// One line of `verdicts.jsonl`: a judge's verdict on one answer, or an error.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VerdictRow {
    pub case: String,
    pub probe: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub condition: String,
    /// Such as `local:smollm2-135m`.
    pub judge: String,
    /// Lower-case hexadecimal SHA-256 of the rubric; absent in version 0.1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rubric: Option<String>,
    /// Absent for rule-based reading, and in versions without rubric names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rubric_name: Option<String>,
    /// Asked directly, or derived from the judge's choice; absent if `error` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correct: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "in_short")]
    pub score: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<String>,
    /// Scoring judges: probability of the verdict, or of `true` for right or wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Parameters that the judge's endpoint refused. Since version 0.2.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_parameters: Vec<String>,
    /// The answer equals a reference answer; the judge was not asked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub settled: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Integral scores are written without a decimal point, as in older versions.
fn in_short<S: Serializer>(score: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    score.map(in_json).serialize(serializer)
}

impl VerdictRow {
    pub fn key(&self) -> AnswerKey<&str> {
        AnswerKey::of(&self.case, &self.probe, &self.condition)
    }

    pub fn is_clean(&self) -> bool {
        self.error.is_none() && (self.correct.is_some() || self.score.is_some() || self.choice.is_some())
    }

    /// Value in 0..=1: 1 for right, a score divided by `most`; `None` without a clean verdict.
    pub fn worth(&self, most: u32) -> Option<f64> {
        if self.error.is_some() {
            return None;
        }
        let right = self.correct.map(|correct| f64::from(u8::from(correct)));
        right.or_else(|| Some(self.score? / f64::from(most.max(1))))
    }
}

/// One line of `rubrics.jsonl`: the instructions of a judge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RubricRow {
    /// SHA-256 of all fields, as in verdict rows.
    pub rubric: String,
    pub name: String,
    /// SHA-256 of the template and the kind of verdict, which human raters share.
    pub criteria: String,
    /// Position of the reasons: `first`, `last` or `none`.
    pub reasons: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// Note for probes with reference answers; an equal answer is settled without the judge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted: Option<String>,
    /// Same for known wrong answers. Absent in versions that compared words alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected: Option<String>,
    pub template: String,
}

/// One line of `replies.jsonl`: a judge's verbatim reply to one call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyRow {
    pub case: String,
    pub probes: Vec<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub condition: String,
    pub judge: String,
    pub rubric: String,
    /// In order; the second follows a reply without a verdict. Scoring judges: JSON of the scores.
    pub replies: Vec<String>,
}
