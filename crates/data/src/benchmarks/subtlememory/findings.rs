//! Checks for facts without a session of their own, or told by none.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::terms::{CORRECT_ANSWERS, FACTS, INSTANCE};
use crate::case::check::words::{content_words, part_said};
use crate::case::finding::{Check, Finding, Gold, quote};
use crate::case::{Case, Notes, Probe};

static FACTS_AND_SESSIONS: Check =
    Check::warning("facts-and-sessions", "sets that have another number of facts than of target sessions");
static FACT_NOT_TOLD: Check =
    Check::warning("fact-not-told", "facts of which no target session of their set has half of the words");

/// Minimum share of a fact's content words in its session; facts are paraphrased.
const TOLD: f64 = 0.5;

pub(super) fn golds(case: &Case) -> Vec<Gold> {
    let gold = |probe: &Probe| {
        let notes = case.judge.of_probes.get(&probe.id);
        Gold { texts: notes.map_or_else(Vec::new, |notes| texts(notes, CORRECT_ANSWERS)), ..Gold::default() }
    };
    case.probes.iter().map(gold).collect()
}

fn texts(notes: &Notes, name: &str) -> Vec<String> {
    let items = notes.get(name).and_then(Value::as_array).into_iter().flatten();
    items.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// One set at a time, reported under its first question.
pub(super) fn findings(case: &Case) -> Vec<Finding> {
    let mut sets: BTreeMap<&str, Vec<&Probe>> = BTreeMap::new();
    for probe in &case.probes {
        let set = probe.facets.get(INSTANCE).map_or(probe.id.as_str(), String::as_str);
        sets.entry(set).or_default().push(probe);
    }
    let mut found = Vec::new();
    for (set, probes) in sets {
        let Some(first) = probes.first() else { continue };
        let targets: BTreeSet<usize> = first.evidence.iter().map(|evidence| evidence.place.segment).collect();
        let facts = case.judge.of_probes.get(&first.id).map_or_else(Vec::new, |notes| texts(notes, FACTS));
        let mut find = |check: &'static Check, what: String| {
            let ids = probes.iter().map(|probe| probe.id.as_str());
            found.push(Finding::new(check, &case.id, what).at(targets.iter().copied()).of(ids));
        };
        if facts.len() != targets.len() {
            let what = format!("{set} has {} facts and {} target sessions", facts.len(), targets.len());
            find(&FACTS_AND_SESSIONS, what);
        }
        let said: Vec<BTreeSet<String>> = (case.history.segments.iter())
            .filter(|segment| targets.contains(&segment.index))
            .map(|segment| segment.turns.iter().flat_map(|turn| content_words(&turn.content)).collect())
            .collect();
        for fact in facts {
            let words = content_words(&fact);
            let most = said.iter().map(|said| part_said(&words, said)).fold(0.0, f64::max);
            if most < TOLD {
                let what = format!(
                    "the nearest target session of {set} has {:.0}% of {}",
                    100.0 * most,
                    quote(&fact)
                );
                find(&FACT_NOT_TOLD, what);
            }
        }
    }
    found
}
