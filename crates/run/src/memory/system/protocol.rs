//! Operations and messages of memory systems: the wire format, version 1, for child processes (JSON lines) and HTTP, and the
//! [`MemorySystem`] trait.
//!
//! A system ingests a history session by session and is then searched. It never sees labels, evidence, probe types or other probes.
//! Session ids are segment labels, `session[3]`. docs/memory.md documents the wire format.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub const PROTOCOL: u32 = 1;

/// An OpenAI-compatible endpoint for the system's language model or embedder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelAddress {
    pub base_url: String,
    /// Bearer token; attributes the calls.
    pub key: String,
    pub model: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dimensions: Option<usize>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HelloRequest {
    pub protocol: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llm: Option<ModelAddress>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedder: Option<ModelAddress>,
    /// Private folder of the system.
    pub folder: String,
    pub seed: u64,
    #[serde(default)]
    pub config: Map<String, Value>,
}

/// All of it is part of the run's identity.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub name: String,
    #[serde(default)]
    pub version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub packages: BTreeMap<String, String>,
    #[serde(default)]
    pub unit: Unit,
    #[serde(default)]
    pub provenance: ProvenanceClaim,
    /// Operations beyond the required `hello`, `reset`, `ingest`, `finish`, `search`, `close`.
    #[serde(default)]
    pub can: Vec<Capability>,
    #[serde(default = "one")]
    pub scopes: usize,
}

fn one() -> usize {
    1
}

impl Hello {
    pub fn can(&self, capability: Capability) -> bool {
        self.can.contains(&capability)
    }
}

/// Unit in which a system ingests a history.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    Turn,
    Pair,
    #[default]
    Session,
}

/// The system's claim about the sources of its memories.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProvenanceClaim {
    Exact,
    Derived,
    #[default]
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    Dump,
    Readback,
    Fingerprint,
    Answer,
    Save,
    /// Events report candidate memories ([`WriteEvent::looked_at`]).
    LookedAt,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionInput {
    /// Segment label, `session[3]`.
    pub id: String,
    pub time: Option<String>,
    pub turns: Vec<TurnInput>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnInput {
    /// Index within the session, from 0.
    pub id: usize,
    pub role: String,
    pub content: String,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Source {
    /// [`SessionInput::id`].
    pub session: String,
    /// Empty if only the session is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<usize>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    Add,
    Update,
    Delete,
    Stale,
    /// The current state of the slot is unknown.
    Unknown,
    Weak,
    #[default]
    None,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookedAt {
    pub memory: String,
    /// True if it passed the gate before the decision (for instance a similarity threshold); absent if unknown or there is no gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gated: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteEvent {
    pub op: Op,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
    /// All sources; `None` means unknown, not empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sources: Option<Vec<Source>>,
    /// Older memories considered; `None` if not reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looked_at: Option<Vec<LookedAt>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    #[default]
    Active,
    Stale,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    pub id: String,
    pub text: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// `None` means unknown, not empty.
    #[serde(default)]
    pub sources: Option<Vec<Source>>,
    /// Time of the stated fact, if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    #[serde(default)]
    pub status: Status,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextPiece {
    pub text: String,
    /// The memory shown; absent for text between memories.
    #[serde(default)]
    pub memory: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Found {
    pub memories: Vec<Memory>,
    /// Native rendering of the context, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Vec<ContextPiece>>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SystemAnswer {
    pub text: String,
    #[serde(default)]
    pub memories: Vec<Memory>,
}

/// The first four are part of the wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    Unsupported,
    Input,
    Transient,
    Fatal,
    Dead,
    TimedOut,
    Nonsense,
}

impl FailureKind {
    /// True if the process or connection is unusable.
    pub fn is_lost(self) -> bool {
        matches!(self, FailureKind::Dead | FailureKind::TimedOut | FailureKind::Nonsense)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub kind: FailureKind,
    pub message: String,
}

impl From<&SystemError> for Failure {
    fn from(error: &SystemError) -> Self {
        Failure { kind: error.kind, message: error.to_string() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("memory system {system}: {op}: {message}")]
pub struct SystemError {
    pub system: String,
    pub op: &'static str,
    pub kind: FailureKind,
    pub message: String,
}

pub type SystemResult<T> = Result<T, SystemError>;

/// A memory system. One call at a time; the caller retries, restarts and records. `scope` names an independent store: one history.
pub trait MemorySystem: Send {
    fn hello(&mut self) -> SystemResult<Hello>;
    fn reset(&mut self, scope: &str) -> SystemResult<()>;
    /// Ingests a session. `None`: changes are not reported.
    fn ingest(&mut self, scope: &str, session: &SessionInput) -> SystemResult<Option<Vec<WriteEvent>>>;
    /// Ends ingestion: flushes buffers, runs offline updates and indexing.
    fn finish(&mut self, scope: &str) -> SystemResult<Option<Vec<WriteEvent>>>;
    /// The `k` best memories for a query at time `as_of`.
    fn search(&mut self, scope: &str, query: &str, k: usize, as_of: Option<&str>) -> SystemResult<Found>;
    fn readback(&mut self, scope: &str, sessions: &[String]) -> SystemResult<Vec<Memory>>;
    fn dump(&mut self, scope: &str) -> SystemResult<Vec<Memory>>;
    fn fingerprint(&mut self, scope: &str) -> SystemResult<String>;
    fn answer(&mut self, scope: &str, query: &str, as_of: Option<&str>) -> SystemResult<SystemAnswer>;
    fn save(&mut self, scope: &str, folder: &Path) -> SystemResult<()>;
    fn load(&mut self, scope: &str, folder: &Path) -> SystemResult<()>;
    fn close(&mut self);
}
