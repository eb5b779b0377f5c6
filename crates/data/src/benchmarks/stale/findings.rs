//! Checks whether probes and the new statement leak the answer, and whether facts are stated in their own session only.

use std::collections::BTreeSet;

use serde_json::Value;

use super::row::PROBES;
use super::terms::{NEW, OLD};
use crate::case::check::words::{change_words, content_words, is_of_time, listed_words, part_said};
use crate::case::finding::{Check, Finding};
use crate::case::{Case, Segment};

static PREMISE_TELLS_NEW: Check = Check::warning(
    "premise-tells-new",
    "premise questions (dim2) with words of the new state that the old one does not have",
);
static REQUEST_TELLS_STATE: Check =
    Check::warning("request-tells-state", "requests (dim3) with words of the old or the new state");
static MARKED_UPDATE: Check = Check::warning("marked-update", "new states with words of negation or change");
static SHARED_WORDS: Check = Check::warning("shared-words", "pairs of states that share words");
static FACT_NOT_TOLD: Check =
    Check::warning("fact-not-told", "facts of which no user turn of their session has 60% of the words");
static FACT_TOLD_AGAIN: Check =
    Check::warning("fact-told-again", "facts of which a user turn of another session has 60% of the words");

/// Minimum share of a fact's content words in a turn that states it.
pub const TOLD: f64 = 0.6;
/// Minimum content words to search for a fact elsewhere; shorter ones match anywhere.
pub const FEWEST: usize = 3;
const USER: &str = "user";

/// Maximum share of other sessions with a word for it to count as revealing.
const RARE: f64 = 0.1;

struct Said {
    index: usize,
    all: BTreeSet<String>,
    by_turn: Vec<BTreeSet<String>>,
}

impl Said {
    fn of(segment: &Segment) -> Self {
        let (mut all, mut by_turn) = (BTreeSet::new(), Vec::new());
        for turn in &segment.turns {
            let words = content_words(&turn.content);
            all.extend(words.iter().cloned());
            if turn.role == USER {
                by_turn.push(words);
            }
        }
        Said { index: segment.index, all, by_turn }
    }

    /// Maximum share of the fact's words in one user turn.
    fn told(&self, fact: &BTreeSet<String>) -> f64 {
        self.by_turn.iter().map(|turn| part_said(fact, turn)).fold(0.0, f64::max)
    }
}

pub(super) fn findings(case: &Case) -> Vec<Finding> {
    let note = |name: &str| case.judge.notes.get(name).and_then(Value::as_str).unwrap_or_default();
    let (old, new) = (content_words(note(OLD)), content_words(note(NEW)));
    let said: Vec<Said> = case.history.segments.iter().map(Said::of).collect();
    let cited: BTreeSet<usize> = case.evidence.iter().map(|evidence| evidence.place.segment).collect();
    let others: Vec<&Said> = said.iter().filter(|said| !cited.contains(&said.index)).collect();
    let is_rare = |word: &str| {
        let using = others.iter().filter(|said| said.all.contains(word)).count();
        !is_of_time(word) && using as f64 <= RARE * others.len() as f64
    };
    let rare = |words: BTreeSet<&String>| -> BTreeSet<String> {
        words.into_iter().filter(|word| is_rare(word)).cloned().collect()
    };
    let words_of = |id: &str| {
        let probe = case.probes.iter().find(|probe| probe.id == id);
        probe.map(|probe| content_words(&probe.query)).unwrap_or_default()
    };
    let [_, (_, premise, _), (_, request, _)] = PROBES;
    let of_new_alone: BTreeSet<String> = new.difference(&old).cloned().collect();
    let of_either: BTreeSet<String> = old.union(&new).cloned().collect();
    let mut found = Vec::new();
    for (check, id, words) in
        [(&PREMISE_TELLS_NEW, premise, &of_new_alone), (&REQUEST_TELLS_STATE, request, &of_either)]
    {
        let given = rare(words_of(id).intersection(words).collect());
        if !given.is_empty() {
            let what = format!("the query says: {}", listed_words(&given));
            found.push(Finding::new(check, &case.id, what).of([id]));
        }
    }
    let marks = change_words(note(NEW));
    if !marks.is_empty() {
        found.push(Finding::new(
            &MARKED_UPDATE,
            &case.id,
            format!("the new state says: {}", marks.join(", ")),
        ));
    }
    let shared = rare(old.intersection(&new).collect());
    if !shared.is_empty() {
        let what = format!("both states say: {}", listed_words(&shared));
        found.push(Finding::new(&SHARED_WORDS, &case.id, what));
    }
    for (role, fact) in [(OLD, &old), (NEW, &new)] {
        found.extend(places(case, role, fact, &said));
    }
    found
}

/// Facts missing from their own session, or stated in another.
fn places(case: &Case, role: &str, fact: &BTreeSet<String>, said: &[Said]) -> Vec<Finding> {
    let Some(own) = case.evidence.iter().find(|evidence| evidence.role == role) else { return Vec::new() };
    let own = own.place.segment;
    let mut found = Vec::new();
    for session in said {
        let part = session.told(fact);
        let percent = 100.0 * part;
        if session.index == own && part < TOLD {
            let what = format!(
                "a user turn of the {role} session has {percent:.0}% of the words of the {role} state"
            );
            found.push(Finding::new(&FACT_NOT_TOLD, &case.id, what).at([own]));
        }
        if session.index != own && part >= TOLD && fact.len() >= FEWEST {
            let what =
                format!("session {} has {percent:.0}% of the words of the {role} state", session.index);
            found.push(Finding::new(&FACT_TOLD_AGAIN, &case.id, what).at([session.index]));
        }
    }
    found
}
