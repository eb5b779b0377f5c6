//! Sentences for people: where facts are lost, and how much of that says anything.

use super::count::{Count, Step, roles, waterfall};
use super::fact::Level;
use super::trace::{Stage, Trace};
use super::writing::Extraction;
use super::{ConditionLosses, Losses, SystemLosses};
use crate::run::condition::label;

/// The paragraphs on some runs: on each system how much it wrote, then where its facts are lost under each condition.
pub fn in_words(runs: &[Losses]) -> Vec<String> {
    runs.iter().flat_map(|run| run.systems.iter().flat_map(|system| of_system(run, system))).collect()
}

fn of_system(run: &Losses, system: &SystemLosses) -> Vec<String> {
    let mut words: Vec<String> = system.conditions.iter().filter_map(of_condition).collect();
    let first = words.first().cloned();
    let written = extraction(system);
    // A store that holds almost nothing is said first: all that follows rests on it.
    match (first, is_poor(system)) {
        (Some(_), true) => words.insert(0, written),
        _ => words.push(written),
    }
    if let Some(why) = &run.no_result {
        words.push(format!("Right and wrong are left out: {why}."));
    }
    words
}

/// True if hardly anything was written, the evidence no more than the rest: a system that keeps evidence alone has few memories, and good ones.
fn is_poor(system: &SystemLosses) -> bool {
    let traces =
        system.conditions.iter().filter_map(|condition| condition.traces.get(&Level::Source)).flatten();
    let written: Vec<bool> =
        traces.flat_map(|trace| trace.facts.iter().map(|fact| fact.writing.written.is_yes())).collect();
    let of_evidence = written.iter().filter(|written| **written).count();
    system.extraction.is_poor() && 2 * of_evidence < written.len().max(1)
}

/// The chain of each role, and its largest loss.
fn of_condition(condition: &ConditionLosses) -> Option<String> {
    let traces: Vec<&Trace> = condition.traces.get(&Level::Source)?.iter().collect();
    let mut sentences = Vec::new();
    for role in roles(&traces) {
        let steps = waterfall(&traces, &role);
        let total = traces.iter().flat_map(|trace| &trace.facts).filter(|fact| fact.role == role).count();
        let measured = |step: &&Step| step.arrow.of > 0;
        let chain: Vec<String> = (steps.iter().filter(measured))
            .map(|step| format!("{} {}", step.stage.key(), counted(step.arrow)))
            .collect();
        if chain.is_empty() {
            continue;
        }
        let role = role.replace('_', " ");
        let mut sentence = format!("{role} ({total}): {}", chain.join(", "));
        let lost = |step: &Step| step.arrow.of - step.arrow.count;
        let facts = steps.iter().filter(|step| step.stage != Stage::Right);
        if let Some(most) = facts.max_by_key(|step| (lost(step), std::cmp::Reverse(step.stage)))
            && lost(most) > 0
        {
            sentence += &format!(
                "; the largest loss, {}, is before \u{201c}{}\u{201d}",
                lost(most),
                most.stage.key()
            );
        }
        let missing: Vec<&str> = (steps.iter())
            .filter(|step| step.arrow.of == 0 && step.arrow.unknown > 0)
            .map(|step| step.stage.key())
            .collect();
        if !missing.is_empty() {
            sentence += &format!("; not measured: {}", missing.join(", "));
        }
        sentences.push(sentence);
    }
    (!sentences.is_empty()).then(|| format!("{}: {}.", label(&condition.name), sentences.join(". ")))
}

fn counted(Count { count, of, .. }: Count) -> String {
    format!("{count} of {of}")
}

/// The amount that a system wrote, and a warning where later losses say nothing.
fn extraction(system: &SystemLosses) -> String {
    let Extraction { cases, sessions, fruitful, failed, memories, told, json, unparsed } = system.extraction;
    let name = &system.name;
    let mut said = format!("{name} was given {sessions} sessions of {cases} histories");
    said += &match told {
        0 => " and tells neither events nor its store, so that what it wrote is not known".to_owned(),
        _ => format!(", wrote from {fruitful} of them, and holds {memories} memories"),
    };
    if failed > 0 {
        said += &format!("; {failed} sessions failed");
    }
    if unparsed > 0 {
        said +=
            &format!("; {unparsed} of {json} replies of its model that should have been JSON did not parse");
    }
    if system.failed_searches > 0 {
        said += &format!("; {} searches failed", system.failed_searches);
    }
    if system.changed_searches > 0 {
        said += &format!("; the store changed during {} searches", system.changed_searches);
    }
    if system.missing > 0 {
        said += &format!("; {} cases are not written yet", system.missing);
    }
    said += ".";
    if is_poor(system) {
        said += &format!(
            " Almost nothing was written: fewer than a quarter of the sessions left a memory. Small models extract badly; what is lost \
             later says nothing of {name}, only that the machinery works."
        );
    }
    said
}
