//! Benchmark files become [`Case`]s.
//!
//! Owns the shape of a case and the readers of each benchmark's files. Called by the commands and by the runner.
//! Knows no tensors, no network and no prompt wording. What the model may see ([`History`], [`Probe`]) and what only
//! a judge may see ([`JudgeOnly`]) are different types; prompts are built from the former alone.
//!
//! - [`dataset`]: a file or the built-in sample, opened the same way: name, digest, cases.
//! - [`stale`]: the STALE file, read with every check, and written.
//! - [`haystack`]: a scenario and distractors become a history; [`sample`] holds our own texts for it.
//! - [`truncate`]: whole distractor sessions go until a history fits a budget.
//! - [`stats`]: how long a data set's contexts are.

pub mod dataset;
mod draw;
pub mod haystack;
pub mod sample;
pub mod stale;
pub mod stats;
pub mod truncate;

use std::collections::BTreeMap;

use jiff::civil::DateTime;
use serde::{Deserialize, Serialize};

/// One benchmark instance.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// Unique within its file (STALE: `uid`).
    pub id: String,
    /// What the case is grouped by, for example `type` -> `T1`.
    pub labels: BTreeMap<String, String>,
    /// What the model is shown before the question.
    pub history: History,
    /// Which sessions carry the evidence. Labels for spans; never shown to the model.
    pub evidence: Vec<Evidence>,
    /// The queries put to the model, in file order.
    pub probes: Vec<Probe>,
    /// What only a judge may see.
    pub judge: JudgeOnly,
}

/// The dated sessions that precede the question.
#[derive(Debug, Clone, PartialEq)]
pub struct History {
    /// In time order. After truncation a subset, each with its original index.
    pub sessions: Vec<Session>,
    /// When the question is asked, where the file says so.
    pub query_time: Option<DateTime>,
}

/// A dated list of turns.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    /// Zero-based position in the file's history; kept when neighbours are dropped.
    pub index: usize,
    /// When the session took place.
    pub time: DateTime,
    /// In order.
    pub turns: Vec<Turn>,
}

/// One message of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: String,
}

/// Who speaks in a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The person.
    User,
    /// The assistant.
    Assistant,
}

/// One evidence session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evidence {
    /// What part it plays.
    pub role: EvidenceRole,
    /// The session's original index ([`Session::index`]).
    pub session: usize,
}

/// The part that an evidence session plays in a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EvidenceRole {
    /// The earlier writing.
    Old,
    /// The later writing that overwrites it.
    New,
}

/// One query put to the model on a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// Unique within the case (STALE: `SR`, `PR`, `IPA`).
    pub id: String,
    /// How the query is framed.
    pub form: ProbeForm,
    /// The query's text.
    pub query: String,
}

/// How a probe's query is framed in the prompt (STALE, appendix E.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProbeForm {
    /// An explicit question about the history (SR, PR).
    Question,
    /// The user's latest request (IPA).
    Request,
}

/// What only a judge may see of a case. No prompt for the model under test is built from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JudgeOnly {
    /// The old observation (`M_old`).
    pub old: String,
    /// The new observation (`M_new`).
    pub new: String,
    /// Why the new one invalidates the old one.
    pub explanation: String,
}
