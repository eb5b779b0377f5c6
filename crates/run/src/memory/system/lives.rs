//! Prints the history of each memory from a run's rows: when and why it was written, considered, changed and ended.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::protocol::{Op, Source};
use super::rows::{EventRow, HistoryRow, SessionRow};

pub fn lives(rows: &[HistoryRow]) -> String {
    let events: Vec<&EventRow> = rows.iter().filter_map(HistoryRow::event).collect();
    let mut order: Vec<&str> = Vec::new();
    let mut told: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for row in &events {
        let id = row.event.memory.as_deref().unwrap_or("(no memory)");
        if !order.contains(&id) {
            order.push(id);
        }
        told.entry(id).or_default().push(line(row));
        for older in row.event.looked_at.iter().flatten() {
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
    for SessionRow { session, failed, .. } in rows.iter().filter_map(HistoryRow::session) {
        if let Some(failed) = failed {
            let _ = writeln!(out, "{session} could not be written: {}", failed.message);
        }
    }
    out
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
