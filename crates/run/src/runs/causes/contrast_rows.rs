//! Rows of `contrast-causes.jsonl`: changes of contrasts when sessions are blocked, removed or replaced.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::repair_rows::{RepairedRows, in_place};
use crate::runs::rows::AnswerKey;
use palimpsest_data::ground::jsonl::{JsonlError, read_rows};

pub const CONTRAST_CAUSES: &str = "contrast-causes.jsonl";

/// Effect of one ablation on a contrast; fields as in [`CauseRow`](super::rows::CauseRow) where not said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContrastCauseRow {
    #[serde(flatten)]
    pub answer: AnswerKey,
    pub span: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stretch: Option<usize>,
    pub tokens: [usize; 2],
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carrier: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub neutral: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<RepairedRows>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<[usize; 2]>,
    /// Seed of the control pool; 0 for removed, replaced or carried spans.
    pub seed: u64,
    pub ablation: AblationKind,
    /// Unchanged contrast ([`crate::runs::rows::Contrast::value`]), read in the same way.
    pub contrast: f64,
    /// Unchanged minus changed contrast, in nats; positive if the contrast depends on the span.
    pub drop: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct: Option<f64>,
    pub current: f64,
    /// Log-probability of the stale value, or of the absent one if nothing is stale.
    pub stale: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AblationKind {
    Blocked,
    Removed,
    /// Replaced by neutral text of equal length, and everything after it recomputed.
    Replaced,
    /// Replaced in the same way, and only some rows recomputed ([`ContrastCauseRow::rows`]).
    Repaired,
    /// Hidden from later positions too, not only from the question on.
    Carried,
    /// Shown to sliding windows that had left it behind.
    Forced,
    Control,
}

/// Identifies one measurement: answer, ablation, tokens, layers, seed, and carrier or neutral text with repaired rows.
pub(super) type AblationKey = (AnswerKey, AblationKind, [usize; 2], Option<[usize; 2]>, u64, Option<String>);

impl ContrastCauseRow {
    /// Identifies the method: ablation, layers, seed, neutral text and repaired rows.
    pub fn way(&self) -> (AblationKind, Option<[usize; 2]>, u64, Option<String>) {
        (self.ablation, self.layers, self.seed, in_place(self.neutral.as_ref(), self.rows))
    }

    pub(super) fn key(&self) -> AblationKey {
        let other = self.carrier.clone().or_else(|| in_place(self.neutral.as_ref(), self.rows));
        (self.answer.clone(), self.ablation, self.tokens, self.layers, self.seed, other)
    }
}

/// Rows in measurement order; empty if the file is absent.
pub fn read_contrast_causes(dir: &Path) -> Result<Vec<ContrastCauseRow>, JsonlError> {
    read_rows(dir, CONTRAST_CAUSES)
}
