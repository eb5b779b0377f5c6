//! Golds by themselves and beside their evidence.

use std::collections::BTreeSet;

use super::words::{content_words, listed_words, part_said};
use crate::data::finding::{Check, Finding, Gold, quote};
use crate::data::{Case, Probe, Segment};

pub(super) static GOLD_NOT_IN_EVIDENCE: Check = Check::warning(
    "gold-not-in-evidence",
    "questions whose evidence has fewer than half of the words of the gold",
);

/// The least part of a gold's content words that its evidence has.
const LEAST: f64 = 0.5;

/// Findings on the golds of a case.
pub(super) fn all(case: &Case, golds: &[Gold]) -> Vec<Finding> {
    let with_gold = case.probes.iter().zip(golds);
    with_gold.filter_map(|(probe, gold)| not_in_evidence(case, probe, gold)).collect()
}

/// Words that the question has itself prove nothing and are left out.
fn not_in_evidence(case: &Case, probe: &Probe, gold: &Gold) -> Option<Finding> {
    if !gold.quoted {
        return None;
    }
    let cited: BTreeSet<usize> = case.evidence_of(probe).map(|evidence| evidence.place.segment).collect();
    let segments = case.history.segments.iter().filter(|segment| cited.contains(&segment.index));
    let said: BTreeSet<String> = segments.flat_map(of_segment).collect();
    if said.is_empty() {
        return None;
    }
    let asked = content_words(&probe.query);
    let mut best: Option<(f64, &String, BTreeSet<String>)> = None;
    for text in &gold.texts {
        let words: BTreeSet<String> = content_words(text).difference(&asked).cloned().collect();
        let part = part_said(&words, &said);
        if best.as_ref().is_none_or(|(most, ..)| part > *most) {
            best = Some((part, text, words.difference(&said).cloned().collect()));
        }
    }
    let (_, text, missing) = best.filter(|(part, ..)| *part < LEAST)?;
    let what = format!("the evidence of {} does not have: {}", quote(text), listed_words(&missing));
    Some(Finding::new(&GOLD_NOT_IN_EVIDENCE, &case.id, what).at(cited).of([probe.id.as_str()]))
}

fn of_segment(segment: &Segment) -> BTreeSet<String> {
    let date = segment.time.map(|time| time.strftime("%A %B %-d %d %m %Y %H %M %S %-H").to_string());
    let turns = segment.turns.iter().map(|turn| turn.content.clone());
    date.into_iter().chain(turns).flat_map(|text| content_words(&text)).collect()
}
