//! Parses and sorts `history_sessions.json`.

use std::collections::HashMap;

use jiff::civil::DateTime;
use jiff::fmt::temporal::Pieces;

use serde::Deserialize;

use crate::benchmarks::reading::Problem;
use crate::benchmarks::shape::{Checker, Node, OPEN_TURN, Others, Places, Shape, needed};
use crate::case::{Segment, Turn};
use crate::ground::json::Fault;

const ROW: Shape = Shape::Fields(
    &[
        needed("session_id", Shape::Text),
        needed("order", ORDER),
        needed("timestamp", TIME),
        needed("history", Shape::List("message", 1, &OPEN_TURN)),
    ],
    Others::Ignored,
);
const ORDER: Shape = Shape::Where(
    |node| matches!(node, Node::Number(number) if number.is_i64()),
    "write the session's place, a whole number",
);
const TIME: Shape = Shape::Where(
    |node| node.as_str().is_some_and(|text| parse_time(text).is_some()),
    "write a date and time with its offset, as 2025-04-01T10:01:36+08:00",
);

pub(super) const SESSION: &str = "session";

#[derive(Debug, Default)]
pub(super) struct Sessions {
    pub(super) segments: Vec<Segment>,
    pub(super) places: HashMap<String, usize>,
}

#[derive(Deserialize)]
struct Session {
    session_id: String,
    order: i64,
    timestamp: String,
    history: Vec<Turn>,
}

/// Sorted by `order`, then id, as in the authors' code. In sound data this is chronological, which the general checks verify.
pub(super) fn sessions(
    file: &str,
    case: &str,
    rows: Vec<(Node, Vec<Fault>)>,
) -> Result<Sessions, Vec<Problem>> {
    if rows.is_empty() {
        let row = Checker::new(Some(file), 0, Some(case));
        return Err(row.refused("no session at all", "give the sessions of the history").problems);
    }
    let (mut problems, mut found, mut ids) = (Vec::new(), Vec::<Session>::new(), Places::new());
    for (row, (node, faults)) in rows.into_iter().enumerate() {
        let mut checker = Checker::new(Some(file), row, Some(case));
        checker.faults(faults);
        let id = node.text("session_id");
        if let Some(id) = id {
            checker.within = format!("session {id:?}, ");
        }
        checker.unique("session_id", id, "give every session its own id", &mut ids);
        found.extend(checker.read::<Session>(node, &ROW));
        problems.extend(checker.problems);
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    found.sort_by(|a, b| (a.order, &a.session_id).cmp(&(b.order, &b.session_id)));
    let places = found.iter().enumerate().map(|(at, session)| (session.session_id.clone(), at)).collect();
    let segments = found.into_iter().enumerate().map(|(index, session)| Segment {
        kind: SESSION.to_owned(),
        index,
        time: parse_time(&session.timestamp),
        turns: session.history,
    });
    Ok(Sessions { segments: segments.collect(), places })
}

/// Local time; ISO 8601 with date, time and offset.
fn parse_time(text: &str) -> Option<DateTime> {
    let pieces = Pieces::parse(text).ok()?;
    let local = pieces.date().to_datetime(pieces.time()?);
    pieces.to_numeric_offset()?.to_timestamp(local).is_ok().then_some(local)
}
