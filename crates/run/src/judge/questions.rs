//! Judge calls that grade no answer: one verdict per question. Checks the data's own labels: a judge that does not see the label assigns
//! one (requested by SubtleMemory's reviewers). Local judges score, endpoints reply, as for verdicts.

use std::collections::HashSet;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use super::calls::{Failures, make_calls};
use super::{
    Conduct, Exchange, Instructions, Judge, JudgeError, Judged, NoVerdict, Reasons, Said, Verdict, judge_call,
};
use crate::progress::{StepSeconds, Steps};
use crate::runs::error::RunError;
use crate::runs::labels::{LabelRow, units};
use crate::runs::plan::{PlannedCase, PlannedProbe};
use crate::runs::runner::Summary;
use palimpsest_data::benchmarks::LabelCheck;
use palimpsest_data::ground::jsonl::RowLog;

/// Takes a question's row with what was said of it, and the parameters that the judge's endpoint refused.
type Take<'a, T> = dyn FnMut(&T, Result<Verdict, String>, Vec<String>) -> Result<(), RunError> + 'a;

pub(super) struct Question<T> {
    pub case: PlannedCase,
    pub probe: PlannedProbe,
    pub what: String,
    pub row: T,
}

/// `many` is the plural noun of the items, for messages.
pub(super) fn ask<T: Sync>(
    judge: &mut Judge<'_>,
    (instructions, conduct, stop): (&Instructions, &Conduct, &AtomicBool),
    (many, questions): (&'static str, &[Question<T>]),
    summary: &mut Summary,
    take: &mut Take<'_, T>,
) -> Result<(), RunError> {
    let name = judge.name();
    let mut progress = Steps::new(many, questions.len(), conduct.show_progress).brief(!conduct.verbose);
    let mut failures = Failures::new(conduct);
    summary.stopped = make_calls(
        judge,
        questions.len(),
        stop,
        &|judge, nth| {
            let Question { case, probe, .. } = &questions[nth];
            // An empty answer makes the judge decide, since there is none to grade.
            let exchange = Exchange { probe: probe.clone(), answer: Some(String::new()), cut: false };
            let begun = Instant::now();
            let outcome = judge_call(judge, instructions, case, &[exchange]);
            (outcome, begun.elapsed().as_secs_f64(), judge.refused_parameters())
        },
        &mut |nth, (outcome, seconds, refused)| {
            let Question { what, row, .. } = &questions[nth];
            let failed = matches!(outcome, Err(JudgeError::Call(_)));
            let told = outcome.and_then(|Judged { verdicts, .. }| {
                let first = verdicts.into_iter().next();
                Ok(first.unwrap_or(Err(NoVerdict::Nothing))?)
            });
            let verdict = match told {
                Err(JudgeError::Template(error)) => return Err(RunError::GaveUp(error)),
                told => told.map_err(|error| error.to_string()),
            };
            let error = verdict.as_ref().err().cloned();
            match &error {
                Some(error) if failed => failures.call_failed(error)?,
                _ => failures.call_came(),
            }
            let took = Some(StepSeconds { before: 0.0, own: seconds });
            progress.measured_step(what, error.as_deref(), took);
            match error {
                Some(_) => summary.errors += 1,
                None => summary.done += 1,
            }
            take(row, verdict, refused)?;
            if failed { Ok(()) } else { failures.count(&name, what, error.as_deref()) }
        },
    )?;
    Ok(())
}

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
    ask(judge, asked, ("labels", &wanted), &mut summary, &mut |row, verdict, refused| {
        let mut row = LabelRow { refused_parameters: refused, ..row.clone() };
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
