//! Formats that hold one answer a question, a text a condition; and which questions and conditions of a run an export is without.

use super::{ExportError, hypotheses};
use crate::benchmarks::Exchanged;
use crate::run::condition::label;
use crate::run::exchange::{export, shorten, unanswered};
use crate::run::store::RunFolder;

/// A format that holds one answer a question.
#[derive(Debug, Clone, Copy)]
pub enum OneAnswer {
    Longmemeval,
    /// The format of a benchmark's authors, which writes the answers.
    Authors(fn(Vec<Exchanged>) -> Result<String, serde_json::Error>),
}

/// The answers under a condition in a format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportText {
    pub text: String,
    pub what: String,
    /// A note on questions without an answer, where there are some.
    pub unanswered: Option<String>,
}

impl OneAnswer {
    /// The answers of a run's one condition, whose name is `condition`; those that lack one are empty with `partial`.
    pub fn text(self, one: &RunFolder, condition: &str, partial: bool) -> Result<ExportText, ExportError> {
        let (text, what) = match self {
            OneAnswer::Longmemeval => {
                let text = hypotheses::lines(one, partial)?;
                let what = format!("{} hypotheses", text.lines().count());
                (text, what)
            }
            OneAnswer::Authors(write) => {
                let answers = export(one, partial)?;
                let what = format!("answers to {} cases", answers.len());
                (write(answers)?, what)
            }
        };
        let planned: usize = one.plan.iter().map(|case| case.probes.len()).sum();
        let missing = one.missing(&[condition.to_owned()]).len();
        let answered = one.answers.iter().filter(|row| row.error.is_none() && row.answer.is_some()).count();
        let failed = planned - missing - answered;
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
