//! Judge calls that grade no answer: one verdict per question.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use super::calls::{Failures, make_calls};
use super::{Conduct, Exchange, Instructions, Judge, JudgeError, Judged, NoVerdict, Verdict, judge_call};
use crate::progress::{StepSeconds, Steps};
use crate::runs::error::RunError;
use crate::runs::plan::{PlannedCase, PlannedProbe};
use crate::runs::runner::Summary;

pub(super) struct Question<T> {
    pub case: PlannedCase,
    pub probe: PlannedProbe,
    pub what: String,
    pub row: T,
}

pub(super) type Take<'a, T> = &'a mut dyn FnMut(&T, Result<Verdict, String>) -> Result<(), RunError>;

/// `many` is the plural noun of the items, for messages.
pub(super) fn ask<T: Sync>(
    judge: &mut Judge<'_>,
    (instructions, conduct, stop): (&Instructions, &Conduct, &AtomicBool),
    (many, questions): (&'static str, &[Question<T>]),
    summary: &mut Summary,
    take: Take<'_, T>,
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
            (outcome, begun.elapsed().as_secs_f64())
        },
        &mut |nth, (outcome, seconds)| {
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
            take(row, verdict)?;
            if failed { Ok(()) } else { failures.count(&name, what, error.as_deref()) }
        },
    )?;
    Ok(())
}
