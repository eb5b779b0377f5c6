//! Checks the data's own labels: a judge that does not see the label assigns one (requested by SubtleMemory's reviewers). Local judges
//! score, endpoints reply, as for verdicts.

use std::collections::HashSet;
use std::sync::atomic::AtomicBool;

use super::questions::{Question, ask};
use super::{Conduct, Instructions, Judge, Reasons};
use crate::runs::error::RunError;
use crate::runs::labels::{LabelRow, units};
use crate::runs::plan::PlannedCase;
use crate::runs::runner::Summary;
use palimpsest_data::benchmarks::{LabelCheck, Said};
use palimpsest_data::ground::jsonl::RowLog;

pub fn label_instructions(check: &LabelCheck, reasons: Reasons) -> Instructions {
    Instructions::of_choice("labels", check.template, check.values, reasons)
}

pub fn check_labels(
    log: &mut RowLog<LabelRow>,
    plan: &[PlannedCase],
    check: &LabelCheck,
    judge: &mut Judge<'_>,
    instructions: &Instructions,
    stop: &AtomicBool,
    conduct: impl Into<Conduct>,
) -> Result<Summary, RunError> {
    let conduct = conduct.into();
    let (name, rubric) = (judge.name(), instructions.digest());
    let key = |row: &LabelRow| (row.case.clone(), row.unit.clone());
    let own = |row: &&LabelRow| row.judge == name && row.rubric == rubric && row.said.is_some();
    let clean: HashSet<(String, String)> = log.rows.iter().filter(own).map(key).collect();
    let all = units(check, plan);
    let mut summary = Summary { planned: all.len(), ..Summary::default() };
    let question = |(case, at): (&PlannedCase, usize)| {
        let probe = case.probes.get(at)?;
        let facet = |name: &str| probe.facets.get(name).cloned().unwrap_or_default();
        let row = LabelRow {
            case: case.case.clone(),
            unit: facet(check.unit),
            label: facet(check.facet),
            judge: name.clone(),
            rubric: rubric.clone(),
            ..LabelRow::default()
        };
        let what = format!("{} {}", row.case, row.unit);
        Some(Question { case: case.clone(), probe: probe.clone(), what, row })
    };
    let count = all.len();
    let mut wanted: Vec<Question<LabelRow>> = all.into_iter().filter_map(question).collect();
    wanted.retain(|question| !clean.contains(&key(&question.row)));
    summary.skipped = count - wanted.len();
    let asked = (instructions, &conduct, stop);
    ask(judge, asked, ("labels", &wanted), &mut summary, &mut |row, verdict| {
        let mut row = row.clone();
        match verdict {
            Ok(verdict) => {
                if let Said::Choice(choice) = verdict.said {
                    row.said = Some(choice);
                }
                row.probability = verdict.probability;
                row.reason = verdict.reason;
            }
            Err(error) => row.error = Some(error),
        }
        Ok(log.append(row)?)
    })?;
    Ok(summary)
}
