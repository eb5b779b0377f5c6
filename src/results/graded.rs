//! The graded probes of a run, for the tables that only its benchmark has.

use std::collections::HashMap;

use crate::benchmarks::{Graded, GradedMemory, HistoryCut, ShownSegments};
use crate::run::condition::Condition;
use crate::run::judged::Judged;
use crate::run::rows::{AnswerKey, AnswerRow};
use crate::run::store::RunFolder;

/// All planned probes under all conditions, by each judge and rubric that has given a verdict, or once without one; in the order of
/// judges, conditions and the plan. `name` is what the run is called.
pub fn graded<'a>(run: &'a RunFolder, name: &'a str) -> Vec<Graded<'a>> {
    let identity = &run.header.identity;
    let answers: HashMap<_, &AnswerRow> = run.answers.iter().map(|row| (row.key(), row)).collect();
    let judged = run.judged();
    let judges: Vec<Option<&Judged<'_>>> =
        if judged.is_empty() { vec![None] } else { judged.iter().map(Some).collect() };
    let mut all = Vec::new();
    for judge in judges {
        for condition in identity.conditions_or_plain() {
            for (case, probe) in run.plan.iter().flat_map(|case| case.probes.iter().map(move |p| (case, p))) {
                let key = AnswerKey::of(&case.case, &probe.id, &condition.name);
                let row = answers.get(&key);
                let answer = row.filter(|row| row.error.is_none() && row.answer.is_some());
                let verdict = judge.and_then(|judge| judge.get(key));
                let verdict = verdict.filter(|row| row.is_clean() && answer.is_some());
                all.push(Graded {
                    run: name,
                    model: &identity.model.name,
                    dataset: &identity.dataset.name,
                    judge: judge.map(|judge| judge.name.label.as_str()),
                    condition: condition.base(),
                    context: condition.context,
                    memory: memory_of(condition),
                    repetition: condition.repetition,
                    case: &case.case,
                    probe: &probe.id,
                    labels: &case.labels,
                    facets: &probe.facets,
                    answered: answer.is_some(),
                    answer: answer.and_then(|row| row.answer.as_deref()),
                    fits: row.is_none_or(|row| row.fits()),
                    shown: answer.map_or_else(ShownSegments::default, |row| ShownSegments {
                        context: row.context.as_deref(),
                        dropped: &row.dropped_sessions,
                        memories: row.memories.as_deref(),
                    }),
                    cut: answer.is_some_and(|row| row.reached_limit()),
                    correct: verdict.and_then(|row| row.correct),
                    score: verdict.and_then(|row| row.score),
                    choice: verdict.and_then(|row| row.choice.as_deref()),
                    history_cut: answer
                        .filter(|row| row.was_cut_to_fit())
                        .map(|row| HistoryCut { dropped: row.dropped_tokens, of: row.history_tokens }),
                });
            }
        }
    }
    all
}

/// The memory system of a condition: `memory-NAME`, `memory-NAME-k5`, `memory-NAME-perfect`.
fn memory_of(condition: &Condition) -> Option<GradedMemory<'_>> {
    let system = condition.memory.as_ref()?.system.as_str();
    let after = condition.base().split_once(system).map_or("", |(_, after)| after);
    Some(GradedMemory { system, shown: after.trim_start_matches('-') })
}
