//! The wire format: implements [`MemorySystem`] over a [`Transport`].
//!
//! Message: `{"id", "op", ...}`; reply: `{"id", "ok": true, ...}` or `{"id", "ok": false, "error": {"kind", "message"}}`. Owns message ids,
//! timeouts and the errors for malformed replies. Knows neither processes nor HTTP.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Map, Value, json};

use super::protocol::{
    Failure, FailureKind, Found, Hello, HelloRequest, Memory, MemorySystem, SessionInput, SystemAnswer,
    SystemError, SystemResult, WriteEvent,
};
use super::transport::Transport;

/// Characters of a reply quoted in an error.
const QUOTED: usize = 200;

/// Timeouts of a system's operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Launch until the reply to `hello`.
    pub start: Duration,
    /// `ingest`, `finish`, `reset`, `save`, `load`, `answer`.
    pub session: Duration,
    /// `search`, `readback`, `dump`, `fingerprint`.
    pub search: Duration,
}

impl Patience {
    /// Parses seconds: `300` limits searches and raises lower limits to it; `search=300,session=3600,start=600` sets each.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut patience = Patience::default();
        let mut words: Vec<&str> = text.split(',').collect();
        // Named limits override the plain one in any order.
        words.sort_by_key(|word| word.contains('='));
        for word in words {
            let (name, seconds) = word.split_once('=').unwrap_or(("", word));
            let limit = seconds.trim().parse().ok().filter(|seconds| (0.001..=LONGEST).contains(seconds));
            let limit = limit.map(Duration::from_secs_f64).ok_or_else(|| {
                format!("`{word}` has no number of seconds, more than 0 and at most {LONGEST}; for example 300, or search=300,session=3600")
            })?;
            match name.trim() {
                "" => {
                    patience.start = patience.start.max(limit);
                    patience.session = patience.session.max(limit);
                    patience.search = limit;
                }
                "start" => patience.start = limit,
                "session" => patience.session = limit,
                "search" => patience.search = limit,
                other => {
                    return Err(format!(
                        "there is no limit `{other}`; the limits are start, session and search"
                    ));
                }
            }
        }
        Ok(patience)
    }

    /// The timeout of an operation and its name in [`Patience::parse`].
    fn of(&self, op: &str) -> (&'static str, Duration) {
        match op {
            "hello" => ("start", self.start),
            "search" | "readback" | "dump" | "fingerprint" => ("search", self.search),
            // An answer may take as long as ingesting a session.
            _ => ("session", self.session),
        }
    }
}

/// Maximum timeout, seconds (three years; avoids clock overflow).
const LONGEST: f64 = 1e8;

impl Default for Patience {
    fn default() -> Self {
        Patience {
            start: Duration::from_secs(120),
            session: Duration::from_secs(600),
            search: Duration::from_secs(60),
        }
    }
}

pub struct WireSystem<T: Transport> {
    name: String,
    transport: T,
    hello: HelloRequest,
    patience: Patience,
    id: u64,
    running: bool,
}

#[derive(Deserialize)]
struct Reply {
    id: Value,
    ok: bool,
    error: Option<WireError>,
    #[serde(flatten)]
    fields: Map<String, Value>,
}

#[derive(Deserialize)]
struct WireError {
    kind: String,
    message: String,
}

#[derive(Deserialize)]
struct Events {
    #[serde(default)]
    events: Option<Vec<WriteEvent>>,
}

#[derive(Deserialize)]
struct Memories {
    memories: Vec<Memory>,
}

#[derive(Deserialize)]
struct Fingerprint {
    fingerprint: String,
}

impl<T: Transport> WireSystem<T> {
    /// Starts nothing before [`MemorySystem::hello`].
    pub fn new(name: &str, transport: T, hello: HelloRequest, patience: Patience) -> Self {
        WireSystem { name: name.to_owned(), transport, hello, patience, id: 0, running: false }
    }

    fn error(&self, op: &'static str, kind: FailureKind, message: String) -> SystemError {
        SystemError { system: self.name.clone(), op, kind, message }
    }

    /// Stops the system, since a late reply could be mistaken for the next one.
    fn give_up(&mut self, op: &'static str, fault: Failure) -> SystemError {
        self.transport.stop();
        self.running = false;
        let message = match (fault.kind, self.patience.of(op)) {
            (FailureKind::TimedOut, (name, limit)) => {
                let twice = 2.0 * limit.as_secs_f64();
                format!("{}; --memory-timeout {name}={twice} allows it twice the time", fault.message)
            }
            _ => fault.message,
        };
        self.error(op, fault.kind, message)
    }

    fn call<R: DeserializeOwned>(&mut self, op: &'static str, fields: Value) -> SystemResult<R> {
        if !self.running {
            let message = "it does not run; it has to be started first".to_owned();
            return Err(self.error(op, FailureKind::Dead, message));
        }
        self.id += 1;
        let mut message = json!({ "id": self.id, "op": op });
        if let (Value::Object(message), Value::Object(fields)) = (&mut message, fields) {
            message.extend(fields);
        }
        let limit = if op == CLOSE { CLOSING } else { self.patience.of(op).1 };
        let bytes = self.transport.exchange(message.to_string().as_bytes(), limit);
        match bytes.and_then(|bytes| read(&bytes, self.id, op)) {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(refused)) => Err(self.error(op, kind(&refused.kind), refused.message)),
            Err(fault) => Err(self.give_up(op, fault)),
        }
    }
}

/// The reply to message `id`, or the system's error. Fails if it is malformed.
fn read<R: DeserializeOwned>(bytes: &[u8], id: u64, op: &str) -> Result<Result<R, WireError>, Failure> {
    let nonsense = |why: String| {
        let quoted = beginning(&String::from_utf8_lossy(bytes), QUOTED);
        let message = format!(
            "the reply `{quoted}` {why}; an adapter writes one JSON object a message to stdout and everything else to stderr"
        );
        Failure { kind: FailureKind::Nonsense, message }
    };
    let reply: Reply =
        serde_json::from_slice(bytes).map_err(|e| nonsense(format!("is no reply of the protocol: {e}")))?;
    if reply.id.as_u64() != Some(id) {
        let why = format!("has id {}, and the message had {id}; a reply repeats it", reply.id);
        return Err(nonsense(why));
    }
    match (reply.ok, reply.error) {
        (true, _) => match serde_json::from_value(Value::Object(reply.fields)) {
            Ok(reply) => Ok(Ok(reply)),
            Err(error) => Err(nonsense(format!("is none to `{op}`: {error}"))),
        },
        (false, Some(error)) => Ok(Err(error)),
        (false, None) => Err(nonsense("is not ok and has no `error`".to_owned())),
    }
}

/// Unknown kinds are not retried.
fn kind(name: &str) -> FailureKind {
    match name {
        "unsupported" => FailureKind::Unsupported,
        "input" => FailureKind::Input,
        "transient" => FailureKind::Transient,
        _ => FailureKind::Fatal,
    }
}

pub(super) fn beginning(text: &str, most: usize) -> String {
    let mut shown: String = text.chars().take(most).collect();
    if shown.len() < text.len() {
        shown.push_str(" ...");
    }
    shown
}

impl<T: Transport> MemorySystem for WireSystem<T> {
    fn hello(&mut self) -> SystemResult<Hello> {
        const OP: &str = "hello";
        self.running = false;
        if let Err(fault) = self.transport.start() {
            return Err(self.give_up(OP, fault));
        }
        self.running = true;
        self.call(OP, json!(self.hello)).inspect_err(|_| {
            self.transport.stop();
            self.running = false;
        })
    }

    fn reset(&mut self, scope: &str) -> SystemResult<()> {
        self.call::<IgnoredAny>("reset", json!({ "scope": scope })).map(drop)
    }

    fn ingest(&mut self, scope: &str, session: &SessionInput) -> SystemResult<Option<Vec<WriteEvent>>> {
        let fields = json!({ "scope": scope, "session": session });
        self.call::<Events>("ingest", fields).map(|reply| reply.events)
    }

    fn finish(&mut self, scope: &str) -> SystemResult<Option<Vec<WriteEvent>>> {
        self.call::<Events>("finish", json!({ "scope": scope })).map(|reply| reply.events)
    }

    fn search(&mut self, scope: &str, query: &str, k: usize, as_of: Option<&str>) -> SystemResult<Found> {
        self.call("search", json!({ "scope": scope, "query": query, "k": k, "as_of": as_of }))
    }

    fn readback(&mut self, scope: &str, sessions: &[String]) -> SystemResult<Vec<Memory>> {
        let fields = json!({ "scope": scope, "sessions": sessions });
        self.call::<Memories>("readback", fields).map(|reply| reply.memories)
    }

    fn dump(&mut self, scope: &str) -> SystemResult<Vec<Memory>> {
        self.call::<Memories>("dump", json!({ "scope": scope })).map(|reply| reply.memories)
    }

    fn fingerprint(&mut self, scope: &str) -> SystemResult<String> {
        self.call::<Fingerprint>("fingerprint", json!({ "scope": scope })).map(|reply| reply.fingerprint)
    }

    fn answer(&mut self, scope: &str, query: &str, as_of: Option<&str>) -> SystemResult<SystemAnswer> {
        self.call("answer", json!({ "scope": scope, "query": query, "as_of": as_of }))
    }

    fn save(&mut self, scope: &str, folder: &Path) -> SystemResult<()> {
        self.call::<IgnoredAny>("save", json!({ "scope": scope, "folder": folder })).map(drop)
    }

    fn load(&mut self, scope: &str, folder: &Path) -> SystemResult<()> {
        self.call::<IgnoredAny>("load", json!({ "scope": scope, "folder": folder })).map(drop)
    }

    fn close(&mut self) {
        if self.running {
            let _ = self.call::<IgnoredAny>(CLOSE, json!({}));
        }
        self.transport.stop();
        self.running = false;
    }
}

const CLOSE: &str = "close";
const CLOSING: Duration = Duration::from_secs(5);
