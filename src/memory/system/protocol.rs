//! The operations of a memory system and the objects that they exchange: the wire format, version 1, of child processes (JSON lines) and
//! of HTTP, and the trait that every system implements here.
//!
//! A system is told of a history session by session and asked for memories. Labels, evidence, probe types and other probes are never
//! sent. Sessions are named by the label of their segment, `session[3]`. The wire format is documented in docs/memory.md.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The protocol's version.
pub const PROTOCOL: u32 = 1;

/// An address that speaks OpenAI's API, as a system is given one for its language model or its embedder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelAddress {
    /// For example `http://127.0.0.1:41234/v1`.
    pub base_url: String,
    /// To be sent as the bearer token; it labels the calls.
    pub key: String,
    pub model: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dimensions: Option<usize>,
}

/// `hello`: the first message.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HelloRequest {
    /// [`PROTOCOL`].
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
    /// A digest of the adapter's source or configuration, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Versions of the packages that it stands on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub packages: BTreeMap<String, String>,
    /// The unit in which it takes a history.
    #[serde(default)]
    pub unit: Unit,
    /// Its claim to know the sources of its memories.
    #[serde(default)]
    pub provenance: ProvenanceClaim,
    /// Operations beside the obligatory ones (`hello`, `reset`, `ingest`, `finish`, `search`, `close`).
    #[serde(default)]
    pub can: Vec<Capability>,
    /// Scopes that it can hold at once.
    #[serde(default = "one")]
    pub scopes: usize,
}

fn one() -> usize {
    1
}

impl Hello {
    /// Does it offer an operation?
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
    /// `dump`.
    Dump,
    /// `readback`.
    Readback,
    /// `fingerprint`.
    Fingerprint,
    /// `answer`.
    Answer,
    /// `save` and `load`.
    Save,
    /// Events say which older memories were candidates ([`WriteEvent::looked_at`]).
    LookedAt,
}

/// A session as it is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionInput {
    /// The segment's label, `session[3]`.
    pub id: String,
    /// When it took place, `2024-05-01T10:00:00`, where the data says so.
    pub time: Option<String>,
    pub turns: Vec<TurnInput>,
}

/// A turn as it is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnInput {
    /// Its place in the session, from 0.
    pub id: usize,
    pub role: String,
    pub content: String,
}

/// A source of a memory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Source {
    /// [`SessionInput::id`].
    pub session: String,
    /// Of its turns; empty where only the session is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<usize>,
}

/// The effect of an event on a memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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

/// A change of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

/// Is a memory current?
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    #[default]
    Active,
    /// It is kept as out of date.
    Stale,
}

/// A memory, from a search, a dump or a read-back.
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

/// The reply to `search`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Found {
    pub memories: Vec<Memory>,
    /// The system's own rendering of its context, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Vec<ContextPiece>>,
}

/// The reply to `answer`.
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
    /// The reply is none of the protocol's.
    Nonsense,
}

impl FailureKind {
    /// Is the process or the connection of no more use?
    pub fn is_lost(self) -> bool {
        matches!(self, FailureKind::Dead | FailureKind::TimedOut | FailureKind::Nonsense)
    }
}

/// An operation that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("memory system {system}: {op}: {message}")]
pub struct SystemError {
    pub system: String,
    pub op: &'static str,
    pub kind: FailureKind,
    pub message: String,
}

/// A memory system. One call at a time; the caller retries, restarts and records.
///
/// `scope` names a store of its own within the system: one history.
pub trait MemorySystem: Send {
    /// Starts it, or starts it again after it died.
    fn hello(&mut self) -> Result<Hello, SystemError>;
    /// Empties a scope.
    fn reset(&mut self, scope: &str) -> Result<(), SystemError>;
    /// Writes a session into memory. `None`: it does not say what changed.
    fn ingest(&mut self, scope: &str, session: &SessionInput)
    -> Result<Option<Vec<WriteEvent>>, SystemError>;
    /// Ends the writing: buffers, offline updates and indexing are done afterwards.
    fn finish(&mut self, scope: &str) -> Result<Option<Vec<WriteEvent>>, SystemError>;
    /// The `k` best memories for a query, asked at `as_of`.
    fn search(
        &mut self,
        scope: &str,
        query: &str,
        k: usize,
        as_of: Option<&str>,
    ) -> Result<Found, SystemError>;
    /// All memories written from these sessions.
    fn readback(&mut self, scope: &str, sessions: &[String]) -> Result<Vec<Memory>, SystemError>;
    /// All memories.
    fn dump(&mut self, scope: &str) -> Result<Vec<Memory>, SystemError>;
    /// A digest of the scope's state.
    fn fingerprint(&mut self, scope: &str) -> Result<String, SystemError>;
    /// The system's own answer.
    fn answer(&mut self, scope: &str, query: &str, as_of: Option<&str>) -> Result<SystemAnswer, SystemError>;
    /// Writes the scope's state into a folder.
    fn save(&mut self, scope: &str, folder: &Path) -> Result<(), SystemError>;
    /// Reads it back.
    fn load(&mut self, scope: &str, folder: &Path) -> Result<(), SystemError>;
    /// Ends it.
    fn close(&mut self);
}
