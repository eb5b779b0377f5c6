//! Exports answers and verdicts to other tools' formats: Inspect logs ([`inspect`]), Parquet ([`parquet`]) and formats with one answer per
//! question ([`OneAnswer`]). Benchmark authors' own formats live with the benchmark. Called by `palimpsest export`; reads run folders only
//! and does not copy attention files.

pub mod inspect;
#[cfg_attr(not(feature = "parquet"), path = "no_parquet.rs")]
pub mod parquet;

use std::collections::HashSet;

use anyhow::bail;

use crate::records::{self, Record};
use palimpsest_data::benchmarks::Exchanged;
use palimpsest_run::runs::condition::label;
use palimpsest_run::runs::exchange::{export, shorten, unanswered};
use palimpsest_run::runs::store::RunFolder;

/// Answer id outside its run: `CASE_PROBE`.
fn id(record: &Record<'_>) -> String {
    format!("{}_{}", record.case.case, record.probe.id)
}

fn check_distinct(ids: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let mut seen = HashSet::new();
    for id in ids {
        if let Some(id) = seen.replace(id) {
            bail!(
                "the id `{id}` would stand for two answers; rename a case, so that case and probe joined by _ are distinct"
            );
        }
    }
    Ok(())
}

/// A format with one answer per question; each condition gets its own text.
#[derive(Debug, Clone, Copy)]
pub enum OneAnswer {
    /// LongMemEval's hypotheses: JSON lines `{"question_id", "hypothesis"}` in plan order, with id `CASE_PROBE`. Missing answers are lines
    /// with an empty hypothesis: the benchmark's script averages over the lines it finds, so omitting them would raise accuracy.
    Longmemeval,
    Authors(fn(Vec<Exchanged>) -> Result<String, serde_json::Error>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportText {
    pub text: String,
    pub what: String,
    pub unanswered: Option<String>,
}

impl OneAnswer {
    /// Exports the answers of one condition. Unanswered questions are empty with `partial`, else an error.
    pub fn text(self, one: &RunFolder, condition: &str, partial: bool) -> anyhow::Result<ExportText> {
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

/// Example: ` under plain, repeat-2`; empty for a run without conditions.
pub fn under(folder: &RunFolder, conditions: &[String]) -> String {
    let names: Vec<&str> = conditions.iter().map(|name| label(name)).collect();
    if folder.has_conditions() { format!(" under {}", names.join(", ")) } else { String::new() }
}

pub fn not_asked(folder: &RunFolder, conditions: &[String]) -> Option<String> {
    let missing = folder.missing(conditions);
    let probes: usize = folder.plan.iter().map(|case| case.probes.len()).sum();
    (!missing.is_empty()).then(|| {
        format!(
            "note: {} of {} questions were not asked yet and are not in the file: {}; the same `palimpsest run` command resumes the \
             run",
            missing.len(),
            probes * conditions.len(),
            shorten(&missing)
        )
    })
}

pub fn other_conditions(folder: &RunFolder, conditions: &[String]) -> Option<String> {
    let all = folder.header.identity.condition_names();
    let others: Vec<&str> =
        all.into_iter().filter(|name| !conditions.iter().any(|own| own == name)).map(label).collect();
    (!others.is_empty()).then(|| {
        format!("note: answers under {} are not exported: name them with --condition", others.join(", "))
    })
}
