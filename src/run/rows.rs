//! The rows of a run folder's files: `answers.jsonl` and `verdicts.jsonl`.
//!
//! Rows hold nothing that differs between two undisturbed runs of the same identity: no clock, no machine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::chat::StopReason;

/// One line of `answers.jsonl`: what the model answered to one probe of one case, or why it could not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnswerRow {
    /// The case's id.
    pub case: String,
    /// The probe's id.
    pub probe: String,
    /// The condition's name; absent for the plain one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub condition: String,
    /// The case's labels, for grouping.
    pub labels: BTreeMap<String, String>,
    /// The probe's query, so that exports and reports need no dataset.
    pub query: String,
    /// The answer; absent when `error` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// Why generation ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopReason>,
    /// Tokens of the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<usize>,
    /// Tokens generated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_tokens: Option<usize>,
    /// Original indices of the sessions that truncation dropped.
    pub dropped_sessions: Vec<usize>,
    /// The attention store, relative to the run folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention: Option<String>,
    /// Why there is no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// One line of `verdicts.jsonl`: what the judge said of one probe of one case, or why it said nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VerdictRow {
    /// The case's id.
    pub case: String,
    /// The probe's id.
    pub probe: String,
    /// The condition's name; absent for the plain one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub condition: String,
    /// Which judge, for example `local:smollm2-135m`.
    pub judge: String,
    /// Whether the answer is right; absent when `error` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correct: Option<bool>,
    /// A judge by scoring: its probability of `true` against `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// The judge's short reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why there is no verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
