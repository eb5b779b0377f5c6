//! The rows of `causes.jsonl`: what answers owe to sessions, by each way of finding out.
//!
//! Lines of seven kinds stand in one file, appended as they are measured: effects of ablations ([`CauseRow`]), random subsets of sessions
//! ([`SubsetRow`]) and the linear surrogate fitted to them ([`SurrogateRow`]).
//!
//! An *answer* here is what stands behind the thought, in every number that does not say otherwise. One sign holds for all effects:
//! above 0 the answer needs what was blocked or removed.

use std::ops::{Deref, Not};
use std::path::Path;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

pub use palimpsest_core::ablate::{Effect, ThoughtEffect};

use crate::runs::error::RunError;
use crate::runs::rows::AnswerKey;
use palimpsest_data::ground::jsonl::{RowLog, read_rows};

/// The file of a run's folder.
pub const CAUSES: &str = "causes.jsonl";

/// Effect on an answer of one ablation: of a session, or of a stretch as a control. Fields that its kind has not are absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CauseRow {
    #[serde(flatten)]
    pub answer: AnswerKey,
    /// The session: `session[3]`, ...; empty for a stretch.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub span: String,
    /// Its part in the analysis, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The number of a stretch in the pool, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stretch: Option<usize>,
    /// Its first token in the whole prompt, and one past its last.
    pub tokens: [usize; 2],
    /// The later session that it was hidden from too: `session[5]`, ...; `all` for all positions after it, `between` for those between the
    /// last session and the question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carrier: Option<String>,
    /// Those positions: the first token, and one past the last before the question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carrier_tokens: Option<[usize; 2]>,
    /// The name of the text in its place ([`palimpsest_core::ablate::NEUTRAL`]), where it was replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub neutral: Option<String>,
    /// The layers at which it was hidden, half-open; absent where at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<[usize; 2]>,
    /// Seed of the controls, where it was blocked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// True if the model has linear-attention layers, which were left open; absent if not.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub softmax_only: bool,
    /// Of the layers named (all where none are), the share that are linear-attention layers and still saw the session; absent where none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers_open: Option<f64>,
    pub answer_tokens: usize,
    /// Tokens of the thought with its markers; absent where there is none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub thought_tokens: usize,
    /// The answer's natural-log probability with nothing changed, mean per token.
    pub log_p: f64,
    /// The drop of the answer's log-probability where a carried span is hidden from the question on alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct: Option<f64>,
    #[serde(flatten)]
    pub effect: NamedEffect,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// An effect under the name of its ablation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NamedEffect {
    Effect(Effect),
    Total(Effect),
    Replaced(Effect),
}

impl Deref for NamedEffect {
    type Target = Effect;

    fn deref(&self) -> &Effect {
        let (NamedEffect::Effect(effect) | NamedEffect::Total(effect) | NamedEffect::Replaced(effect)) = self;
        effect
    }
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
    #[serde(default, skip_serializing_if = "Not::not")]
    pub softmax_only: bool,
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
    #[serde(default, skip_serializing_if = "Not::not")]
    pub softmax_only: bool,
    /// The share of the model's layers that are linear-attention layers and still saw what was blocked; absent where none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers_open: Option<f64>,
    pub answer_tokens: usize,
    /// Always written, as in [`SubsetRow`].
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

/// A line of the file. Blocked sessions name no kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum CauseLine {
    Control(CauseRow),
    Total(CauseRow),
    Replaced(CauseRow),
    /// A session that was hidden from a later one.
    Carrier(CauseRow),
    Subset(SubsetRow),
    #[serde(rename = "contextcite")]
    Surrogate(SurrogateRow),
    #[serde(untagged)]
    Blocked(CauseRow),
}

impl CauseLine {
    pub fn answer(&self) -> &AnswerKey {
        use CauseLine::{Blocked, Carrier, Control, Replaced, Subset, Surrogate, Total};
        match self {
            Blocked(row) | Control(row) | Total(row) | Replaced(row) | Carrier(row) => &row.answer,
            Subset(row) => &row.answer,
            Surrogate(row) => &row.answer,
        }
    }

    /// Key of the measurement, without answer and session: equal in the rows of all answers of a run.
    pub fn way(&self) -> String {
        let blocked =
            |row: &CauseRow| format!("layers {:?}, seed {}", row.layers, row.seed.unwrap_or_default());
        match self {
            CauseLine::Blocked(row) => format!("blocked, {}", blocked(row)),
            CauseLine::Control(row) => format!("controls, {}", blocked(row)),
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
            Some("carrier") => {
                CauseLine::Carrier(has(&["span", "carrier", "carrier_tokens", "direct", "effect"])?)
            }
            Some("subset") => CauseLine::Subset(serde_json::from_value(row).map_err(D::Error::custom)?),
            Some("contextcite") => {
                CauseLine::Surrogate(serde_json::from_value(row).map_err(D::Error::custom)?)
            }
            Some(other) => return Err(D::Error::custom(format!("no row is of kind `{other}`"))),
        })
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
        // The reader of rows refuses a line that does not parse.
        let Ok(row) = serde_json::from_slice::<Value>(line) else { continue };
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
    pub controls: Vec<CauseRow>,
    pub removed: Vec<CauseRow>,
    pub replaced: Vec<CauseRow>,
    pub carriers: Vec<CauseRow>,
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
