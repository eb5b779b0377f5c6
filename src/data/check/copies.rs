//! Segments that stand twice: in one history, and evidence or whole histories in several cases.

use std::collections::{BTreeSet, HashMap};

use rayon::prelude::*;

use super::near::{ALIKE, Shingles, pairs};
use crate::data::finding::{Check, Finding};
use crate::data::{Case, Segment};

pub(super) static SAME_SEGMENT: Check = Check::warning(
    "same-segment",
    "segments that say what an earlier one of their history says, letter case and punctuation aside",
);
pub(super) static LIKE_SEGMENT: Check =
    Check::warning("like-segment", "segments that say nearly what an earlier one of their history says");
pub(super) static SAME_EVIDENCE: Check = Check::warning(
    "same-evidence",
    "evidence segments that are, or nearly are, the evidence of an earlier case",
);
pub(super) static SAME_HISTORY: Check =
    Check::warning("same-history", "cases whose history and questions are those of an earlier case");

/// Fewest words of a segment that is held against others: short ones are alike by chance.
const FEWEST_WORDS: usize = 12;

/// Shingles of a segment, with its original index.
pub(super) type Said = (usize, Shingles);

/// Shingles of each segment of a case.
pub(super) fn said(case: &Case) -> Vec<Said> {
    let said = |segment: &Segment| {
        let turns = segment.turns.iter().map(|turn| turn.content.as_str());
        (segment.index, Shingles::of(&turns.collect::<Vec<_>>().join("\n")))
    };
    case.history.segments.par_iter().map(said).collect()
}

/// Segments of one history that are alike.
pub(super) fn within(case: &Case, said: &[Said]) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut first: HashMap<u64, usize> = HashMap::new();
    let (mut own, mut sets) = (Vec::new(), Vec::new());
    for (index, text) in said.iter().filter(|(_, text)| text.words >= FEWEST_WORDS) {
        match first.get(&text.digest) {
            Some(earlier) => {
                let what = format!("it says what segment {earlier} says");
                found.push(Finding::new(&SAME_SEGMENT, &case.id, what).at([*index, *earlier]));
            }
            None => {
                first.insert(text.digest, *index);
                own.push(*index);
                sets.push(text.pairs.clone());
            }
        }
    }
    for pair in pairs(&sets, ALIKE) {
        let (Some(a), Some(b)) = (own.get(pair.first), own.get(pair.second)) else { continue };
        let what = format!("it has {:.0}% of its word pairs from segment {a}", 100.0 * pair.similarity);
        found.push(Finding::new(&LIKE_SEGMENT, &case.id, what).at([*b, *a]));
    }
    found
}

/// The evidence and the histories of all cases so far, as hashes.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Of each segment of evidence its case and its index.
    evidence: Vec<(String, usize)>,
    texts: Vec<Vec<u64>>,
    /// The first case of each history with its questions.
    histories: HashMap<u64, String>,
    found: Vec<Finding>,
}

impl Seen {
    /// Adds a case, whose segments say `said`; its evidence too, where that is not alike by design.
    pub(super) fn add(&mut self, case: &Case, said: &[Said], evidence: bool) {
        let queries = case.probes.iter().map(|probe| Shingles::of(&probe.query).digest);
        let all: Vec<u64> = said.iter().map(|(_, text)| text.digest).chain(queries).collect();
        let whole = Shingles::of(&format!("{all:?}")).digest;
        match self.histories.get(&whole) {
            // Its evidence is the same, of course.
            Some(earlier) => {
                let what = format!("history and questions are those of case `{earlier}`");
                self.found.push(Finding::new(&SAME_HISTORY, &case.id, what));
                return;
            }
            None => drop(self.histories.insert(whole, case.id.clone())),
        }
        if !evidence {
            return;
        }
        let all = case.evidence.iter().chain(case.probes.iter().flat_map(|probe| &probe.evidence));
        let cited: BTreeSet<usize> = all.map(|evidence| evidence.place.segment).collect();
        for (index, text) in said {
            if cited.contains(index) && text.words >= FEWEST_WORDS {
                self.evidence.push((case.id.clone(), *index));
                self.texts.push(text.pairs.clone());
            }
        }
    }

    /// Findings on texts that stand in several cases.
    pub(super) fn across(self) -> Vec<Finding> {
        let Seen { evidence, texts, mut found, .. } = self;
        for pair in pairs(&texts, ALIKE) {
            let (Some((case, index)), Some((other, at))) =
                (evidence.get(pair.first), evidence.get(pair.second))
            else {
                continue;
            };
            if case != other {
                let of_both = 100.0 * pair.similarity;
                let what =
                    format!("it has {of_both:.0}% of its word pairs from segment {index} of case `{case}`");
                found.push(Finding::new(&SAME_EVIDENCE, other, what).at([*at]));
            }
        }
        found
    }
}
