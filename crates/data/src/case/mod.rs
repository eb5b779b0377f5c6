//! Cases: a history of labelled segments, and probes on it.
//!
//! Owns the shape of a case. [`crate::benchmarks`] makes cases of files; the runner asks their probes.
//! Knows no tensors, no network and no prompt wording. What the model may see ([`History`], [`Probe`]) and what only
//! a judge may see ([`JudgeOnly`]) are different types; prompts are built from the former alone.
//!
//! - [`truncate`]: the ways in which a history that does not fit a budget is cut.
//! - [`lengths`]: how long a data set's contexts are.
//! - [`draw`]: draws that stay the same for ever.
//! - [`finding`], [`check`]: what is odd about data that can be used all the same.

pub mod check;
pub mod draw;
pub mod finding;
pub mod labels;
pub mod length_table;
pub mod lengths;
pub mod truncate;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

use finding::Finding;
use jiff::civil::DateTime;
use serde::{Deserialize, Serialize};

/// Notes that only a judge sees, by name: texts, lists of texts, numbers.
pub type Notes = serde_json::Map<String, serde_json::Value>;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Case {
    pub id: String,
    /// Labels that the case is grouped by, for example `type` -> `T1`.
    pub labels: BTreeMap<String, String>,
    pub history: History,
    /// The evidence of all of the case's probes. Labels for spans; never shown to the model.
    pub evidence: Vec<Evidence>,
    pub stretches: Vec<Stretch>,
    pub probes: Vec<Probe>,
    pub judge: JudgeOnly,
    pub keep: Keep,
    /// Oddities that its reader found and kept: told where data is checked, part of no prompt and no count.
    pub flags: Vec<Finding>,
}

impl Case {
    /// Drops evidence of segments that the history does not hold.
    pub fn forget_hidden_evidence(&mut self) {
        let shown: BTreeSet<usize> = self.history.segments.iter().map(|segment| segment.index).collect();
        let is_shown = |evidence: &Evidence| shown.contains(&evidence.place.segment);
        self.evidence.retain(is_shown);
        self.probes.iter_mut().for_each(|probe| probe.evidence.retain(is_shown));
    }

    /// All evidence of one of the case's probes: the whole case's, then its own.
    pub fn evidence_of<'a>(&'a self, probe: &'a Probe) -> impl Iterator<Item = &'a Evidence> + Clone {
        self.evidence.iter().chain(&probe.evidence)
    }
}

/// Segments that truncation keeps, where the run does not choose.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Keep {
    /// It lies with the run: a whole history.
    #[default]
    Chosen,
    /// The evidence, which is all that the history holds: it fits or is refused.
    Evidence,
    /// The first of these original indices: the ranking of a retrieved history.
    Ranked(Vec<usize>),
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    /// In the order in which they are shown. After truncation a subset, each with its original index.
    pub segments: Vec<Segment>,
    /// When the question is asked, where the file says so.
    pub query_time: Option<DateTime>,
}

impl History {
    pub fn select(&self, wanted: impl Fn(usize, &Segment) -> bool) -> History {
        let segments = self.segments.iter().enumerate().filter(|&(place, segment)| wanted(place, segment));
        let segments = segments.map(|(_, segment)| segment.clone()).collect();
        History { segments, query_time: self.query_time }
    }
}

/// A labelled piece of a history: a session, an event, a text. Segments tile the history.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// Kind, one word: `session`, `event`, `trajectory`. Names the template that renders it.
    pub kind: String,
    /// Zero-based position in the file's history; kept when neighbours are dropped.
    pub index: usize,
    pub time: Option<DateTime>,
    /// The turns of a session, the fields of an event, or one text; in order.
    pub turns: Vec<Turn>,
}

impl Segment {
    pub fn label(&self) -> String {
        format!("{}[{}]", self.kind, self.index)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// Speaker (`user`, `assistant`, anybody), or name of the field; empty for a text that is nobody's.
    pub role: String,
    pub content: String,
}

impl Turn {
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Turn { role: role.into(), content: content.into() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Location {
    /// The segment's original index ([`Segment::index`]).
    pub segment: usize,
    /// Which of its turns; absent for the whole segment.
    pub turn: Option<usize>,
    /// Which bytes of the turn's content; absent for the whole turn. Without a turn it has no meaning.
    pub bytes: Option<Range<usize>>,
}

impl Location {
    pub fn segment(index: usize) -> Self {
        Location { segment: index, turn: None, bytes: None }
    }

    pub fn is_segment(&self) -> bool {
        self.turn.is_none()
    }
}

impl fmt::Display for Location {
    /// Suffix of a segment's label in a span's: nothing, `.turn[2]`, or `.turn[2][5..20]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.turn, &self.bytes) {
            (Some(turn), Some(bytes)) => write!(f, ".turn[{turn}][{}..{}]", bytes.start, bytes.end),
            (Some(turn), None) => write!(f, ".turn[{turn}]"),
            (None, _) => Ok(()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// Role, one word. Several pieces may have the same.
    pub role: String,
    pub place: Location,
}

impl Evidence {
    pub fn segment(role: impl Into<String>, index: usize) -> Self {
        Evidence { role: role.into(), place: Location::segment(index) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch {
    pub label: String,
    pub first: usize,
    pub last: usize,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Probe {
    pub id: String,
    /// Framing of the query: names the template of the user message, for example `question`.
    pub form: String,
    pub query: String,
    /// Its own evidence, beside that of the whole case. Never shown to the model.
    pub evidence: Vec<Evidence>,
    /// Facets that it is grouped by, beside the case's labels.
    pub facets: BTreeMap<String, String>,
    /// Answers of which one is to be given, where there are such: a model on this machine is also asked how likely each of them is.
    pub options: Vec<String>,
    /// The beginning of the answer, put behind the generation prompt; empty where the model begins it.
    pub prefix: String,
    /// Values whose log-probabilities after the prompt are held against each other; no part of the prompt.
    pub contrast: Option<Contrasted>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contrasted {
    pub current: String,
    /// Those that held before, oldest first.
    pub stale: Vec<String>,
    pub absent: Vec<String>,
}

/// Notes on a case that only a judge sees. No prompt for the model under test is built from it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JudgeOnly {
    pub notes: Notes,
    /// Of each probe, by its id: references and the like. Probes that have none may be missing.
    pub of_probes: BTreeMap<String, Notes>,
}
