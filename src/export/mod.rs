//! Answers and verdicts in the formats of other tools.
//!
//! Each format is a file: [`inspect`] (Inspect's eval log), [`parquet`] (one row an answer), [`hypotheses`] (LongMemEval's JSON
//! lines). The format of a benchmark's authors is the benchmark's business. Called by `palimpsest export`; reads run folders
//! only, and leaves attention files where they are.

mod by_condition;
pub mod hypotheses;
pub mod inspect;
#[cfg_attr(not(feature = "parquet"), path = "no_parquet.rs")]
pub mod parquet;

use std::collections::{HashMap, HashSet};

pub use by_condition::{ExportText, OneAnswer, not_asked, other_conditions, under};

#[cfg(feature = "parquet")]
use ::parquet::errors::ParquetError;

use crate::run::exchange::ExchangeError;
use crate::run::plan::{PlannedCase, PlannedProbe};
use crate::run::rows::{AnswerKey, AnswerRow};
use crate::run::store::RunFolder;

/// Why a run could not be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// Two answers would have one id.
    #[error(
        "the id `{0}` would stand for two answers; rename a case, so that case and probe joined by _ are distinct"
    )]
    Double(String),
    #[error("cannot write the export: {0}")]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Run(#[from] crate::run::error::RunError),
    #[error("cannot write the export as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("cannot write the export as Parquet: {0}")]
    Parquet(#[from] ParquetError),
}

/// A build without the feature `parquet` writes none.
#[cfg(not(feature = "parquet"))]
#[derive(Debug, thiserror::Error)]
#[error(
    "this build of palimpsest writes none; build it with the cargo feature `parquet`, which is on by default"
)]
pub struct ParquetError;

/// An answer row with what the plan says of it.
#[derive(Debug, Clone, Copy)]
struct Answered<'a> {
    case: &'a PlannedCase,
    probe: &'a PlannedProbe,
    row: &'a AnswerRow,
}

/// The id of an answer outside of its run: `CASE_PROBE`.
pub fn id(case: &str, probe: &str) -> String {
    format!("{case}_{probe}")
}

/// The rows of a run under these conditions, errors included, in the plan's order. What was not asked yet has none:
/// [`RunFolder::missing`] says what that is.
fn rows<'a>(folder: &'a RunFolder, conditions: &[String]) -> Vec<Answered<'a>> {
    let by_key: HashMap<_, &AnswerRow> = folder.answers.iter().map(|row| (row.key(), row)).collect();
    let mut found = Vec::new();
    for case in &folder.plan {
        for probe in &case.probes {
            for name in conditions {
                let row = by_key.get(&AnswerKey::of(&case.case, &probe.id, name));
                found.extend(row.map(|row| Answered { case, probe, row }));
            }
        }
    }
    found
}

/// Refuses ids that would stand for two answers.
fn check_distinct(ids: impl Iterator<Item = String>) -> Result<(), ExportError> {
    let mut seen = HashSet::new();
    for id in ids {
        if !seen.insert(id.clone()) {
            return Err(ExportError::Double(id));
        }
    }
    Ok(())
}
