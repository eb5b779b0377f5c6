//! The graded probes of a run, for the tables that only its benchmark has.

use std::collections::HashMap;

use crate::benchmarks::Graded;
use crate::run::rows::{AnswerRow, VerdictRow};
use crate::run::store::RunFolder;

/// All planned probes under all conditions, by each judge that has given a verdict, or once without one; in the order of judges,
/// conditions and the plan. `name` is what the run is called. Verdicts of a judge are those by its last rubric.
pub fn graded<'a>(run: &'a RunFolder, name: &'a str) -> Vec<Graded<'a>> {
    let identity = &run.header.identity;
    let answers: HashMap<(&str, &str, &str), &AnswerRow> =
        run.answers.iter().map(|row| ((&*row.case, &*row.probe, &*row.condition), row)).collect();
    let mut judges: Vec<(Option<&str>, Option<&str>)> = Vec::new();
    for (judge, rubric) in run.judges() {
        judges.retain(|(known, _)| *known != Some(judge));
        judges.push((Some(judge), rubric));
    }
    if judges.is_empty() {
        judges.push((None, None));
    }
    let mut all = Vec::new();
    for (judge, rubric) in judges {
        let of_judge = |row: &&VerdictRow| Some(&*row.judge) == judge && row.rubric.as_deref() == rubric;
        let verdicts: HashMap<(&str, &str, &str), &VerdictRow> = (run.verdicts.iter().filter(of_judge))
            .map(|row| ((&*row.case, &*row.probe, &*row.condition), row))
            .collect();
        for condition in identity.conditions_or_plain() {
            for (case, probe) in run.plan.iter().flat_map(|case| case.probes.iter().map(move |p| (case, p))) {
                let key = (&*case.case, &*probe.id, &*condition.name);
                let answer = answers.get(&key).filter(|row| row.error.is_none() && row.answer.is_some());
                let verdict = verdicts.get(&key).filter(|row| row.is_clean() && answer.is_some());
                all.push(Graded {
                    run: name,
                    model: &identity.model.name,
                    dataset: &identity.dataset.name,
                    judge,
                    condition: condition.base(),
                    repetition: condition.repetition,
                    case: &case.case,
                    probe: &probe.id,
                    labels: &case.labels,
                    facets: &probe.facets,
                    notes: &probe.judge,
                    answered: answer.is_some(),
                    answer: answer.and_then(|row| row.answer.as_deref()),
                    correct: verdict.and_then(|row| row.correct),
                    score: verdict.and_then(|row| row.score),
                    choice: verdict.and_then(|row| row.choice.as_deref()),
                    probability: verdict.and_then(|row| row.probability),
                });
            }
        }
    }
    all
}
