//! The rubric that raters read: the one that the judge went by, so that both say the same thing of an answer.

use super::AgreementError;
use crate::benchmarks::{Benchmark, rubric_named};
use crate::judge::Instructions;
use crate::run::judge_name::{JudgeChoice, JudgeName};
use crate::run::judged::Judged;
use crate::run::rows::RubricRow;
use crate::run::store::RunFolder;

/// Which rubric raters are to read.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RubricChoice<'a> {
    /// The rubric that this judge went by.
    pub judge: Option<&'a str>,
    /// The rubric of this name, of the benchmark or of a run that was judged by a template of its own.
    pub rubric: Option<&'a str>,
    pub template: Option<&'a str>,
}

/// The instructions that raters read: the template that is given, the rubric that is named, else the one by which the last judge of
/// every run judged, and of runs that nobody has judged the benchmark's default.
pub fn raters_rubric(
    benchmark: &Benchmark,
    runs: &[RunFolder],
    choice: RubricChoice<'_>,
) -> Result<Instructions, AgreementError> {
    let default = Instructions::from(&benchmark.rubric());
    if let Some(template) = choice.template {
        return Ok(default.with_template(template.to_owned()));
    }
    if let (Some(name), None) = (choice.rubric, choice.judge) {
        return named(benchmark, runs, name);
    }
    let mut found: Option<(&RunFolder, &JudgeName, Instructions)> = None;
    for run in runs {
        let (judged, _) = run.judged_last(JudgeChoice { judge: choice.judge, rubric: choice.rubric })?;
        let Some(Judged { name, .. }) = judged else { continue };
        let own = of_judge(benchmark, run, name)?;
        match &found {
            Some((first, judge, rubric)) if rubric.criteria() != own.criteria() => {
                return Err(AgreementError::Rubrics {
                    first: first.dir.clone(),
                    first_judge: judge.label.clone(),
                    other: run.dir.clone(),
                    other_judge: name.label.clone(),
                });
            }
            Some(_) => {}
            None => found = Some((run, name, own)),
        }
    }
    Ok(found.map_or(default, |(_, _, rubric)| rubric))
}

fn named(benchmark: &Benchmark, runs: &[RunFolder], name: &str) -> Result<Instructions, AgreementError> {
    let kept = || runs.iter().flat_map(|run| &run.rubrics);
    let unknown = match (rubric_named(benchmark, name), kept().find(|row| row.name == name)) {
        (Ok(rubric), _) => return Ok(Instructions::from(&rubric)),
        (Err(_), Some(row)) => return Ok(kept_text(benchmark, row)),
        (Err(unknown), None) => unknown,
    };
    let mut own: Vec<&str> = kept().map(|row| row.name.as_str()).collect();
    own.retain(|name| rubric_named(benchmark, name).is_err());
    own.sort_unstable();
    own.dedup();
    let of_runs =
        if own.is_empty() { String::new() } else { format!("; runs were judged by: {}", own.join(", ")) };
    Err(AgreementError::UnknownRubric { unknown, of_runs })
}

/// Rubric of a judge of a run. The text of one that has a name only is this version's.
fn of_judge(
    benchmark: &Benchmark,
    run: &RunFolder,
    judge: &JudgeName,
) -> Result<Instructions, AgreementError> {
    if let Some(row) = run.rubrics.iter().find(|row| Some(&row.rubric) == judge.digest.as_ref()) {
        return Ok(kept_text(benchmark, row));
    }
    match (&judge.rubric, &judge.digest) {
        (Some(name), _) => named(benchmark, std::slice::from_ref(run), name),
        // Version 0.1.0 had one rubric and told nothing of it.
        (None, None) => Ok(Instructions::from(&benchmark.rubric())),
        (None, Some(_)) => {
            Err(AgreementError::LostRubric { dir: run.dir.clone(), judge: judge.label.clone() })
        }
    }
}

/// The instructions of a kept rubric; reasons stand where they stand by default.
fn kept_text(benchmark: &Benchmark, row: &RubricRow) -> Instructions {
    let default = Instructions::from(&benchmark.rubric());
    Instructions { name: row.name.clone().into(), template: row.template.clone().into(), ..default }
}
