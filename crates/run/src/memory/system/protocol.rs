//! The operations of a memory system and the objects that they exchange: the wire format, version 1, of child processes (JSON lines) and
//! of HTTP, and the trait that every system implements here.
//!
//! A system is told of a history session by session and asked for memories. Labels, evidence, probe types and other probes are never
//! sent. Sessions are named by the label of their segment, `session[3]`. The wire format is documented in docs/memory.md.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub const PROTOCOL: u32 = 1;

/// An address that speaks OpenAI's API, as a system is given one for its language model or its embedder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelAddress {
    pub base_url: String,
    /// To be sent as the bearer token; it labels the calls.
    pub key: String,
    pub model: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dimensions: Option<usize>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HelloRequest {
    pub protocol: u32,
    /// The language model; absent where the system is given none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llm: Option<ModelAddress>,
    /// The embedder; absent where the system is given none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedder: Option<ModelAddress>,
    /// A folder of the system's own for whatever it keeps.
    pub folder: String,
    pub seed: u64,
    /// Settings that the user gives the system, as they are.
    #[serde(default)]
    pub config: Map<String, Value>,
}

/// The reply to `hello`. All of it is part of a run's identity.
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
    /// Operations beside the obligatory ones (`hello`, `reset`, `ingest`, `finish`, `search`, `close`).
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

/// The unit in which a system takes a history.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    Turn,
    Pair,
    #[default]
    Session,
}

/// A system's claim to know the sources of its memories.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProvenanceClaim {
    Exact,
    Derived,
    #[default]
    None,
}

/// An operation or a report that not every system has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    Dump,
    Readback,
    Fingerprint,
    Answer,
    /// `save` and `load`.
    Save,
    /// Events say which older memories were candidates ([`WriteEvent::looked_at`]).
    LookedAt,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionInput {
    /// The segment's label, `session[3]`.
    pub id: String,
    /// When it took place, `2024-05-01T10:00:00`, where the data says so.
    pub time: Option<String>,
    pub turns: Vec<TurnInput>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnInput {
    /// Its place in the session, from 0.
    pub id: usize,
    pub role: String,
    pub content: String,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Source {
    /// [`SessionInput::id`].
    pub session: String,
    /// Turns of the session; empty where only the session is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<usize>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    Add,
    Update,
    Delete,
    /// It is kept as out of date.
    Stale,
    /// A slot's state is no longer known.
    Unknown,
    Weak,
    #[default]
    None,
}

/// An older memory that was considered when a newer one came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookedAt {
    pub memory: String,
    /// Did it pass the gate before the decision (a threshold of similarity, for instance)? Absent where there is no gate or it is not known.
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
    /// Its sources, all of them; `None` (unknown) is not the same as none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sources: Option<Vec<Source>>,
    /// Older memories considered for this one; `None` where the system does not say.
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
    /// It is kept as out of date.
    Stale,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    pub id: String,
    pub text: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// Its sources; `None` (unknown) is not the same as none.
    #[serde(default)]
    pub sources: Option<Vec<Source>>,
    /// When what it says was so, where the system says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    #[serde(default)]
    pub status: Status,
}

/// A piece of the system's own rendering of a context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextPiece {
    pub text: String,
    /// The memory that it shows; absent for text between memories.
    #[serde(default)]
    pub memory: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Found {
    pub memories: Vec<Memory>,
    /// The system's own rendering of its context, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Vec<ContextPiece>>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SystemAnswer {
    pub text: String,
    /// The memories that it was made from.
    #[serde(default)]
    pub memories: Vec<Memory>,
}

/// Kinds of failure. The first four are the wire's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    Unsupported,
    /// It cannot use what it was sent.
    Input,
    Transient,
    Fatal,
    /// The process or the connection is gone.
    Dead,
    TimedOut,
    Nonsense,
}

impl FailureKind {
    /// Is the process or the connection of no more use?
    pub fn is_lost(self) -> bool {
        matches!(self, FailureKind::Dead | FailureKind::TimedOut | FailureKind::Nonsense)
    }
}

/// A failure as it is kept, or as a transport meets it.
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

/// A memory system. One call at a time; the caller retries, restarts and records.
///
/// `scope` names a store of its own within the system: one history.
pub trait MemorySystem: Send {
    /// Starts it, or starts it again after it died.
    fn hello(&mut self) -> SystemResult<Hello>;
    fn reset(&mut self, scope: &str) -> SystemResult<()>;
    /// Writes a session into memory. `None`: it does not say what changed.
    fn ingest(&mut self, scope: &str, session: &SessionInput) -> SystemResult<Option<Vec<WriteEvent>>>;
    /// Ends the writing: buffers, offline updates and indexing are done afterwards.
    fn finish(&mut self, scope: &str) -> SystemResult<Option<Vec<WriteEvent>>>;
    /// The `k` best memories for a query, asked at `as_of`.
    fn search(&mut self, scope: &str, query: &str, k: usize, as_of: Option<&str>) -> SystemResult<Found>;
    fn readback(&mut self, scope: &str, sessions: &[String]) -> SystemResult<Vec<Memory>>;
    fn dump(&mut self, scope: &str) -> SystemResult<Vec<Memory>>;
    fn fingerprint(&mut self, scope: &str) -> SystemResult<String>;
    fn answer(&mut self, scope: &str, query: &str, as_of: Option<&str>) -> SystemResult<SystemAnswer>;
    fn save(&mut self, scope: &str, folder: &Path) -> SystemResult<()>;
    fn load(&mut self, scope: &str, folder: &Path) -> SystemResult<()>;
    fn close(&mut self);
}
