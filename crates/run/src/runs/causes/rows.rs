//! Rows of `causes.jsonl`: effects of sessions on answers, by each method.
//!
//! Ten kinds of lines, appended as measured: ablations ([`CauseRow`]), random subsets ([`SubsetRow`]), fitted surrogates
//! ([`SurrogateRow`]) and paths through thoughts ([`ThoughtRow`]). Numbers refer to the answer after the thought unless noted. All effects are positive if the answer depends on what
//! was blocked or removed.

use std::ops::{Deref, Not};
use std::path::Path;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

pub use palimpsest_core::ablate::{Effect, ThoughtEffect};

use super::repair_rows::{RepairedRows, in_place};
use crate::runs::error::RunError;
use crate::runs::rows::AnswerKey;
use palimpsest_data::ground::folder;
use palimpsest_data::ground::jsonl::{RowLog, read_rows};

pub const CAUSES: &str = "causes.jsonl";

/// Effect of one ablation on an answer: of a session or a control stretch. Fields that do not apply are absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CauseRow {
    #[serde(flatten)]
    pub answer: AnswerKey,
    /// Session, such as `session[3]`; empty for a control.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub span: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Zero-based index of a control in the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stretch: Option<usize>,
    /// For controls: true if the prompt has no marked evidence, so that the stretch may touch the session that the answer needs.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub anywhere: bool,
    /// Half-open token range in the full prompt.
    pub tokens: [usize; 2],
    /// Later session that the span was hidden from too; `all`: all later positions, `between`: those between the last session and the
    /// question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carrier: Option<String>,
    /// Half-open token range of the carrier, cut at the question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carrier_tokens: Option<[usize; 2]>,
    /// Name of the replacement text ([`palimpsest_core::ablate::NEUTRAL`]), if replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub neutral: Option<String>,
    /// For repairs: the rows that were read again after the replacement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<RepairedRows>,
    /// Half-open range of blocked layers; absent for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<[usize; 2]>,
    /// Seed of the control pool, for blocked spans.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// True if the model has linear-attention layers, which were left open.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub softmax_only: bool,
    /// Fraction of the named (or all) layers that are linear-attention layers and still saw the session; absent if zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers_open: Option<f64>,
    pub answer_tokens: usize,
    /// Tokens of the thought with its markers.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub thought_tokens: usize,
    /// Unchanged mean log-probability per answer token, in nats.
    pub log_p: f64,
    /// For carriers: drop with the span hidden from the question on only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct: Option<f64>,
    #[serde(flatten)]
    pub effect: NamedEffect,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NamedEffect {
    Effect(Effect),
    Total(Effect),
    Replaced(Effect),
    Repaired(Effect),
    /// Positive if the answer loses by what is shown to the windows.
    Forced(Effect),
}

impl Deref for NamedEffect {
    type Target = Effect;

    fn deref(&self) -> &Effect {
        match self {
            NamedEffect::Effect(effect)
            | NamedEffect::Total(effect)
            | NamedEffect::Replaced(effect)
            | NamedEffect::Repaired(effect)
            | NamedEffect::Forced(effect) => effect,
        }
    }
}

/// Ablation of the sessions that are not in a subset.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum Ablation {
    /// Remove them and compute the rest again, as ContextCite does
    #[default]
    #[value(name = "remove")]
    Removed,
    /// Hide them from the question on: far cheaper, direct paths alone, our own variant
    #[value(name = "block")]
    Blocked,
}

impl Ablation {
    /// Name in rows and tables.
    pub fn key(self) -> &'static str {
        match self {
            Ablation::Removed => "removed",
            Ablation::Blocked => "blocked",
        }
    }
}

/// Log-probability of one answer given a subset of the sessions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubsetRow {
    #[serde(flatten)]
    pub answer: AnswerKey,
    pub seed: u64,
    /// Zero-based subset number; membership depends only on seed, case and this number.
    pub subset: usize,
    pub ablation: Ablation,
    pub sessions: Vec<String>,
    #[serde(default, skip_serializing_if = "Not::not")]
    pub softmax_only: bool,
    pub answer_tokens: usize,
    /// Tokens of the thought with its markers. Always written: rows of the older format lack it and count the thought as answer.
    pub thought_tokens: usize,
    /// Log-probability of the whole answer after the thought, in nats (sum over tokens).
    pub answer_log_p: f64,
}

/// ContextCite surrogate of one answer: its logit as a sparse linear function of the sessions present.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SurrogateRow {
    #[serde(flatten)]
    pub answer: AnswerKey,
    pub seed: u64,
    pub subsets: usize,
    pub ablation: Ablation,
    #[serde(default, skip_serializing_if = "Not::not")]
    pub softmax_only: bool,
    /// Fraction of the model's layers that are linear-attention layers and were not blocked; absent if zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers_open: Option<f64>,
    pub answer_tokens: usize,
    /// Always written, as in [`SubsetRow`].
    pub thought_tokens: usize,
    /// Predicted logit without any session.
    pub intercept: f64,
    /// R^2 of the logit over the subsets; absent if the logit is constant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r2: Option<f64>,
    pub weights: Vec<SessionWeight>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionWeight {
    pub span: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    pub tokens: [usize; 2],
    /// Coefficient: change of the answer's logit if the session is present.
    pub weight: f64,
}

/// Keys hidden, and rows that they are hidden from. The rows of a thought are those that read its tokens but the last, whose row predicts
/// the answer's first token and is the answer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThoughtPath {
    /// A session, from everything from the question on.
    Whole,
    /// A session, from the rows of question and answer; the thought's rows see it.
    Direct,
    /// A session, from the rows of question, answer and one sentence.
    Carried,
    /// A session, from the rows of one sentence alone.
    Rows,
    /// A sentence, from the answer's rows.
    Used,
}

/// Effect on an answer of blocking one path through its thought, whose text stays as it was.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ThoughtRow {
    #[serde(flatten)]
    pub answer: AnswerKey,
    pub path: ThoughtPath,
    /// Session; empty for [`ThoughtPath::Used`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub span: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Half-open range of the hidden keys, counted from the prompt's start.
    pub tokens: [usize; 2],
    /// Zero-based sentence of the thought.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sentence: Option<usize>,
    /// Half-open range of its rows, counted from the prompt's start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sentence_tokens: Option<[usize; 2]>,
    /// The sentence, for [`ThoughtPath::Used`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Sentences of the thought.
    pub sentences: usize,
    #[serde(default, skip_serializing_if = "Not::not")]
    pub softmax_only: bool,
    /// As in [`CauseRow`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers_open: Option<f64>,
    pub answer_tokens: usize,
    pub thought_tokens: usize,
    /// Unchanged mean log-probability per answer token, in nats.
    pub log_p: f64,
    pub effect: Effect,
}

/// A line of the file. Blocked sessions carry no kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum CauseLine {
    Control(CauseRow),
    Total(CauseRow),
    Replaced(CauseRow),
    Repaired(CauseRow),
    /// Session shown to windowed layers beyond their window.
    Forced(CauseRow),
    /// Session hidden from a later one too.
    Carrier(CauseRow),
    Subset(SubsetRow),
    #[serde(rename = "contextcite")]
    Surrogate(SurrogateRow),
    Thought(ThoughtRow),
    #[serde(untagged)]
    Blocked(CauseRow),
}

impl CauseLine {
    pub fn answer(&self) -> &AnswerKey {
        use CauseLine::{
            Blocked, Carrier, Control, Forced, Repaired, Replaced, Subset, Surrogate, Thought, Total,
        };
        match self {
            Blocked(row) | Control(row) | Total(row) | Replaced(row) | Repaired(row) | Forced(row)
            | Carrier(row) => &row.answer,
            Subset(row) => &row.answer,
            Surrogate(row) => &row.answer,
            Thought(row) => &row.answer,
        }
    }

    /// Identifies the method, independent of answer and session.
    pub fn way(&self) -> String {
        let blocked =
            |row: &CauseRow| format!("layers {:?}, seed {}", row.layers, row.seed.unwrap_or_default());
        match self {
            CauseLine::Blocked(row) => format!("blocked, {}", blocked(row)),
            CauseLine::Control(row) => format!("controls, {}", blocked(row)),
            CauseLine::Total(_) => "total".to_owned(),
            CauseLine::Replaced(row) | CauseLine::Repaired(row) => {
                format!("replaced by {}", in_place(row.neutral.as_ref(), row.rows).unwrap_or_default())
            }
            CauseLine::Forced(_) => "forced".to_owned(),
            CauseLine::Carrier(_) => "carriers".to_owned(),
            CauseLine::Subset(SubsetRow { seed, ablation, .. }) => {
                format!("subsets {}, seed {seed}", ablation.key())
            }
            CauseLine::Surrogate(SurrogateRow { seed, ablation, subsets, .. }) => {
                format!("surrogate of {subsets} subsets {}, seed {seed}", ablation.key())
            }
            CauseLine::Thought(_) => "thoughts".to_owned(),
        }
    }
}

impl<'de> Deserialize<'de> for CauseLine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let row = Value::deserialize(deserializer)?;
        let kind = row.get("kind").map(|kind| kind.as_str().unwrap_or_default().to_owned());
        let has = |fields: &[&'static str]| match fields.iter().find(|field| row.get(**field).is_none()) {
            Some(field) => Err(D::Error::missing_field(field)),
            None => CauseRow::deserialize(&row).map_err(D::Error::custom),
        };
        Ok(match kind.as_deref() {
            None => CauseLine::Blocked(has(&["span", "seed", "effect"])?),
            Some("control") => CauseLine::Control(has(&["stretch", "seed", "effect"])?),
            Some("total") => CauseLine::Total(has(&["span", "total"])?),
            Some("replaced") => CauseLine::Replaced(has(&["span", "replaced"])?),
            Some("repaired") => CauseLine::Repaired(has(&["span", "rows", "repaired"])?),
            Some("forced") => CauseLine::Forced(has(&["span", "forced"])?),
            Some("carrier") => {
                CauseLine::Carrier(has(&["span", "carrier", "carrier_tokens", "direct", "effect"])?)
            }
            Some("subset") => CauseLine::Subset(serde_json::from_value(row).map_err(D::Error::custom)?),
            Some("contextcite") => {
                CauseLine::Surrogate(serde_json::from_value(row).map_err(D::Error::custom)?)
            }
            Some("thought") => CauseLine::Thought(serde_json::from_value(row).map_err(D::Error::custom)?),
            Some(other) => return Err(D::Error::custom(format!("no row is of kind `{other}`"))),
        })
    }
}

/// Refuses files of the older format, where controls had no rows of their own, effects had the opposite sign and thoughts counted as
/// answer.
fn check_format(dir: &Path) -> Result<(), RunError> {
    let path = dir.join(CAUSES);
    let text = folder::read(dir, CAUSES).map_err(RunError::io("read", &path))?.unwrap_or_default();
    for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
        // The row reader reports lines that do not parse.
        let Ok(row) = serde_json::from_slice::<Value>(line) else { continue };
        let signed = |key: &str| row.get(key).is_some_and(|effect| effect.get("log_p").is_some());
        let of_answers = matches!(row["kind"].as_str(), Some("subset" | "contextcite"));
        let with_thought = of_answers && row.get("thought_tokens").is_none();
        if signed("effect") || signed("total") || row.get("control").is_some() || with_thought {
            return Err(RunError::GaveUp(format!(
                "{} line {} is of an older format, with effects of the other sign, controls inside rows, and thoughts counted as \
                 answers; move the file away and measure the causes again",
                path.display(),
                number + 1
            )));
        }
    }
    Ok(())
}

pub(super) fn open_log(dir: &Path) -> Result<RowLog<CauseLine>, RunError> {
    check_format(dir)?;
    Ok(RowLog::open(dir, CAUSES)?)
}

/// Rows in measurement order.
pub fn read_lines(dir: &Path) -> Result<Vec<CauseLine>, RunError> {
    check_format(dir)?;
    Ok(read_rows(dir, CAUSES)?)
}

/// Rows by kind, each in measurement order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CauseRows {
    pub blocked: Vec<CauseRow>,
    pub controls: Vec<CauseRow>,
    pub removed: Vec<CauseRow>,
    pub replaced: Vec<CauseRow>,
    pub repaired: Vec<CauseRow>,
    pub forced: Vec<CauseRow>,
    pub carriers: Vec<CauseRow>,
    pub subsets: Vec<SubsetRow>,
    pub surrogates: Vec<SurrogateRow>,
    pub thoughts: Vec<ThoughtRow>,
}

impl CauseRows {
    /// Reads a run folder; empty if the file is absent.
    pub fn read(dir: &Path) -> Result<Self, RunError> {
        let mut rows = CauseRows::default();
        for line in read_lines(dir)? {
            match line {
                CauseLine::Blocked(row) => rows.blocked.push(row),
                CauseLine::Control(row) => rows.controls.push(row),
                CauseLine::Total(row) => rows.removed.push(row),
                CauseLine::Replaced(row) => rows.replaced.push(row),
                CauseLine::Repaired(row) => rows.repaired.push(row),
                CauseLine::Forced(row) => rows.forced.push(row),
                CauseLine::Carrier(row) => rows.carriers.push(row),
                CauseLine::Subset(row) => rows.subsets.push(row),
                CauseLine::Surrogate(row) => rows.surrogates.push(row),
                CauseLine::Thought(row) => rows.thoughts.push(row),
            }
        }
        Ok(rows)
    }
}
