//! A synthetic two-statement case, written by [`super::write_stale`].

use jiff::civil::DateTime;

use super::row::PROBES;
use super::terms::{NEW, OLD, SESSION, SPLIT, TYPES, judge_only, probe};
use crate::case::{Case, Evidence, History, Segment, Turn};

#[derive(Debug, Clone)]
pub struct Pair {
    pub id: String,
    /// Upstream attribute (T2) or the same one (T1).
    pub is_upstream: bool,
    pub old: String,
    pub new: String,
    pub explanation: String,
    pub sessions: Vec<(DateTime, Vec<Turn>)>,
    pub places: [usize; 2],
    /// SR, PR and IPA questions.
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
