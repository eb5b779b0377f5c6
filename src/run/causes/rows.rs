//! The rows of `causes.jsonl`: what answers owe to sessions, by each way of finding out.
//!
//! Lines of seven kinds stand in one file, appended as they are measured: sessions that were blocked ([`CauseRow`], which name no kind),
//! stretches that were blocked as controls ([`ControlRow`]), sessions that were removed or replaced by neutral text
//! ([`TotalRow`]), sessions that were hidden from a later one too ([`CarrierRow`]), random subsets of sessions
//! ([`SubsetRow`]) and the linear surrogate fitted to them ([`SurrogateRow`]).
//!
//! An *answer* here is what stands behind the thought, in every number that does not say otherwise. One sign holds for all effects:
//! above 0 the answer needs what was blocked or removed.

use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize};

use crate::ground::jsonl::{RowLog, read_rows};
use crate::run::error::RunError;
use crate::run::rows::AnswerKey;

/// The file of a run's folder.
pub const CAUSES: &str = "causes.jsonl";

/// Effect of blocking one session on one answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CauseRow {
    #[serde(flatten)]
    pub answer: AnswerKey,
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
    /// Seed of the controls that were measured beside it.
    pub seed: u64,
    /// True if the model has linear-attention layers, which were left open; absent if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub softmax_only: bool,
    /// Of the layers named (all where none are), the share that are linear-attention layers and still saw the session; absent where none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers_open: Option<f64>,
    /// Tokens of the answer behind the thought.
    pub answer_tokens: usize,
    /// Tokens of the thought with its markers; absent where there is none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub thought_tokens: usize,
    /// The answer's natural-log probability with nothing blocked, mean per token.
    pub log_p: f64,
    pub effect: Effect,
}

/// Effect of an ablation on an answer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    /// Drop of the answer's natural-log probability, mean per token in nats: plain minus changed. Above 0 the answer needs it.
    pub log_p_drop: f64,
    /// The Kullback-Leibler divergence, in nats, of the first answer token's distribution from the one as it was.
    pub kl: f64,
    /// The same, averaged over all of the answer's tokens.
    pub kl_answer: f64,
    /// True if some token of the answer is no longer, or only now, the likeliest in its place.
    pub changed: bool,
    /// Effect on the thought before the answer; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thought: Option<ThoughtEffect>,
}

/// Effect of an ablation on the thought before an answer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ThoughtEffect {
    /// Drop of the thought's natural-log probability, mean per token in nats.
    pub log_p_drop: f64,
    /// The divergence of the first thought token's distribution, in nats.
    pub kl: f64,
    /// True if some token of the thought is no longer, or only now, the likeliest in its place.
    pub changed: bool,
}

/// Effect of blocking a stretch without evidence: one of a pool that is drawn once a case, to which the effects of sessions of
/// equal length are compared ([`crate::statistics::control`]).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ControlRow {
    #[serde(flatten)]
    pub answer: AnswerKey,
    /// Its number in the pool, from 0.
    pub stretch: usize,
    /// Its first token, and one past its last.
    pub tokens: [usize; 2],
    /// The layers at which it was hidden, half-open; absent where at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<[usize; 2]>,
    pub seed: u64,
    /// True if the model has linear-attention layers, which were left open; absent if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub softmax_only: bool,
    /// Tokens of the answer behind the thought.
    pub answer_tokens: usize,
    /// The answer's natural-log probability with nothing blocked, mean per token.
    pub log_p: f64,
    pub effect: Effect,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// The total effect of a session on one answer: it was removed, or neutral text of equal length stood in its place so that nothing moved,
/// and all after it was read again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TotalRow {
    #[serde(flatten)]
    pub answer: AnswerKey,
    pub span: String,
    /// Its part in the analysis, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Its first token in the whole prompt, and one past its last.
    pub tokens: [usize; 2],
    /// The name of the text in its place ([`super::replacement::NEUTRAL`]); absent where it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub neutral: Option<String>,
    /// Tokens of the answer behind the thought.
    pub answer_tokens: usize,
    /// Tokens of the thought with its markers; absent where there is none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub thought_tokens: usize,
    /// The answer's natural-log probability after the whole prompt, mean per token.
    pub log_p: f64,
    #[serde(flatten)]
    pub total: TotalEffect,
}

/// An effect under the name of what was done.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TotalEffect {
    Total(Effect),
    Replaced(Effect),
}

impl std::ops::Deref for TotalEffect {
    type Target = Effect;

    fn deref(&self) -> &Effect {
        match self {
            TotalEffect::Total(effect) | TotalEffect::Replaced(effect) => effect,
        }
    }
}

/// Effect of hiding a session from the question on and from later positions as well, so that what these took over from it is missing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CarrierRow {
    #[serde(flatten)]
    pub answer: AnswerKey,
    pub span: String,
    /// Its part in the analysis, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Its first token, and one past its last.
    pub tokens: [usize; 2],
    /// The later session that it was hidden from: `session[5]`, ...; `all` for all positions after it, `between` for those between the last
    /// session and the question.
    pub carrier: String,
    /// Those positions: the first token, and one past the last before the question.
    pub carrier_tokens: [usize; 2],
    /// True if the model has linear-attention layers, which were left open; absent if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub softmax_only: bool,
    /// The share of the model's layers that are linear-attention layers and still saw the session; absent where none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers_open: Option<f64>,
    /// Tokens of the answer behind the thought.
    pub answer_tokens: usize,
    /// Tokens of the thought with its markers; absent where there is none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub thought_tokens: usize,
    /// The answer's natural-log probability with nothing blocked, mean per token.
    pub log_p: f64,
    /// The drop of the answer's log-probability where the span is hidden from the question on alone.
    pub direct: f64,
    /// Effect of hiding the span from both.
    pub effect: Effect,
}

/// Ablation of the sessions that are not in a subset.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum Ablation {
    /// Removed, and the rest read again, as ContextCite does
    #[default]
    #[value(name = "remove")]
    Removed,
    /// Blocked from the question on: far cheaper, direct paths alone, our own variant
    #[value(name = "block")]
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

/// Log-probability of one answer with a subset of the sessions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubsetRow {
    #[serde(flatten)]
    pub answer: AnswerKey,
    pub seed: u64,
    /// Which subset, from 0: it depends on seed, case, and this number alone.
    pub subset: usize,
    pub ablation: Ablation,
    pub sessions: Vec<String>,
    /// True if the model has linear-attention layers, which blocking left open; absent if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub softmax_only: bool,
    /// Tokens of the answer behind the thought.
    pub answer_tokens: usize,
    /// Tokens of the thought with its markers. Always written: a row of the older format lacks it, and counts the thought as answer.
    pub thought_tokens: usize,
    /// The natural-log probability of the whole answer behind the thought: the sum over its tokens.
    pub answer_log_p: f64,
}

/// ContextCite's surrogate of one answer: the logit of its probability as a sparse linear function of which sessions are there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SurrogateRow {
    #[serde(flatten)]
    pub answer: AnswerKey,
    pub seed: u64,
    /// Number of subsets that it was fitted to.
    pub subsets: usize,
    pub ablation: Ablation,
    /// True if the model has linear-attention layers, which blocking left open; absent if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub softmax_only: bool,
    /// The share of the model's layers that are linear-attention layers and still saw what was blocked; absent where none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers_open: Option<f64>,
    /// Tokens of the answer behind the thought.
    pub answer_tokens: usize,
    /// Tokens of the thought with its markers. Always written: a row of the older format lacks it, and counts the thought as answer.
    pub thought_tokens: usize,
    /// The logit without any session, by the surrogate.
    pub intercept: f64,
    /// The share of the logit's variance over the subsets that the surrogate explains; absent where it does not vary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r2: Option<f64>,
    pub weights: Vec<SessionWeight>,
}

/// Weight of one session in the surrogate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionWeight {
    pub span: String,
    /// Its part in the analysis, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Its first token in the whole prompt, and one past its last.
    pub tokens: [usize; 2],
    /// Coefficient: added to the logit of the answer's probability by its presence.
    pub weight: f64,
}

/// A line of the file.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum CauseLine {
    Control(ControlRow),
    Total(TotalRow),
    Replaced(TotalRow),
    /// A session that was hidden from a later one.
    Carrier(CarrierRow),
    Subset(SubsetRow),
    #[serde(rename = "contextcite")]
    Surrogate(SurrogateRow),
    #[serde(untagged)]
    Blocked(CauseRow),
}

impl CauseLine {
    /// The answer.
    pub fn answer(&self) -> &AnswerKey {
        match self {
            CauseLine::Blocked(CauseRow { answer, .. })
            | CauseLine::Control(ControlRow { answer, .. })
            | CauseLine::Total(TotalRow { answer, .. })
            | CauseLine::Replaced(TotalRow { answer, .. })
            | CauseLine::Carrier(CarrierRow { answer, .. })
            | CauseLine::Subset(SubsetRow { answer, .. })
            | CauseLine::Surrogate(SurrogateRow { answer, .. }) => answer,
        }
    }

    /// Key of the measurement, without answer and session: equal in the rows of all answers of a run.
    pub fn way(&self) -> String {
        let blocked = |layers: &Option<[usize; 2]>, seed: u64| format!("layers {layers:?}, seed {seed}");
        match self {
            CauseLine::Blocked(row) => format!("blocked, {}", blocked(&row.layers, row.seed)),
            CauseLine::Control(row) => format!("controls, {}", blocked(&row.layers, row.seed)),
            CauseLine::Total(_) => "total".to_owned(),
            CauseLine::Replaced(row) => format!("replaced by {}", row.neutral.as_deref().unwrap_or_default()),
            CauseLine::Carrier(_) => "carriers".to_owned(),
            CauseLine::Subset(SubsetRow { seed, ablation, .. }) => {
                format!("subsets {}, seed {seed}", ablation.key())
            }
            CauseLine::Surrogate(SurrogateRow { seed, ablation, subsets, .. }) => {
                format!("surrogate of {subsets} subsets {}, seed {seed}", ablation.key())
            }
        }
    }
}

impl<'de> Deserialize<'de> for CauseLine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let row = serde_json::Value::deserialize(deserializer)?;
        let kind = row.get("kind").map(|kind| kind.as_str().unwrap_or_default().to_owned());
        let line = match kind.as_deref() {
            None => serde_json::from_value(row).map(CauseLine::Blocked),
            Some("control") => serde_json::from_value(row).map(CauseLine::Control),
            Some("total") => serde_json::from_value(row).map(CauseLine::Total),
            Some("replaced") => serde_json::from_value(row).map(CauseLine::Replaced),
            Some("carrier") => serde_json::from_value(row).map(CauseLine::Carrier),
            Some("subset") => serde_json::from_value(row).map(CauseLine::Subset),
            Some("contextcite") => serde_json::from_value(row).map(CauseLine::Surrogate),
            Some(other) => return Err(D::Error::custom(format!("no row is of kind `{other}`"))),
        };
        line.map_err(D::Error::custom)
    }
}

/// Refuses a file with a row of the format before controls had rows of their own: its effects had the other sign, and a thought was part of
/// the answer.
fn check_format(path: &Path) -> Result<(), RunError> {
    let text = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(RunError::io("read", path)(error)),
    };
    for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
        // What does not parse is for the reader of rows to judge.
        let Ok(row) = serde_json::from_slice::<serde_json::Value>(line) else { continue };
        let signed = |key: &str| row.get(key).is_some_and(|effect| effect.get("log_p").is_some());
        let of_answers = matches!(row["kind"].as_str(), Some("subset" | "contextcite"));
        let with_thought = of_answers && row.get("thought_tokens").is_none();
        if signed("effect") || signed("total") || row.get("control").is_some() || with_thought {
            return Err(RunError::OlderCauses { path: path.to_owned(), line: number + 1 });
        }
    }
    Ok(())
}

/// The file of a run's folder, open for appending.
pub(super) fn open_log(dir: &Path) -> Result<RowLog<CauseLine>, RunError> {
    let path = dir.join(CAUSES);
    check_format(&path)?;
    Ok(RowLog::open(path)?)
}

/// All rows of a run's folder, in the order in which they were measured.
pub fn read_lines(dir: &Path) -> Result<Vec<CauseLine>, RunError> {
    let path = dir.join(CAUSES);
    check_format(&path)?;
    Ok(read_rows(&path)?)
}

/// The rows of a run's folder by kind, each in the order in which they were measured.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CauseRows {
    pub blocked: Vec<CauseRow>,
    pub controls: Vec<ControlRow>,
    pub removed: Vec<TotalRow>,
    pub replaced: Vec<TotalRow>,
    pub carriers: Vec<CarrierRow>,
    pub subsets: Vec<SubsetRow>,
    pub surrogates: Vec<SurrogateRow>,
}

impl CauseRows {
    /// Those of a folder; none where there is no file.
    pub fn read(dir: &Path) -> Result<Self, RunError> {
        let mut rows = CauseRows::default();
        for line in read_lines(dir)? {
            match line {
                CauseLine::Blocked(row) => rows.blocked.push(row),
                CauseLine::Control(row) => rows.controls.push(row),
                CauseLine::Total(row) => rows.removed.push(row),
                CauseLine::Replaced(row) => rows.replaced.push(row),
                CauseLine::Carrier(row) => rows.carriers.push(row),
                CauseLine::Subset(row) => rows.subsets.push(row),
                CauseLine::Surrogate(row) => rows.surrogates.push(row),
            }
        }
        Ok(rows)
    }
}
