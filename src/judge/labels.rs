//! Checking the data's own labels: a judge that is not told a label says which it would have given (a demand of SubtleMemory's
//! reviewers). Local judges are read by scoring, endpoints by their reply, as with verdicts.

use std::collections::HashSet;
use std::sync::atomic::AtomicBool;

use super::calls::{Unreadable, make_calls};
use super::{Conduct, Exchange, Instructions, Judge, JudgeError, Judged, NoVerdict, Reasons, judge_call};
use crate::benchmarks::{JudgeUnit, LabelCheck, Said, VerdictKind};
use crate::progress::{StepSeconds, Steps};
use crate::run::error::RunError;
use crate::run::labels::{LabelLog, LabelRow, units};
use crate::run::plan::{PlannedCase, PlannedProbe};
use crate::run::runner::Summary;
use crate::run::subject::PATIENCE;

/// The instructions of a check.
pub fn label_instructions(check: &LabelCheck, reasons: Reasons) -> Instructions {
    Instructions {
        name: "labels".into(),
        template: check.template.into(),
        unit: JudgeUnit::Probe,
        verdict: VerdictKind::Choice { of: check.values },
        reasons,
        thinking: None,
        accepted: None,
    }
}

/// Asks about what has no clean row of this judge by these instructions yet.
///
/// # Errors
/// [`RunError::GaveUp`] where the judge cannot be reached any more, says nothing that can be read, or the template fails.
pub fn check_labels<'p>(
    log: &mut LabelLog,
    plan: &'p [PlannedCase],
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
    let clean: HashSet<(String, String)> = log.rows().iter().filter(own).map(key).collect();
    let all = units(check, plan);
    let mut summary = Summary { planned: all.len(), ..Summary::default() };
    let row = |(case, at): (&'p PlannedCase, usize)| {
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
        Some((case, probe, row))
    };
    let count = all.len();
    let mut wanted: Vec<(&PlannedCase, &PlannedProbe, LabelRow)> = all.into_iter().filter_map(row).collect();
    wanted.retain(|(.., row)| !clean.contains(&key(row)));
    summary.skipped = count - wanted.len();
    let mut progress = Steps::new("labels", wanted.len(), conduct.show_progress).brief(!conduct.verbose);
    let mut failed_in_a_row = 0;
    let mut unreadable = Unreadable::new(&conduct);
    summary.stopped = make_calls(
        judge,
        wanted.len(),
        stop,
        &|judge, meter, nth| {
            let (case, probe, _) = &wanted[nth];
            // There is no answer to judge, only the probe's notes; an empty one says that the judge is to be asked.
            let exchange = Exchange { probe: (*probe).clone(), answer: Some(String::new()), cut: false };
            let begun = meter.begin();
            let outcome = judge_call(judge, instructions, case, &[exchange]);
            (outcome, meter.end(&begun).seconds)
        },
        &mut |nth, (outcome, seconds)| {
            let mut row = wanted[nth].2.clone();
            let failed = matches!(outcome, Err(JudgeError::Call(_)));
            let told = outcome.and_then(|Judged { verdicts, .. }| {
                let first = verdicts.into_iter().next();
                Ok(first.unwrap_or(Err(NoVerdict::Nothing))?)
            });
            match told {
                Ok(verdict) => {
                    if let Said::Choice(choice) = verdict.said {
                        row.said = Some(choice);
                    }
                    row.probability = verdict.probability;
                    row.reason = verdict.reason;
                }
                Err(JudgeError::Template(error)) => return Err(RunError::GaveUp(error)),
                Err(error) => row.error = Some(error.to_string()),
            }
            failed_in_a_row = if failed { failed_in_a_row + 1 } else { 0 };
            if failed_in_a_row >= PATIENCE {
                return Err(RunError::GaveUp(format!(
                    "{PATIENCE} calls of the judge in a row failed, so checking stops here (the same command goes on); the last said: {}",
                    row.error.unwrap_or_default()
                )));
            }
            let (what, error) = (format!("{} {}", row.case, row.unit), row.error.clone());
            let took = Some(StepSeconds { before: 0.0, own: seconds });
            progress.measured_step(&what, error.as_deref(), took);
            match error {
                Some(_) => summary.errors += 1,
                None => summary.done += 1,
            }
            log.append(row)?;
            if failed { Ok(()) } else { unreadable.count(&name, &what, error.as_deref()) }
        },
    )?;
    Ok(summary)
}
