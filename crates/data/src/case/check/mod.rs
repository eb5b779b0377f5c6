//! Model-free data checks for all benchmarks, applied by the [`Checker`]. Never rejects a case.

pub(crate) mod calendar;
pub mod near;
mod questions;
pub mod words;

use std::collections::{BTreeSet, HashMap};

use calendar::misfits;
use near::{ALIKE, Shingles, pairs};
use questions::Asked;
use rayon::prelude::*;
use words::{STRAY_TEXTS, content_words, listed_words, part_said};

use super::finding::{Check, Finding, Gold, quote};
use super::{Case, Probe, Segment};

static STRAY_TEXT: Check =
    Check::error("stray-text", "turns that are no text but a generator's word, an error message or nothing");
static TIME_ORDER: Check = Check::warning(
    "time-order",
    "segments whose time sorts before that of the one above them: by date, or because they have none",
);
static NO_TIME: Check = Check::warning("no-time", "segments without a time in a history that has times");
static DAY_WORDS: Check = Check::warning(
    "day-words",
    "words for days or months that do not fit the date beside them or the time of their text",
);
static GOLD_NOT_IN_EVIDENCE: Check = Check::warning(
    "gold-not-in-evidence",
    "questions whose evidence has fewer than half of the words of the gold",
);
static SAME_SEGMENT: Check = Check::warning(
    "same-segment",
    "segments that say what an earlier one of their history says, letter case and punctuation aside",
);
static LIKE_SEGMENT: Check =
    Check::warning("like-segment", "segments that say nearly what an earlier one of their history says");
static SAME_EVIDENCE: Check = Check::warning(
    "same-evidence",
    "evidence segments that are, or nearly are, the evidence of an earlier case",
);
static SAME_HISTORY: Check =
    Check::warning("same-history", "cases whose history and questions are those of an earlier case");

/// Error message written by a generator in place of a text.
const FAILURE: &str = "ERROR:";
/// Minimum share of a gold's content words found in its evidence.
const LEAST: f64 = 0.5;
/// Minimum segment length for near-duplicate checks; shorter ones match by chance.
const FEWEST_WORDS: usize = 12;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scope {
    /// Queries are data, not the benchmark's fixed instruction.
    pub queries: bool,
    /// Similar segments are copies, not similar by design.
    pub copies: bool,
    pub order: bool,
}

impl Scope {
    pub const ALL: Self = Scope { queries: true, copies: true, order: true };
}

/// (original index, shingles)
type Said = (usize, Shingles);

/// Applies the checks case by case. Keeps hashes, never the cases.
#[derive(Debug, Default)]
pub struct Checker {
    scope: Scope,
    findings: Vec<Finding>,
    asked: Asked,
    /// (case, segment index); `texts` has the shingles.
    evidence: Vec<(String, usize)>,
    texts: Vec<Vec<u64>>,
    /// First case per hash of history and questions.
    histories: HashMap<u64, String>,
    same_histories: Vec<Finding>,
}

impl Checker {
    pub fn new(scope: Scope) -> Self {
        Checker { scope, ..Checker::default() }
    }

    /// `golds` are in the order of the probes; there may be fewer.
    pub fn case(&mut self, case: &Case, mut golds: Vec<Gold>) {
        golds.resize_with(case.probes.len(), Gold::default);
        let golds = &golds;
        let Scope { queries, copies, order } = self.scope;
        self.findings.extend(stray(case));
        if order {
            self.findings.extend(times(case));
        }
        self.findings.extend(day_words(case, golds));
        if queries {
            self.findings.extend(questions::without_options(case, golds));
            self.findings.extend(questions::repeated(case, golds));
            self.asked.add(case);
        }
        let with_gold = case.probes.iter().zip(golds);
        self.findings.extend(with_gold.filter_map(|(probe, gold)| not_in_evidence(case, probe, gold)));
        let shingles = |segment: &Segment| {
            let turns = segment.turns.iter().map(|turn| turn.content.as_str());
            (segment.index, Shingles::of(&turns.collect::<Vec<_>>().join("\n")))
        };
        let said: Vec<Said> = case.history.segments.par_iter().map(shingles).collect();
        if copies {
            self.findings.extend(alike_within(case, &said));
        }
        self.remember(case, &said);
    }

    fn remember(&mut self, case: &Case, said: &[Said]) {
        let queries = case.probes.iter().map(|probe| Shingles::of(&probe.query).digest);
        let all: Vec<u64> = said.iter().map(|(_, text)| text.digest).chain(queries).collect();
        let whole = Shingles::of(&format!("{all:?}")).digest;
        if let Some(earlier) = self.histories.get(&whole) {
            let what = format!("history and questions are those of case `{earlier}`");
            self.same_histories.push(Finding::new(&SAME_HISTORY, &case.id, what));
            return;
        }
        self.histories.insert(whole, case.id.clone());
        if !self.scope.copies {
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

    pub fn finish(self) -> Vec<Finding> {
        let Checker { mut findings, asked, evidence, texts, same_histories, .. } = self;
        findings.extend(asked.alike());
        findings.extend(same_histories);
        for pair in pairs(&texts, ALIKE) {
            let ((case, index), (other, at)) = (&evidence[pair.first], &evidence[pair.second]);
            if case != other {
                let percent = 100.0 * pair.similarity;
                let what =
                    format!("it has {percent:.0}% of its word pairs from segment {index} of case `{case}`");
                findings.push(Finding::new(&SAME_EVIDENCE, other, what).at([*at]));
            }
        }
        findings
    }
}

fn stray(case: &Case) -> Vec<Finding> {
    let mut found = Vec::new();
    for segment in &case.history.segments {
        for (at, turn) in segment.turns.iter().enumerate().filter(|(_, turn)| is_stray(&turn.content)) {
            let what = format!("turn {at} is {}", quote(turn.content.trim()));
            found.push(Finding::new(&STRAY_TEXT, &case.id, what).at([segment.index]));
        }
    }
    found
}

/// Nothing, or what a failed generator leaves in place of a text.
pub fn is_stray(text: &str) -> bool {
    let bare = text.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
    // Symbols (`?`, an emoji) can be an answer; an empty text cannot.
    text.trim().is_empty() || STRAY_TEXTS.contains(&bare.as_str()) || text.trim_start().starts_with(FAILURE)
}

/// Segments out of chronological order, or without a time among dated ones.
fn times(case: &Case) -> Vec<Finding> {
    let segments = &case.history.segments;
    let mut found = Vec::new();
    for pair in segments.windows(2) {
        let [above, segment] = pair else { continue };
        let kind = &segment.kind;
        let what = match (above.time, segment.time) {
            (Some(above), Some(time)) if time < above => format!("{kind} of {time} below one of {above}"),
            (Some(above), None) => format!("{kind} without a time below one of {above}"),
            _ => continue,
        };
        found.push(Finding::new(&TIME_ORDER, &case.id, what).at([segment.index]));
    }
    if segments.iter().any(|segment| segment.time.is_some()) {
        let undated = segments.iter().filter(|segment| segment.time.is_none());
        found.extend(undated.map(|segment| {
            Finding::new(&NO_TIME, &case.id, format!("{} without a time", segment.kind)).at([segment.index])
        }));
    }
    found
}

fn day_words(case: &Case, golds: &[Gold]) -> Vec<Finding> {
    let of_segment = |segment: &Segment| {
        let said = segment.turns.iter().flat_map(|turn| misfits(&turn.content, segment.time));
        let said: BTreeSet<String> = said.collect();
        let index = segment.index;
        said.into_iter().map(move |what| Finding::new(&DAY_WORDS, &case.id, what).at([index]))
    };
    let mut found: Vec<Finding> = case.history.segments.par_iter().flat_map_iter(of_segment).collect();
    for (probe, gold) in case.probes.iter().zip(golds) {
        let of_query = misfits(&probe.query, case.history.query_time);
        let of_gold = gold.texts.iter().flat_map(|text| misfits(text, None));
        let said: BTreeSet<String> = of_query.into_iter().chain(of_gold).collect();
        found.extend(said.into_iter().map(|what| Finding::new(&DAY_WORDS, &case.id, what).of([&probe.id])));
    }
    found
}

/// Golds whose words the evidence lacks. Words of the question do not count.
fn not_in_evidence(case: &Case, probe: &Probe, gold: &Gold) -> Option<Finding> {
    if !gold.quoted {
        return None;
    }
    let cited: BTreeSet<usize> = case.evidence_of(probe).map(|evidence| evidence.place.segment).collect();
    let segments = case.history.segments.iter().filter(|segment| cited.contains(&segment.index));
    let said: BTreeSet<String> = segments.flat_map(words_and_date).collect();
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
    Some(Finding::new(&GOLD_NOT_IN_EVIDENCE, &case.id, what).at(cited).of([&probe.id]))
}

fn words_and_date(segment: &Segment) -> BTreeSet<String> {
    let date = segment.time.map(|time| time.strftime("%A %B %-d %d %m %Y %H %M %S %-H").to_string());
    let turns = segment.turns.iter().map(|turn| turn.content.clone());
    date.into_iter().chain(turns).flat_map(|text| content_words(&text)).collect()
}

fn alike_within(case: &Case, said: &[Said]) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut first: HashMap<u64, usize> = HashMap::new();
    let (mut own, mut sets) = (Vec::new(), Vec::new());
    for (index, text) in said.iter().filter(|(_, text)| text.words >= FEWEST_WORDS) {
        if let Some(earlier) = first.get(&text.digest) {
            let what = format!("it says what segment {earlier} says");
            found.push(Finding::new(&SAME_SEGMENT, &case.id, what).at([*index, *earlier]));
            continue;
        }
        first.insert(text.digest, *index);
        own.push(*index);
        sets.push(text.pairs.clone());
    }
    found.extend(pairs(&sets, ALIKE).into_iter().map(|pair| {
        let (a, b) = (own[pair.first], own[pair.second]);
        let what = format!("it has {:.0}% of its word pairs from segment {a}", 100.0 * pair.similarity);
        Finding::new(&LIKE_SEGMENT, &case.id, what).at([b, a])
    }));
    found
}
