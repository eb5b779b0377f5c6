//! `history_sessions.json`: the sessions of one history, checked and put in their order.

use std::collections::HashMap;

use jiff::civil::DateTime;
use jiff::fmt::temporal::Pieces;

use crate::benchmarks::fields::{Checker, WHOLE_ROW};
use crate::benchmarks::node::Node;
use crate::benchmarks::reading::Problem;
use crate::data::{Segment, Turn};

/// The kind of every segment.
pub(super) const SESSION: &str = "session";

/// A history as its file has it.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    /// In order, each with its place in it.
    pub(super) segments: Vec<Segment>,
    /// The place of each session, by its id.
    pub(super) places: HashMap<String, usize>,
}

struct Session {
    id: String,
    order: i64,
    local: DateTime,
    turns: Vec<Turn>,
}

/// The sessions of the rows of `file`, or all that is wrong with them: problems name the history by `case`, and the session beside the
/// field.
///
/// Sessions are put in the order of their field `order`, equal ones in that of their ids, as the authors' code does. In sound data that is
/// the order of their timestamps; the checks of all benchmarks name those of which it is not.
pub(super) fn sessions(file: &str, case: &str, rows: Vec<Node>) -> Result<Sessions, Vec<Problem>> {
    let mut problems = Vec::new();
    let mut found: Vec<Session> = Vec::new();
    let mut rows_of_ids: HashMap<String, usize> = HashMap::new();
    if rows.is_empty() {
        let mut checker = checker(file, 0, case);
        checker.problem(WHOLE_ROW, "no session at all", "give the sessions of the history");
        problems.extend(checker.problems);
    }
    for (row, node) in rows.into_iter().enumerate() {
        let mut checker = checker(file, row, case);
        if let Some(id) = node.text("session_id") {
            checker.within = format!("session {id:?}, ");
            if let Some(first) = rows_of_ids.insert(id.to_owned(), row) {
                let found = format!("the session_id of row {first} again");
                checker.problem("session_id", found, "give every session its own id");
            }
        }
        found.extend(session(&mut checker, node));
        problems.extend(checker.problems);
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    found.sort_by(|a, b| (a.order, &a.id).cmp(&(b.order, &b.id)));
    let places = found.iter().enumerate().map(|(at, session)| (session.id.clone(), at)).collect();
    let segments = found.into_iter().enumerate().map(|(index, Session { local, turns, .. })| Segment {
        kind: SESSION.to_owned(),
        index,
        time: Some(local),
        turns,
    });
    Ok(Sessions { segments: segments.collect(), places })
}

fn checker<'a>(file: &'a str, row: usize, case: &str) -> Checker<'a> {
    let mut checker = Checker::new(Some(file), row);
    checker.uid = Some(case.to_owned());
    checker
}

fn session(checker: &mut Checker<'_>, node: Node) -> Option<Session> {
    let mut fields = checker.object(WHOLE_ROW, node)?;
    let id = checker.text(&mut fields, "session_id", "session_id");
    let order = match checker.required(&mut fields, "order", "order") {
        Some(Node::Number(number)) if number.is_i64() => number.as_i64(),
        Some(other) => {
            checker.problem("order", other.describe(), "write the session's place, a whole number");
            None
        }
        None => None,
    };
    let time = checker.text(&mut fields, "timestamp", "timestamp").and_then(|text| {
        let time = parse_time(&text);
        if time.is_none() {
            let remedy = "write a date and time with its offset, as 2025-04-01T10:01:36+08:00";
            checker.problem("timestamp", format!("{text:?}"), remedy);
        }
        time
    });
    let turns = checker.array(&mut fields, "history", "history", "message").map(|items| {
        let count = items.len();
        let turns = items.into_iter().enumerate();
        let turns: Vec<Turn> =
            turns.filter_map(|(at, item)| turn(checker, &format!("history[{at}]"), item)).collect();
        (turns, count)
    });
    let (turns, count) = turns?;
    (turns.len() == count).then_some(Session { id: id?, order: order?, local: time?, turns })
}

fn turn(checker: &mut Checker<'_>, path: &str, node: Node) -> Option<Turn> {
    let mut fields = checker.object(path, node)?;
    let role_at = format!("{path}.role");
    let role = match checker.required(&mut fields, &role_at, "role") {
        Some(Node::String(role)) if role == "user" || role == "assistant" => Some(role),
        Some(other) => {
            checker.problem(role_at, other.describe(), "write \"user\" or \"assistant\"");
            None
        }
        None => None,
    };
    let content = checker.text(&mut fields, &format!("{path}.content"), "content");
    Some(Turn { role: role?, content: content? })
}

/// Local time of the session: ISO 8601 with date, time and offset, which together must be a moment.
fn parse_time(text: &str) -> Option<DateTime> {
    let pieces = Pieces::parse(text).ok()?;
    let local = pieces.date().to_datetime(pieces.time()?);
    pieces.to_numeric_offset()?.to_timestamp(local).is_ok().then_some(local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_date_a_time_and_an_offset() {
        let of = |text: &str| parse_time(text).map(|local| local.to_string());
        for text in ["2025-04-01T10:01:36+08:00", "2025-04-01T10:01:36Z"] {
            assert_eq!(of(text).as_deref(), Some("2025-04-01T10:01:36"));
        }
        for text in ["2025-04-01T10:01:36", "2025-04-01", "2025-02-30T10:00:00+00:00", "", "yesterday"] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
