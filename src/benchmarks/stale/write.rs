//! Cases written as STALE rows: what [`super::read_stale`] reads back as the same cases.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;

use super::row::{LABELS, PROBES, shown};
use super::terms::{EXPLANATION, NEW, OLD, SPLIT, TIME_GAP};
use crate::data::{Case, Turn};

/// Why a case could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("case {id:?} is no STALE row: {what}")]
    NotARow { id: String, what: String },
    #[error("writing the rows failed")]
    Io(#[from] io::Error),
}

#[derive(Serialize)]
struct Row<'a> {
    uid: &'a str,
    r#type: &'a str,
    #[serde(rename = "M_old")]
    old: &'a str,
    #[serde(rename = "M_new")]
    new: &'a str,
    explanation: &'a str,
    relevant_session_index: [usize; 2],
    haystack_session: Vec<&'a [Turn]>,
    timestamps: Vec<String>,
    probing_queries: Queries<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    query_time: Option<String>,
    /// Further labels of the case, each a field.
    #[serde(flatten)]
    labels: BTreeMap<&'static str, &'a str>,
}

#[derive(Serialize)]
struct Queries<'a> {
    dim1_query: &'a str,
    dim2_query: &'a str,
    dim3_query: &'a str,
}

/// Writes cases as a STALE file, one row a line, in the field order of the published file.
///
/// Times are written to the second. Session indices become positions, so a truncated history is written, and read back,
/// as a whole one. The bytes depend on the cases alone.
pub fn write_stale<'a>(
    out: &mut impl Write,
    cases: impl IntoIterator<Item = &'a Case>,
) -> Result<(), WriteError> {
    out.write_all(b"[")?;
    for (i, case) in cases.into_iter().enumerate() {
        out.write_all(if i == 0 { b"\n" } else { b",\n" })?;
        serde_json::to_writer(&mut *out, &row(case)?).map_err(io::Error::from)?;
    }
    out.write_all(b"\n]\n")?;
    Ok(out.flush()?)
}

fn row(case: &Case) -> Result<Row<'_>, WriteError> {
    let missing = |what: String| WriteError::NotARow { id: case.id.clone(), what };
    let position = |role: &str| {
        let session = case.evidence.iter().find(|evidence| evidence.role == role)?.place.segment;
        case.history.segments.iter().position(|s| s.index == session)
    };
    let note = |name: &str| {
        let text = case.judge.notes.get(name).and_then(serde_json::Value::as_str);
        text.ok_or_else(|| missing(format!("its judge-only notes lack `{name}`")))
    };
    let time = |session: &crate::data::Segment| {
        session.time.map(shown).ok_or_else(|| missing(format!("session {} has no time", session.index)))
    };
    let query = |n: usize| {
        let (_, id, _) = PROBES[n];
        let probe = case.probes.iter().find(|probe| probe.id == id);
        probe.map(|probe| probe.query.as_str()).ok_or_else(|| missing(format!("it has no probe {id}")))
    };
    if case.probes.len() != PROBES.len() || case.evidence.len() != 2 {
        let (probes, evidence) = (case.probes.len(), case.evidence.len());
        return Err(missing(format!(
            "it has {probes} probes and {evidence} evidence sessions, a row has 3 and 2"
        )));
    }
    Ok(Row {
        uid: &case.id,
        r#type: case.labels.get(SPLIT).ok_or_else(|| missing(format!("it has no label `{SPLIT}`")))?,
        old: note(OLD)?,
        new: note(NEW)?,
        explanation: note(EXPLANATION)?,
        relevant_session_index: [
            position(OLD).ok_or_else(|| missing("its history lacks the old session".to_owned()))?,
            position(NEW).ok_or_else(|| missing("its history lacks the new session".to_owned()))?,
        ],
        haystack_session: case.history.segments.iter().map(|session| session.turns.as_slice()).collect(),
        timestamps: case.history.segments.iter().map(time).collect::<Result<_, _>>()?,
        probing_queries: Queries { dim1_query: query(0)?, dim2_query: query(1)?, dim3_query: query(2)? },
        query_time: case.history.query_time.map(shown),
        labels: LABELS
            .into_iter()
            .chain([TIME_GAP])
            .filter_map(|name| Some((name, case.labels.get(name)?.as_str())))
            .collect(),
    })
}
