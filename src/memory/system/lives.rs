//! The lives of memories in words: when each was written, considered, changed and ended, and why, from the rows that a run keeps.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::protocol::{Op, Source};
use super::rows::{EventRow, HistoryRow, SessionRow};

/// The events of each memory, in the order of their first events, then the sessions that could not be written.
pub fn lives(rows: &[HistoryRow]) -> String {
    let events: Vec<&EventRow> = rows.iter().filter_map(of_event).collect();
    let mut order: Vec<&str> = Vec::new();
    let mut told: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for row in &events {
        let id = row.event.memory.as_deref().unwrap_or("(no memory)");
        if !order.contains(&id) {
            order.push(id);
        }
        told.entry(id).or_default().push(line(row));
        for older in row.looked_at().into_iter().flatten() {
            let gate = match older.gated {
                Some(true) => ", and passed the gate",
                Some(false) => ", and did not pass the gate",
                None => "",
            };
            let line = format!("{}: considered for {id}{gate}", row.session);
            told.entry(&older.memory).or_default().push(line);
        }
    }
    let mut out = String::new();
    for id in &order {
        let _ = writeln!(out, "{id}");
        for line in told.get(id).into_iter().flatten() {
            let _ = writeln!(out, "  {line}");
        }
    }
    if order.is_empty() {
        out.push_str("The system told of no memories, or wrote none.\n");
    }
    for SessionRow { session, failed, .. } in rows.iter().filter_map(of_session) {
        if let Some(failed) = failed {
            let _ = writeln!(out, "{session} could not be written: {}", failed.message);
        }
    }
    out
}

fn of_event(row: &HistoryRow) -> Option<&EventRow> {
    match row {
        HistoryRow::Event(row) => Some(row),
        HistoryRow::Session(_) => None,
    }
}

fn of_session(row: &HistoryRow) -> Option<&SessionRow> {
    match row {
        HistoryRow::Session(row) => Some(row),
        HistoryRow::Event(_) => None,
    }
}

fn line(row: &EventRow) -> String {
    let event = &row.event;
    let done = match event.op {
        Op::Add => "added",
        Op::Update => "changed",
        Op::Delete => "deleted",
        Op::Stale => "marked out of date",
        Op::Unknown => "its slot is no longer known",
        Op::Weak => "weakened",
        Op::None => "left as it was",
    };
    let mut line = format!("{}: {done}", row.session);
    if let Some(text) = &event.text {
        let _ = write!(line, ": \"{}\"", text.replace('\n', " "));
    }
    if let Some(previous) = &event.previous {
        let _ = write!(line, " (before: \"{}\")", previous.replace('\n', " "));
    }
    match event.sources.as_deref() {
        None => line.push_str(" (sources unknown)"),
        Some([Source { session, .. }]) if *session == row.session => {}
        Some(sources) => {
            let sessions: Vec<&str> = sources.iter().map(|source| source.session.as_str()).collect();
            let _ = write!(line, " (from {})", sessions.join(", "));
        }
    }
    if let Some(reason) = &event.reason {
        let _ = write!(line, ", because: {reason}");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_says_who_ended_it_and_why() {
        let text = r#"{"session":"session[0]","op":"add","memory":"m0","text":"I live\nin Seattle.","sources":[{"session":"session[0]"}],"provenance":"system"}
{"session":"session[0]","events":1}
{"session":"session[2]","op":"add","memory":"m1","text":"I live in Austin.","sources":[{"session":"session[2]"}],"looked_at":[{"memory":"m0","gated":true}],"provenance":"system"}
{"session":"session[2]","op":"stale","memory":"m0","sources":[{"session":"session[0]"}],"reason":"moved","provenance":"system"}
{"session":"session[2]","events":2}
{"session":"session[3]","events":0,"failed":{"kind":"timed_out","message":"no reply"}}"#;
        let rows: Vec<HistoryRow> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let expected = "m0
  session[0]: added: \"I live in Seattle.\"
  session[2]: considered for m1, and passed the gate
  session[2]: marked out of date (from session[0]), because: moved
m1
  session[2]: added: \"I live in Austin.\"
session[3] could not be written: no reply
";
        assert_eq!(lives(&rows), expected);
    }
}
