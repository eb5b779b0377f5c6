//! Answers and verdicts in the formats of other tools.
//!
//! [`inspect`] is Inspect's eval log, [`parquet`] one row an answer; formats that hold one answer a question ([`OneAnswer`]) are here, but
//! for that of a benchmark's authors, which is the benchmark's business. Called by `palimpsest export`; reads run folders only, and
//! leaves attention files where they are.

pub mod inspect;
#[cfg_attr(not(feature = "parquet"), path = "no_parquet.rs")]
pub mod parquet;

use std::collections::HashSet;

#[cfg(feature = "parquet")]
use ::parquet::errors::ParquetError;

use crate::records::{self, Record};
use palimpsest_data::benchmarks::Exchanged;
use palimpsest_run::runs::condition::label;
use palimpsest_run::runs::error::RunError;
use palimpsest_run::runs::exchange::{ExchangeError, export, shorten, unanswered};
use palimpsest_run::runs::rows::AnswerRow;
use palimpsest_run::runs::store::RunFolder;
use palimpsest_run::runs::why_rows::{WhyRow, last_rows, read_why};

#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    #[error(
        "the id `{0}` would stand for two answers; rename a case, so that case and probe joined by _ are distinct"
    )]
    Double(String),
    #[error("cannot write the export: {0}")]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Run(#[from] RunError),
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

/// A question that was asked, with its row and the label of its answer.
#[derive(Debug, Clone)]
struct Answered<'a> {
    record: Record<'a>,
    row: &'a AnswerRow,
    label: Option<WhyRow>,
}

/// The id of an answer outside of its run: `CASE_PROBE`.
fn id(record: &Record<'_>) -> String {
    format!("{}_{}", record.case.case, record.probe.id)
}

/// The asked questions of a run under these conditions, errors included, in the plan's order.
fn rows<'a>(folder: &'a RunFolder, conditions: &[String]) -> Result<Vec<Answered<'a>>, ExportError> {
    let mut labels = last_rows(read_why(&folder.dir).map_err(RunError::from)?);
    let mut by_condition: Vec<_> =
        conditions.iter().map(|name| records::of(folder, name).into_iter()).collect();
    let mut found = Vec::new();
    for _ in folder.plan.iter().flat_map(|case| &case.probes) {
        for record in by_condition.iter_mut().filter_map(Iterator::next) {
            let Some(row) = record.row else { continue };
            found.push(Answered { record, row, label: labels.remove(&row.key().owned()) });
        }
    }
    Ok(found)
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

/// A format that holds one answer a question, so that each condition has a text of its own.
#[derive(Debug, Clone, Copy)]
pub enum OneAnswer {
    /// LongMemEval's hypotheses: JSON lines `{"question_id", "hypothesis"}` in the plan's order, the former `CASE_PROBE`. The evaluation
    /// script of that benchmark reads these two fields and averages over the lines that it finds: a missing answer must be a line with
    /// an empty hypothesis, or it would raise the accuracy.
    Longmemeval,
    /// The format of a benchmark's authors, which writes the answers.
    Authors(fn(Vec<Exchanged>) -> Result<String, serde_json::Error>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportText {
    pub text: String,
    pub what: String,
    /// A note on questions without an answer, where there are some.
    pub unanswered: Option<String>,
}

impl OneAnswer {
    /// The answers of a run's one condition, whose name is `condition`; those that lack one are empty with `partial`, else refused.
    pub fn text(self, one: &RunFolder, condition: &str, partial: bool) -> Result<ExportText, ExportError> {
        let answers = export(one, partial)?;
        let records = records::of(one, condition);
        let (text, what) = match self {
            OneAnswer::Longmemeval => {
                check_distinct(records.iter().map(id))?;
                let line = |record: &Record<'_>| {
                    let hypothesis =
                        record.answer().and_then(|row| row.answer.as_deref()).unwrap_or_default();
                    format!(
                        "{}\n",
                        serde_json::json!({ "question_id": id(record), "hypothesis": hypothesis })
                    )
                };
                (records.iter().map(line).collect(), format!("{} hypotheses", records.len()))
            }
            OneAnswer::Authors(write) => {
                let what = format!("answers to {} cases", answers.len());
                (write(answers)?, what)
            }
        };
        let missing = one.missing(&[condition.to_owned()]).len();
        let answered = records.iter().filter(|record| record.answer().is_some()).count();
        let failed = records.len() - missing - answered;
        let unanswered = (missing + failed > 0).then(|| unanswered(missing, failed));
        Ok(ExportText { text, what, unanswered })
    }
}

/// ` under plain, repeat-2` of a run with conditions.
pub fn under(folder: &RunFolder, conditions: &[String]) -> String {
    let names: Vec<&str> = conditions.iter().map(|name| label(name)).collect();
    if folder.has_conditions() { format!(" under {}", names.join(", ")) } else { String::new() }
}

/// A note on the questions under these conditions that were not asked yet, where there are some.
pub fn not_asked(folder: &RunFolder, conditions: &[String]) -> Option<String> {
    let missing = folder.missing(conditions);
    let probes: usize = folder.plan.iter().map(|case| case.probes.len()).sum();
    (!missing.is_empty()).then(|| {
        format!(
            "note: {} of {} questions were not asked yet and are not in the file: {}; the same `palimpsest run` command goes on with the \
             run",
            missing.len(),
            probes * conditions.len(),
            shorten(&missing)
        )
    })
}

/// A note on the run's other conditions, where there are some.
pub fn other_conditions(folder: &RunFolder, conditions: &[String]) -> Option<String> {
    let all = folder.header.identity.condition_names();
    let others: Vec<&str> =
        all.into_iter().filter(|name| !conditions.iter().any(|own| own == name)).map(label).collect();
    (!others.is_empty()).then(|| {
        format!("note: answers under {} are not exported: name them with --condition", others.join(", "))
    })
}
