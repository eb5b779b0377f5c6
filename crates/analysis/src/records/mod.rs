//! Records of a run: each planned question with its answer and its verdicts, joined once for tables, losses, exports and pages.
//!
//! A verdict becomes a cell of a table in three steps:
//!
//! 1. [`join`] puts the rows of a folder, which is read once, beside the plan: a [`Record`] a question and condition.
//! 2. A record is worth something by a judge, in a cell of its benchmark ([`crate::results::outcomes`]).
//! 3. Cells are counted, with their intervals, and laid out ([`crate::results::metrics`], [`crate::results::sheets`]).

use std::collections::HashMap;

use palimpsest_run::runs::judge_name::JudgeName;
use palimpsest_run::runs::plan::{PlannedCase, PlannedProbe};
use palimpsest_run::runs::rows::{AnswerKey, AnswerRow, VerdictRow};
use palimpsest_run::runs::store::RunFolder;

/// A planned question under a condition.
#[derive(Debug, Clone)]
pub struct Record<'a> {
    pub case: &'a PlannedCase,
    pub probe: &'a PlannedProbe,
    /// Its row, an error too; `None` where it was not asked yet.
    pub row: Option<&'a AnswerRow>,
    /// Of every judge by every rubric, error rows included.
    pub verdicts: Vec<&'a VerdictRow>,
}

impl<'a> Record<'a> {
    /// The row of a clean answer.
    pub fn answer(&self) -> Option<&'a AnswerRow> {
        self.row.filter(|row| row.error.is_none() && row.answer.is_some())
    }

    /// The row of a judge by a rubric.
    pub fn judged_by(&self, judge: &JudgeName) -> Option<&'a VerdictRow> {
        self.verdicts.iter().rfind(|row| judge.gave(row)).copied()
    }

    /// A judge's clean verdict on a clean answer. Verdicts on an answer that is an error by now count for nothing.
    pub fn verdict(&self, judge: &JudgeName) -> Option<&'a VerdictRow> {
        self.judged_by(judge).filter(|row| row.is_clean() && self.answer().is_some())
    }
}

/// The questions of a plan under one condition, in the plan's order. Of several rows on one question the last counts.
pub fn join<'a>(
    plan: &'a [PlannedCase],
    condition: &str,
    answers: impl IntoIterator<Item = &'a AnswerRow>,
    verdicts: impl IntoIterator<Item = &'a VerdictRow>,
) -> Vec<Record<'a>> {
    let answers: HashMap<_, &AnswerRow> = answers.into_iter().map(|row| (row.key(), row)).collect();
    let mut by_answer: HashMap<AnswerKey<&str>, Vec<&'a VerdictRow>> = HashMap::new();
    for row in verdicts {
        by_answer.entry(row.key()).or_default().push(row);
    }
    let planned = plan.iter().flat_map(|case| case.probes.iter().map(move |probe| (case, probe)));
    let record = |(case, probe): (&'a PlannedCase, &'a PlannedProbe)| {
        let key = AnswerKey::of(&case.case, &probe.id, condition);
        let verdicts = by_answer.get(&key).cloned().unwrap_or_default();
        Record { case, probe, row: answers.get(&key).copied(), verdicts }
    };
    planned.map(record).collect()
}

/// A run's questions under one of its conditions.
pub fn of<'a>(run: &'a RunFolder, condition: &str) -> Vec<Record<'a>> {
    join(&run.plan, condition, &run.answers, &run.verdicts)
}
