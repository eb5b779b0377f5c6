//! Cases: a history of labelled segments and probes on it. Knows no tensors, network or prompt wording. Model-visible ([`History`],
//! [`Probe`]) and judge-only data ([`JudgeOnly`]) are separate types; prompts are built from the former only.

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

/// Judge-only fields by name: texts, lists of texts, numbers.
pub type Notes = serde_json::Map<String, serde_json::Value>;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Case {
    pub id: String,
    /// Grouping labels such as `type` -> `T1`.
    pub labels: BTreeMap<String, String>,
    pub history: History,
    /// Evidence of all probes. Labels spans; never shown to the model.
    pub evidence: Vec<Evidence>,
    pub stretches: Vec<Stretch>,
    pub probes: Vec<Probe>,
    pub judge: JudgeOnly,
    pub keep: Keep,
    /// Findings of the reader, reported by data checks only.
    pub flags: Vec<Finding>,
}

impl Case {
    pub fn forget_hidden_evidence(&mut self) {
        let shown: BTreeSet<usize> = self.history.segments.iter().map(|segment| segment.index).collect();
        let is_shown = |evidence: &Evidence| shown.contains(&evidence.place.segment);
        self.evidence.retain(is_shown);
        self.probes.iter_mut().for_each(|probe| probe.evidence.retain(is_shown));
    }

    pub fn evidence_of<'a>(&'a self, probe: &'a Probe) -> impl Iterator<Item = &'a Evidence> + Clone {
        self.evidence.iter().chain(&probe.evidence)
    }
}

/// Truncation required by the data.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Keep {
    /// The run's truncation applies.
    #[default]
    Chosen,
    /// The history holds only evidence: it fits or is refused.
    Evidence,
    /// Original indices by descending rank (retrieved history).
    Ranked(Vec<usize>),
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    /// In display order; after truncation a subset with original indices.
    pub segments: Vec<Segment>,
    pub query_time: Option<DateTime>,
}

impl History {
    pub fn select(&self, wanted: impl Fn(usize, &Segment) -> bool) -> History {
        let segments = self.segments.iter().enumerate().filter(|&(place, segment)| wanted(place, segment));
        let segments = segments.map(|(_, segment)| segment.clone()).collect();
        History { segments, query_time: self.query_time }
    }
}

/// A labelled part of a history: session, event or text. Segments tile the history.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// Names the template: `session`, `event`, `trajectory`.
    pub kind: String,
    /// Zero-based index in the file; unchanged by truncation.
    pub index: usize,
    pub time: Option<DateTime>,
    /// Turns of a session, fields of an event, or a single text.
    pub turns: Vec<Turn>,
}

impl Segment {
    pub fn label(&self) -> String {
        format!("{}[{}]", self.kind, self.index)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// Speaker or field name; empty for a bare text.
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
    pub segment: usize,
    /// `None`: the whole segment.
    pub turn: Option<usize>,
    /// Byte range in the turn's content. `None`: the whole turn.
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
    /// Suffix of a span label: empty, `.turn[2]` or `.turn[2][5..20]`.
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
    /// Not unique.
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
    /// Names the template of the user message, such as `question`.
    pub form: String,
    pub query: String,
    /// In addition to the case's evidence. Never shown to the model.
    pub evidence: Vec<Evidence>,
    /// Grouping facets in addition to the case's labels.
    pub facets: BTreeMap<String, String>,
    /// Answer options; local models also report the likelihood of each.
    pub options: Vec<String>,
    /// Prefix of the answer, after the generation prompt; may be empty.
    pub prefix: String,
    /// Values whose log-probabilities after the prompt are compared; not part of the prompt.
    pub contrast: Option<Contrasted>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contrasted {
    pub current: String,
    /// Oldest first.
    pub stale: Vec<String>,
    pub absent: Vec<String>,
}

/// Judge-only data. Never part of a prompt for the model under test.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JudgeOnly {
    pub notes: Notes,
    /// By probe id; may lack probes.
    pub of_probes: BTreeMap<String, Notes>,
}
