//! The files that a run keeps of a memory system: `memory/NAME/CASE/` with `events.jsonl`, `dump.jsonl` ([`Memory`] rows),
//! `searches.jsonl` and `calls.jsonl`; beside them `stated.jsonl`, where a judge was asked what memories say.
//!
//! Rows hold no clock but the seconds of calls. Read by `results` and by people.

use serde::{Deserialize, Serialize};

use super::protocol::{ContextPiece, Failure, LookedAt, Memory, WriteEvent};

/// The way in which the sources of memories were found, best first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Provenance {
    System,
    /// A session id that it keeps as metadata.
    Metadata,
    /// The events of an `ingest`.
    Events,
    /// A difference of `dump` before and after each session, united over updates.
    Dump,
    Times,
    #[default]
    Unknown,
}

/// A line of `events.jsonl`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRow {
    /// The session that was written, `session[3]`; `finish` for the end of the writing.
    pub session: String,
    #[serde(flatten)]
    pub event: WriteEvent,
    pub provenance: Provenance,
}

impl EventRow {
    /// The older memories considered, where the system says so.
    pub fn looked_at(&self) -> Option<&[LookedAt]> {
        self.event.looked_at.as_deref()
    }
}

/// A line of `events.jsonl` that ends a session: what is there is all of it, so that resuming knows where to go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRow {
    /// The session, or `finish`.
    pub session: String,
    pub events: usize,
    /// Did the system tell its changes, or a dump show them? If not, `events` is 0 and means nothing. Absent in older files, which do not
    /// say.
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

/// A line of `searches.jsonl`: one probe's search, from which every smaller k is cut.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SearchRow {
    pub probe: String,
    pub query: String,
    pub k: usize,
    /// By rank; sources completed by the run's provenance.
    pub memories: Vec<Memory>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Vec<ContextPiece>>,
    /// Perfect retrieval: all memories written from the probe's evidence; absent where it was not asked for.
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
    /// Did the store's fingerprint change while probes were put? Absent where there is no fingerprint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<bool>,
}

/// A line of `calls.jsonl`: one call of the system to its language model or embedder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallRow {
    /// The operation under way (`ingest`, `finish`, `search`, ...).
    pub phase: String,
    /// The session or the probe that it was for.
    pub about: String,
    /// The path, `/v1/chat/completions`.
    pub path: String,
    /// SHA-256 of the request (lower-case hexadecimal), by which it is replayed.
    pub request: String,
    pub status: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_tokens: Option<u64>,
    /// Seconds of the call; of a replayed one those that it took first.
    pub seconds: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Where JSON was asked for: did the reply parse?
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json: Option<bool>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replayed: bool,
}

/// A line of `stated.jsonl`: a judge's word on one text of a memory and one piece of evidence that was among its sources then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatedRow {
    pub memory: String,
    /// The text that was judged. Empty in older files, which judged the last one alone.
    #[serde(default)]
    pub text: String,
    pub role: String,
    pub session: String,
    pub states: bool,
    pub judge: String,
}
