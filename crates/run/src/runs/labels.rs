//! `labels.jsonl`: blind judgements of the dataset's own labels. Answers are not considered.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::RunError;
use super::plan::PlannedCase;
use palimpsest_data::benchmarks::LabelCheck;
use palimpsest_data::ground::jsonl::read_rows;

/// Appended to under the run's [`RunStore`](super::store::RunStore).
pub const LABELS: &str = "labels.jsonl";

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LabelRow {
    pub case: String,
    pub unit: String,
    pub label: String,
    pub judge: String,
    /// SHA-256 of the instructions.
    pub rubric: String,
    /// Absent if `error` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
    /// Scoring judges only: probability of the label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Parameters that the judge's endpoint refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_parameters: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// All rows, including superseded ones; empty without a file.
pub fn label_rows(dir: &Path) -> Result<Vec<LabelRow>, RunError> {
    Ok(read_rows(dir, LABELS)?)
}

/// First probe of each case and unit, with its index. Skips broken rows.
pub fn units<'a>(check: &LabelCheck, plan: &'a [PlannedCase]) -> Vec<(&'a PlannedCase, usize)> {
    let mut units: Vec<(&PlannedCase, usize)> = Vec::new();
    for case in plan.iter().filter(|case| case.broken.is_none()) {
        let mut seen: Vec<&str> = Vec::new();
        for (at, probe) in case.probes.iter().enumerate() {
            let unit = probe.facets.get(check.unit).filter(|_| probe.facets.contains_key(check.facet));
            if let Some(unit) = unit.filter(|unit| !seen.contains(&unit.as_str())) {
                seen.push(unit);
                units.push((case, at));
            }
        }
    }
    units
}
