//! Row types of a memory system in `memory/NAME/CASE/`: `events.jsonl`, `dump.jsonl` ([`Memory`] rows), `searches.jsonl`, `calls.jsonl`,
//! and `stated.jsonl` if a judge graded what memories say. Rows hold no time except call durations.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::protocol::{ContextPiece, Failure, LookedAt, Memory, Op, Source, WriteEvent};

/// Method that found a memory's sources, best first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Provenance {
    System,
    /// Session id stored as metadata by the system.
    Metadata,
    Events,
    /// Dump differences before and after each session, accumulated over updates.
    Dump,
    Times,
    #[default]
    Unknown,
}

/// A line of `events.jsonl`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRow {
    /// `session[3]`; `finish` for the end of ingestion.
    pub session: String,
    #[serde(flatten)]
    pub event: WriteEvent,
    pub provenance: Provenance,
}

impl EventRow {
    pub fn looked_at(&self) -> Option<&[LookedAt]> {
        self.event.looked_at.as_deref()
    }
}

/// The line of `events.jsonl` that ends a session. Its presence marks the session complete for resuming.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRow {
    pub session: String,
    pub events: usize,
    /// True if the system or a dump reported changes; otherwise `events` is meaningless (0). Absent in older files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<Failure>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum HistoryRow {
    Event(EventRow),
    Session(SessionRow),
}

impl HistoryRow {
    pub fn event(&self) -> Option<&EventRow> {
        match self {
            HistoryRow::Event(row) => Some(row),
            HistoryRow::Session(_) => None,
        }
    }

    pub fn session(&self) -> Option<&SessionRow> {
        match self {
            HistoryRow::Session(row) => Some(row),
            HistoryRow::Event(_) => None,
        }
    }
}

/// A line of `searches.jsonl`: one probe's search; smaller k truncate it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SearchRow {
    pub probe: String,
    pub query: String,
    pub k: usize,
    /// By rank, with completed sources.
    pub memories: Vec<Memory>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Vec<ContextPiece>>,
    /// Perfect retrieval: memories written from the evidence; absent if not requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readback: Option<Vec<Memory>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readback_failed: Option<Failure>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_failed: Option<Failure>,
    pub provenance: Provenance,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<Failure>,
    /// True if the store's fingerprint changed during probes; absent without fingerprint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<bool>,
}

/// A line of `calls.jsonl`: one call to the language model or embedder.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CallRow {
    /// Current operation (`ingest`, `finish`, `search`, ...).
    pub phase: String,
    /// Session or probe id.
    pub about: String,
    pub path: String,
    /// SHA-256 of the request, lower-case hex; replay key.
    pub request: String,
    pub status: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_tokens: Option<u64>,
    /// Duration; of the original call if replayed.
    pub seconds: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// In JSON mode: whether the reply parsed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json: Option<bool>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replayed: bool,
}

/// A line of `stated.jsonl`: a judge's verdict on one text of a memory against one piece of evidence among its sources.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatedRow {
    pub memory: String,
    /// The judged text. Empty in older files, which judged the last text only.
    #[serde(default)]
    pub text: String,
    pub role: String,
    pub session: String,
    pub states: bool,
    pub judge: String,
    /// Parameters that the judge's endpoint refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_parameters: Vec<String>,
}

/// The history of each memory in words: when and why it was written, considered, changed and ended.
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
        out.push_str("The system reported no memories, or wrote none.\n");
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
