//! The rows of `causes.jsonl`: what answers owe to sessions, by each way of finding out.
//!
//! Lines of four kinds stand in one file, appended as they are measured: paths that were blocked ([`CauseRow`], which name no kind),
//! sessions that were removed ([`TotalRow`]), random subsets of sessions ([`SubsetRow`]) and the linear surrogate fitted to them
//! ([`SurrogateRow`]).

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::RunError;
use super::jsonl::read_rows;

/// The file of a run's folder.
pub const CAUSES: &str = "causes.jsonl";

/// What blocking a span changes of one answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CauseRow {
    /// The case's id.
    pub case: String,
    /// The probe's id.
    pub probe: String,
    /// The condition's name; absent for the plain one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub condition: String,
    /// The span that was hidden from the question on: `session[3]`, ...
    pub span: String,
    /// Its part in the analysis, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Its first token, and one past its last.
    pub tokens: [usize; 2],
    /// The layers at which it was hidden, half-open; absent where at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<[usize; 2]>,
    /// Seed of the control.
    pub seed: u64,
    /// Tokens of the answer, a thought's among them.
    pub answer_tokens: usize,
    /// The answer's natural-log probability with nothing blocked, mean per token.
    pub log_p: f64,
    /// What hiding the span changes.
    pub effect: Effect,
    /// The same of a random stretch of as many tokens of the history that holds no evidence and nothing of the span; absent where
    /// there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<Control>,
}

/// What changes where something is hidden or removed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    /// Of the answer's natural-log probability, mean per token: below 0 where the answer becomes less likely.
    pub log_p: f64,
    /// The Kullback-Leibler divergence, in nats, of the first answer token's distribution from the one as it was.
    pub kl: f64,
    /// Whether some token of the answer is no longer, or only now, the likeliest in its place.
    pub changed: bool,
}

/// A stretch that is no evidence.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Control {
    /// Its first token, and one past its last.
    pub tokens: [usize; 2],
    /// What hiding it changes.
    pub effect: Effect,
}

/// The total effect of a session on one answer: it was removed, and all after it read again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TotalRow {
    /// `total`.
    pub kind: TotalKind,
    /// The case's id.
    pub case: String,
    /// The probe's id.
    pub probe: String,
    /// The condition's name; absent for the plain one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub condition: String,
    /// The span that was removed.
    pub span: String,
    /// Its part in the analysis, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Its first token in the whole prompt, and one past its last.
    pub tokens: [usize; 2],
    /// Tokens of the answer, a thought's among them.
    pub answer_tokens: usize,
    /// The answer's natural-log probability after the whole prompt, mean per token.
    pub log_p: f64,
    /// What removing the span changes.
    pub total: Effect,
}

/// The kind of a [`TotalRow`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TotalKind {
    /// The only one.
    #[default]
    Total,
}

/// How sessions that are not in a subset are left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ablation {
    /// Removed, and the rest read again: as ContextCite does.
    #[default]
    Removed,
    /// Blocked from the question on over the whole history: direct paths alone.
    Blocked,
}

impl Ablation {
    /// As rows and tables write it.
    pub fn key(self) -> &'static str {
        match self {
            Ablation::Removed => "removed",
            Ablation::Blocked => "blocked",
        }
    }
}

/// How likely one answer is where only some of the sessions are there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubsetRow {
    /// `subset`.
    pub kind: SubsetKind,
    /// The case's id.
    pub case: String,
    /// The probe's id.
    pub probe: String,
    /// The condition's name; absent for the plain one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub condition: String,
    /// Seed of the subsets.
    pub seed: u64,
    /// Which subset, from 0: it depends on seed, case, and this number alone.
    pub subset: usize,
    /// How the others are left out.
    pub ablation: Ablation,
    /// The sessions that are there.
    pub sessions: Vec<String>,
    /// Tokens of the answer, a thought's among them.
    pub answer_tokens: usize,
    /// The whole answer's natural-log probability: the sum over its tokens.
    pub answer_log_p: f64,
}

/// The kind of a [`SubsetRow`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SubsetKind {
    /// The only one.
    #[default]
    Subset,
}

/// ContextCite's surrogate of one answer: the logit of its probability as a sparse linear function of which sessions are there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SurrogateRow {
    /// `contextcite`.
    pub kind: SurrogateKind,
    /// The case's id.
    pub case: String,
    /// The probe's id.
    pub probe: String,
    /// The condition's name; absent for the plain one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub condition: String,
    /// Seed of the subsets.
    pub seed: u64,
    /// How many subsets it was fitted to.
    pub subsets: usize,
    /// How sessions were left out.
    pub ablation: Ablation,
    /// Tokens of the answer, a thought's among them.
    pub answer_tokens: usize,
    /// The logit without any session, by the surrogate.
    pub intercept: f64,
    /// The share of the logit's variance over the subsets that the surrogate explains; absent where it does not vary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r2: Option<f64>,
    /// By session.
    pub weights: Vec<SessionWeight>,
}

/// The kind of a [`SurrogateRow`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SurrogateKind {
    /// The only one.
    #[default]
    Contextcite,
}

/// What a session is worth by the surrogate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionWeight {
    /// The session's span.
    pub span: String,
    /// Its part in the analysis, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Its first token in the whole prompt, and one past its last.
    pub tokens: [usize; 2],
    /// How much its presence adds to the logit of the answer's probability.
    pub weight: f64,
}

/// A line of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum CauseLine {
    /// A session that was removed.
    Total(TotalRow),
    /// A subset of sessions.
    Subset(SubsetRow),
    /// A surrogate.
    Surrogate(SurrogateRow),
    /// A path that was blocked.
    Blocked(CauseRow),
}

/// All rows of a run's folder, in the order in which they were measured.
///
/// # Errors
/// Those of the file.
pub fn read_lines(dir: &Path) -> Result<Vec<CauseLine>, RunError> {
    read_rows(&dir.join(CAUSES))
}

fn of_kind<T>(dir: &Path, take: impl Fn(CauseLine) -> Option<T>) -> Result<Vec<T>, RunError> {
    Ok(read_lines(dir)?.into_iter().filter_map(take).collect())
}

/// The rows of blocked paths, in the order in which they were measured.
///
/// # Errors
/// Those of the file.
pub fn read_causes(dir: &Path) -> Result<Vec<CauseRow>, RunError> {
    of_kind(dir, |line| if let CauseLine::Blocked(row) = line { Some(row) } else { None })
}

/// The rows of removed sessions.
///
/// # Errors
/// Those of the file.
pub fn read_totals(dir: &Path) -> Result<Vec<TotalRow>, RunError> {
    of_kind(dir, |line| if let CauseLine::Total(row) = line { Some(row) } else { None })
}

/// The surrogates.
///
/// # Errors
/// Those of the file.
pub fn read_surrogates(dir: &Path) -> Result<Vec<SurrogateRow>, RunError> {
    of_kind(dir, |line| if let CauseLine::Surrogate(row) = line { Some(row) } else { None })
}
