//! Joins each planned question with its answer and verdicts, for tables, losses, exports and pages.
//!
//! A verdict becomes a table cell in three steps: [`join`] makes a [`Record`] per question and condition; a judge and a benchmark give it a
//! worth and a cell ([`crate::results::outcomes`]); cells are counted and laid out ([`crate::results::metrics`],
//! [`crate::results::sheets`]).

use std::collections::HashMap;

use palimpsest_run::runs::error::RunError;
use palimpsest_run::runs::judge_name::JudgeName;
use palimpsest_run::runs::plan::{PlannedCase, PlannedProbe};
use palimpsest_run::runs::rows::{AnswerKey, AnswerRow, VerdictRow};
use palimpsest_run::runs::store::RunFolder;
use palimpsest_run::runs::why_rows::{WhyRow, last_rows, read_why};

#[derive(Debug, Clone)]
pub struct Record<'a> {
    pub case: &'a PlannedCase,
    pub probe: &'a PlannedProbe,
    pub row: Option<&'a AnswerRow>,
    pub verdicts: Vec<&'a VerdictRow>,
}

impl<'a> Record<'a> {
    /// The row, if it has no error.
    pub fn answer(&self) -> Option<&'a AnswerRow> {
        self.row.filter(|row| row.error.is_none() && row.answer.is_some())
    }

    pub fn judged_by(&self, judge: &JudgeName) -> Option<&'a VerdictRow> {
        self.verdicts.iter().rfind(|row| judge.gave(row)).copied()
    }

    /// A judge's verdict, if neither it nor the answer is an error.
    pub fn verdict(&self, judge: &JudgeName) -> Option<&'a VerdictRow> {
        self.judged_by(judge).filter(|row| row.is_clean() && self.answer().is_some())
    }
}

/// Questions of a plan under one condition, in plan order. The last row per question counts.
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

pub fn of<'a>(run: &'a RunFolder, condition: &str) -> Vec<Record<'a>> {
    join(&run.plan, condition, &run.answers, &run.verdicts)
}

/// A row, and the label of why its answer is as it is.
#[derive(Debug, Clone)]
pub struct Labelled<'a> {
    pub record: Record<'a>,
    pub row: &'a AnswerRow,
    pub label: Option<WhyRow>,
}

/// Rows under these conditions, errors included, in plan order.
pub fn labelled<'a>(
    run: &'a RunFolder,
    conditions: &[impl AsRef<str>],
) -> Result<Vec<Labelled<'a>>, RunError> {
    let mut labels = last_rows(read_why(&run.dir)?);
    let mut by_condition: Vec<_> = conditions.iter().map(|name| of(run, name.as_ref()).into_iter()).collect();
    let mut found = Vec::new();
    for _ in run.plan.iter().flat_map(|case| &case.probes) {
        for record in by_condition.iter_mut().filter_map(Iterator::next) {
            let Some(row) = record.row else { continue };
            found.push(Labelled { record, row, label: labels.remove(&row.key().owned()) });
        }
    }
    Ok(found)
}
