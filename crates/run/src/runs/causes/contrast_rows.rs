//! The rows of `contrast-causes.jsonl`: how contrasts change when sessions are blocked or removed.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::runs::rows::AnswerKey;
use palimpsest_data::ground::jsonl::{JsonlError, read_rows};

pub const CONTRAST_CAUSES: &str = "contrast-causes.jsonl";

/// An ablation of one session, or of a random stretch, and the contrast after it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContrastCauseRow {
    #[serde(flatten)]
    pub answer: AnswerKey,
    /// The span that was blocked or removed: `session[3]`, ...; empty for a control's stretch.
    pub span: String,
    /// Its part in the analysis, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Of a control its number in the pool, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stretch: Option<usize>,
    /// Its first token in the whole prompt, and one past its last.
    pub tokens: [usize; 2],
    /// Where it was hidden from later positions too, which: a later session, `all` or `between` ([`super::carriers`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carrier: Option<String>,
    /// The name of the text in its place, where it was replaced ([`palimpsest_core::ablate::NEUTRAL`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub neutral: Option<String>,
    /// The layers at which it was blocked, half-open; absent where at all, and where it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<[usize; 2]>,
    /// Seed of the pool of controls; 0 where it was removed, replaced or carried.
    pub seed: u64,
    pub ablation: AblationKind,
    /// The contrast with nothing changed ([`crate::runs::rows::Contrast::value`]), read in the same way.
    pub contrast: f64,
    /// Drop of the contrast, in nats: plain minus changed. Above 0 the contrast needs it.
    pub drop: f64,
    /// Where it was hidden from later positions too, the drop where it is hidden from the question on alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct: Option<f64>,
    /// The current value's log-probability after the ablation.
    pub current: f64,
    /// That of the value that it is held against: the stale one, or the absent one where nothing is stale.
    pub stale: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AblationKind {
    /// A session that all from the question on was kept from seeing.
    Blocked,
    /// A session that was removed, and all after it read again.
    Removed,
    /// A session in whose place neutral text of equal length stood, and all after it read again.
    Replaced,
    /// A session that later positions were kept from seeing too, not only those from the question on.
    Carried,
    Control,
}

/// Equal in rows of one measurement: the answer, the ablation, the tokens, the layers, the seed, and the carrier or the neutral text.
pub(super) type AblationKey = (AnswerKey, AblationKind, [usize; 2], Option<[usize; 2]>, u64, Option<String>);

impl ContrastCauseRow {
    /// Equal in rows that were measured in one way: the ablation, the layers, the seed, and the neutral text.
    pub fn way(&self) -> (AblationKind, Option<[usize; 2]>, u64, Option<String>) {
        (self.ablation, self.layers, self.seed, self.neutral.clone())
    }

    pub(super) fn key(&self) -> AblationKey {
        let other = self.carrier.clone().or_else(|| self.neutral.clone());
        (self.answer.clone(), self.ablation, self.tokens, self.layers, self.seed, other)
    }
}

/// All rows of a run's folder, in the order in which they were measured; none where there is no file.
pub fn read_contrast_causes(dir: &Path) -> Result<Vec<ContrastCauseRow>, JsonlError> {
    read_rows(&dir.join(CONTRAST_CAUSES))
}
