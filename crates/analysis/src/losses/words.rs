//! Sentences on where facts are lost, and caveats.

use super::count::{Count, Step, roles, waterfall};
use super::fact::Level;
use super::trace::{Stage, Trace};
use super::writing::Extraction;
use super::{ConditionLosses, Losses, SystemLosses};
use palimpsest_run::runs::condition::label;

pub fn in_words(runs: &[Losses]) -> Vec<String> {
    runs.iter().flat_map(|run| run.systems.iter().flat_map(|system| of_system(run, system))).collect()
}

fn of_system(run: &Losses, system: &SystemLosses) -> Vec<String> {
    let mut words: Vec<String> = system.conditions.iter().filter_map(of_condition).collect();
    let first = words.first().cloned();
    let written = extraction(system);
    // A nearly empty store comes first: all later numbers depend on it.
    match (first, is_poor(system)) {
        (Some(_), true) => words.insert(0, written),
        _ => words.push(written),
    }
    if let Some(why) = &run.no_result {
        words.push(format!("Verdicts are withheld: {why}."));
    }
    words
}

/// True if little was written, evidence no more than the rest; a system that keeps only evidence is not poor.
fn is_poor(system: &SystemLosses) -> bool {
    let traces =
        system.conditions.iter().filter_map(|condition| condition.traces.get(&Level::Source)).flatten();
    let written: Vec<bool> =
        traces.flat_map(|trace| trace.facts.iter().map(|fact| fact.writing.written.is_yes())).collect();
    let of_evidence = written.iter().filter(|written| **written).count();
    system.extraction.is_poor() && 2 * of_evidence < written.len().max(1)
}

fn of_condition(condition: &ConditionLosses) -> Option<String> {
    let traces: Vec<&Trace> = condition.traces.get(&Level::Source)?.iter().collect();
    let mut sentences = Vec::new();
    for role in roles(&traces) {
        let steps = waterfall(&traces, &role);
        let total = traces.iter().flat_map(|trace| &trace.facts).filter(|fact| fact.role == role).count();
        let measured = |step: &&Step| step.arrow.of > 0;
        let chain: Vec<String> = (steps.iter().filter(measured))
            .map(|step| format!("{} {}", step.stage.key(), counted(step)))
            .collect();
        let role = role.replace('_', " ");
        let mut parts = Vec::from_iter((!chain.is_empty()).then(|| chain.join(", ")));
        let lost = |step: &Step| step.arrow.of - step.arrow.count;
        let facts = steps.iter().filter(|step| step.stage != Stage::Right);
        if let Some(most) = facts.max_by_key(|step| (lost(step), std::cmp::Reverse(step.stage)))
            && lost(most) > 0
        {
            // An unknown outcome may be a loss.
            let unknown = steps.iter().any(|step| step.stage != Stage::Right && step.shown().0.unknown > 0);
            let known = if unknown { "known " } else { "" };
            let (lost, stage) = (lost(most), most.stage.key());
            parts.push(format!("the largest {known}loss is {lost}, before \u{201c}{stage}\u{201d}"));
        }
        let missing: Vec<&str> = (steps.iter())
            .filter(|step| step.arrow.of == 0 && step.arrow.unknown > 0)
            .map(|step| step.stage.key())
            .collect();
        if !missing.is_empty() {
            parts.push(format!("not measured: {}", missing.join(", ")));
        }
        sentences.push(format!("{role} ({total}): {}", parts.join("; ")));
    }
    (!sentences.is_empty()).then(|| format!("{}: {}.", label(&condition.name), sentences.join(". ")))
}

fn counted(step: &Step) -> String {
    let Count { count, unknown, .. } = step.arrow;
    let (shown, _) = step.shown();
    let (most, all) = (shown.most(), shown.all());
    match unknown {
        0 => format!("{count} of {all}"),
        _ if step.stage.is_of_sample() => format!("{count} of {all} ({unknown} not measured)"),
        _ => format!("{count} to {most} of {all} ({unknown} unknown)"),
    }
}

/// Amount written, with a warning if later losses are uninformative.
fn extraction(system: &SystemLosses) -> String {
    let Extraction { cases, sessions, fruitful, untold, unplaced, failed, memories, json, unparsed } =
        system.extraction;
    let name = &system.name;
    let mut said = format!("{name} was given {sessions} sessions of {cases} histories");
    let least = |unknown: bool| if unknown { "at least " } else { "" };
    said += &match system.extraction.is_untold() {
        true => " and reports neither events nor its store: its memories are not known".to_owned(),
        false => format!(
            ", wrote from {}{fruitful} of them, and holds {}{memories} memories",
            least(untold + unplaced > 0),
            least(untold > 0)
        ),
    };
    let untold = if system.extraction.is_untold() { 0 } else { untold };
    let (searches, changed, missing) =
        (system.failed_searches, system.changed_searches.count, system.missing);
    let caveats = [
        (untold, format!("it reports nothing on {untold} sessions")),
        (failed, format!("{failed} sessions failed")),
        (
            unparsed,
            format!("{unparsed} of {json} replies of its model that should have been JSON did not parse"),
        ),
        (searches, format!("{searches} searches failed")),
        (changed, format!("the store changed during {changed} searches")),
        (missing, format!("{missing} cases are not written yet")),
    ];
    for (_, caveat) in caveats.iter().filter(|(count, _)| *count > 0) {
        said += &format!("; {caveat}");
    }
    said += ".";
    if is_poor(system) {
        said += &format!(
            " Almost nothing was written: fewer than a quarter of the sessions left a memory. Small models extract badly; later losses \
             say nothing about {name}, only that the machinery works."
        );
    }
    said
}
