//! A case of two statements at set places, made elsewhere: what [`super::write_stale`] writes as a row.

use jiff::civil::DateTime;

use super::row::PROBES;
use super::terms::{NEW, OLD, SESSION, SPLIT, TYPES, judge_only, probe};
use crate::case::{Case, Evidence, History, Segment, Turn};

/// An update and the history that it stands in.
#[derive(Debug, Clone)]
pub struct Pair {
    pub id: String,
    /// True if the update is of an upstream attribute (T2), false if it is of the same (T1).
    pub is_upstream: bool,
    pub old: String,
    pub new: String,
    pub explanation: String,
    pub sessions: Vec<(DateTime, Vec<Turn>)>,
    pub places: [usize; 2],
    /// The questions: whether the old state holds, one that takes it for granted, and one that needs the state.
    pub questions: [String; 3],
    pub query_time: DateTime,
}

impl Pair {
    pub fn case(self) -> Case {
        let segments = self.sessions.into_iter().enumerate().map(|(index, (time, turns))| Segment {
            kind: SESSION.to_owned(),
            index,
            time: Some(time),
            turns,
        });
        let probes = PROBES.iter().zip(self.questions).map(|((_, id, form), query)| probe(id, form, query));
        let [old, new] = self.places;
        Case {
            id: self.id,
            labels: [(SPLIT.to_owned(), TYPES[usize::from(self.is_upstream)].to_owned())].into(),
            history: History { segments: segments.collect(), query_time: Some(self.query_time) },
            evidence: vec![Evidence::segment(OLD, old), Evidence::segment(NEW, new)],
            probes: probes.collect(),
            judge: judge_only(self.old, self.new, self.explanation),
            ..Case::default()
        }
    }
}
