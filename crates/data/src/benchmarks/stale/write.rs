//! Writes cases as STALE rows; inverse of [`super::read_stale`]. Makes cases of two statements.

use std::io::{self, Write};

use jiff::civil::DateTime;

use super::row::{LABELS, PROBES, Row, shown};
use super::terms::{EXPLANATION, NEW, OLD, SESSION, SPLIT, TIME_GAP, TYPES, judge_only, probe};
use crate::case::{Case, Evidence, History, Segment, Turn};

#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("case {id:?} is no STALE row: {what}")]
    NotARow { id: String, what: String },
    #[error("writing the rows failed")]
    Io(#[from] io::Error),
}

/// One row per line, fields in the published order. Session indices become positions: a truncated history reads back as whole.
pub fn write_stale<'a>(
    out: &mut impl Write,
    cases: impl IntoIterator<Item = &'a Case>,
) -> Result<(), WriteError> {
    out.write_all(b"[")?;
    for (i, case) in cases.into_iter().enumerate() {
        out.write_all(if i == 0 { b"\n" } else { b",\n" })?;
        let row = row(case).map_err(|what| WriteError::NotARow { id: case.id.clone(), what })?;
        serde_json::to_writer(&mut *out, &row).map_err(io::Error::from)?;
    }
    out.write_all(b"\n]\n")?;
    Ok(out.flush()?)
}

fn row(case: &Case) -> Result<Row, String> {
    let segments = &case.history.segments;
    let position = |role: &str| {
        let session = case.evidence.iter().find(|evidence| evidence.role == role)?.place.segment;
        segments.iter().position(|s| s.index == session)
    };
    let position = |role: &str| position(role).ok_or_else(|| format!("its history lacks the {role} session"));
    let note = |name: &str| {
        let text = case.judge.notes.get(name).and_then(serde_json::Value::as_str);
        text.map(str::to_owned).ok_or_else(|| format!("its judge-only notes lack `{name}`"))
    };
    let time = |session: &Segment| {
        session.time.map(shown).ok_or_else(|| format!("session {} has no time", session.index))
    };
    let query = |(field, id, _): (&str, &str, &str)| {
        let probe = case.probes.iter().find(|probe| probe.id == id);
        let query = probe.map(|probe| (field.to_owned(), probe.query.clone()));
        query.ok_or_else(|| format!("it has no probe {id}"))
    };
    let (probes, evidence) = (case.probes.len(), case.evidence.len());
    if probes != PROBES.len() || evidence != 2 {
        return Err(format!("it has {probes} probes and {evidence} evidence sessions, a row has 3 and 2"));
    }
    let label = |name: &str| Some((name.to_owned(), case.labels.get(name)?.as_str().into()));
    Ok(Row {
        uid: case.id.clone(),
        r#type: case.labels.get(SPLIT).cloned().ok_or_else(|| format!("it has no label `{SPLIT}`"))?,
        old: note(OLD)?,
        new: note(NEW)?,
        explanation: note(EXPLANATION)?,
        relevant_session_index: [position(OLD)?, position(NEW)?],
        haystack_session: segments.iter().map(|session| session.turns.clone()).collect(),
        timestamps: segments.iter().map(time).collect::<Result<_, _>>()?,
        probing_queries: PROBES.into_iter().map(query).collect::<Result<_, _>>()?,
        query_time: case.history.query_time.map(shown),
        labels: LABELS.into_iter().chain([TIME_GAP]).filter_map(label).collect(),
    })
}

/// A synthetic case of two statements.
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
