//! `labels.jsonl`: what judges that were not told a label of the data said that it is. Beside the answers, since it is the data of the
//! run that is checked; no answer is looked at.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::RunError;
use super::plan::PlannedCase;
use palimpsest_data::benchmarks::LabelCheck;
use palimpsest_data::ground::jsonl::{RowLog, read_rows};

pub(super) const LABELS: &str = "labels.jsonl";

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LabelRow {
    pub case: String,
    /// The labelled unit: a value of [`LabelCheck::unit`].
    pub unit: String,
    pub label: String,
    pub judge: String,
    /// SHA-256 of the instructions that it judged by.
    pub rubric: String,
    /// Label by the judge; absent when `error` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
    /// A judge by scoring: the probability of what it said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The file of a run folder, open for appending. Who holds it holds the run's [`RunStore`](super::store::RunStore), too.
#[derive(Debug)]
pub struct LabelLog(RowLog<LabelRow>);

impl LabelLog {
    pub fn open(dir: &Path) -> Result<Self, RunError> {
        Ok(LabelLog(RowLog::open(dir.join(LABELS))?))
    }

    pub fn rows(&self) -> &[LabelRow] {
        &self.0.rows
    }

    pub fn append(&mut self, row: LabelRow) -> Result<(), RunError> {
        Ok(self.0.append(row)?)
    }
}

/// The rows of a run folder, superseded ones included; none where nobody checked.
pub fn label_rows(dir: &Path) -> Result<Vec<LabelRow>, RunError> {
    Ok(read_rows(&dir.join(LABELS))?)
}

/// The first probe of each case and unit, with its index in the case. Broken rows are left out.
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
