//! Proxy between a memory system and its language model and embedder.
//!
//! Records every call under the current operation: one row per call in `calls.jsonl`, and the replies in `responses.jsonl`. A recorded
//! call is replayed without asking the model. Replies pass unchanged; invalid JSON is counted, not repaired.
//!
//! The key of a call is its operation, its request and the number of equal requests before it in that operation. A repeated operation
//! (after a kill, a crash or in a rerun) therefore gets the same replies. Rows are from the last execution of each operation.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::driver::{InFlight, Operation};
use super::http_server::{HttpServer, Request, Response};
use super::local_server::{LocalServer, Served};
use super::protocol::ModelAddress;
use super::record::system_folder;
use super::rows::CallRow;
use crate::chat::endpoint::{Endpoint, Key, Keys, Passed, Patience, is_address};
use palimpsest_core::digest::sha256;
use palimpsest_data::ground::jsonl::{JsonlError, RowLog};

const BETWEEN: &str = "between";

/// Paths that are passed on, below /v1/. With the user's key others would read files, or start paid jobs.
const SERVED: [(&str, &str); 5] = [
    ("POST", "chat/completions"),
    ("POST", "completions"),
    ("POST", "embeddings"),
    ("POST", "responses"),
    ("GET", "models"),
];

pub(super) const CALLS: &str = "calls.jsonl";
const RESPONSES: &str = "responses.jsonl";

/// Address of a model. Clones share a local model's server.
#[derive(Debug, Clone)]
pub enum Upstream {
    Endpoint(Box<Endpoint>),
    Local(Arc<LocalServer>),
}

/// Bytes of a request, if it has some.
type Body<'a> = Option<Cow<'a, [u8]>>;

impl Upstream {
    /// Parses `URL#MODEL`, or a local model's name, folder or file; the local server logs to `log`.
    pub fn parse(named: &str, log: &Path, keys: &Keys) -> Result<Self, String> {
        if !is_address(named) {
            return Ok(Upstream::Local(Arc::new(LocalServer::new(named, log))));
        }
        match named.split_once('#') {
            Some((_, model)) if !model.is_empty() => {
                let endpoint = Endpoint::from_address(named, keys, Patience::default());
                Ok(Upstream::Endpoint(Box::new(endpoint.map_err(|error| error.message)?)))
            }
            _ => Err(format!(
                "`{named}` names no model; give http://host[:port]/v1#model, or the name of a model on this machine"
            )),
        }
    }

    pub fn model(&self) -> &str {
        match self {
            Upstream::Endpoint(endpoint) => endpoint.model(),
            Upstream::Local(server) => server.model(),
        }
    }

    /// The endpoint, and the body with a local model's name replaced by the server's.
    fn address<'a>(&self, body: Option<&'a [u8]>) -> Result<(Endpoint, Body<'a>), String> {
        let server = match self {
            Upstream::Endpoint(endpoint) => return Ok((Endpoint::clone(endpoint), body.map(Cow::Borrowed))),
            Upstream::Local(server) => server,
        };
        let Served { base, model, key } = server.served()?;
        let renamed = body.map(|bytes| match serde_json::from_slice::<Value>(bytes) {
            Ok(mut asked) if asked["model"].as_str() == Some(server.model()) => {
                asked["model"] = model.as_str().into();
                Cow::Owned(asked.to_string().into_bytes())
            }
            _ => Cow::Borrowed(bytes),
        });
        let endpoint = Key::new("the local server's key", &key)
            .and_then(|key| Endpoint::new(&format!("{base}#{model}"), Some(key), Patience::default()));
        Ok((endpoint.map_err(|error| error.message)?, renamed))
    }

    fn forward(&self, path: &str, body: Option<&[u8]>) -> Response {
        let passed = self
            .address(body)
            .and_then(|(endpoint, body)| endpoint.pass(path, body.as_deref()).map_err(|error| error.message));
        match passed {
            Ok(Passed { status, content_type, body }) => Response { status, content_type, body },
            Err(why) => Response::error(502, &why),
        }
    }
}

/// The sampling of a system's calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Decoding {
    /// As the system asks
    #[default]
    AsAsked,
    /// Temperature 0, whatever it asks
    Greedy,
}

impl Decoding {
    pub fn is_as_asked(&self) -> bool {
        *self == Decoding::AsAsked
    }
}

#[derive(Debug, Clone)]
pub struct Models {
    pub llm: Upstream,
    /// Without one, embeddings go to the language model's endpoint.
    pub embedder: Option<Upstream>,
    pub decoding: Decoding,
}

pub struct Proxy {
    server: HttpServer,
    shared: Arc<Shared>,
}

struct Shared {
    models: Models,
    /// Required bearer token: keeps other local users off the user's own key.
    key: String,
    operation: Operation,
    folder: PathBuf,
    log: Mutex<CallLog>,
}

impl Proxy {
    pub fn start(name: &str, models: Models, run: &Path) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            models,
            key: format!("{name}-{:016x}", rand::random::<u64>()),
            operation: Operation::default(),
            folder: run.join(system_folder(name)),
            log: Mutex::default(),
        });
        let handler = Arc::clone(&shared);
        let server = HttpServer::start(Arc::new(move |request| handler.answer(&request)))?;
        Ok(Proxy { server, shared })
    }

    pub fn operation(&self) -> Operation {
        Arc::clone(&self.shared.operation)
    }

    pub fn llm(&self) -> ModelAddress {
        self.address(&self.shared.models.llm)
    }

    pub fn embedder(&self) -> Option<ModelAddress> {
        self.shared.models.embedder.as_ref().map(|embedder| self.address(embedder))
    }

    /// Says that all calls to a model failed, of those recorded in `folder` that `counts` selects: what a system made of them is worth
    /// nothing, even if it reports success.
    pub(super) fn all_failed(
        &self,
        folder: &Path,
        counts: impl Fn(&CallRow) -> bool,
    ) -> Result<Option<String>, JsonlError> {
        if !folder.join(CALLS).exists() {
            return Ok(None);
        }
        let mut log = self.shared.log();
        let rows = &log.folder(folder)?.calls.rows;
        for (model, embeds) in [("language model", false), ("embedder", true)] {
            let calls = rows.iter().filter(|row| row.path.ends_with("/embeddings") == embeds && counts(row));
            let statuses: Vec<u16> = calls.map(|row| row.status).collect();
            if let Some(last) = statuses.last()
                && !statuses.iter().any(|status| (200..300).contains(status))
            {
                let (all, folder) = (statuses.len(), folder.display());
                return Ok(Some(format!(
                    "all {all} of its calls to the {model} failed, the last with status {last} ({folder}/{CALLS})"
                )));
            }
        }
        Ok(None)
    }

    fn address(&self, upstream: &Upstream) -> ModelAddress {
        let (base_url, key) = (format!("{}/v1", self.server.url()), self.shared.key.clone());
        ModelAddress { base_url, key, model: upstream.model().to_owned(), dimensions: None }
    }
}

impl Shared {
    fn answer(&self, request: &Request) -> Response {
        let bearer = request.authorization.as_deref().and_then(|value| value.strip_prefix("Bearer "));
        if bearer != Some(&self.key) {
            return Response::error(401, "send the key that `hello` gives as the bearer token");
        }
        let Some(rest) = request.path.strip_prefix("/v1/") else {
            let message = format!("{} is no path of OpenAI's API; paths begin with /v1/", request.path);
            return Response::error(404, &message);
        };
        if !SERVED.contains(&(request.method.as_str(), rest)) {
            let served = SERVED.map(|(method, path)| format!("{method} /v1/{path}")).join(", ");
            let message =
                format!("{} {} is not passed on; these are: {served}", request.method, request.path);
            return Response::error(404, &message);
        }
        let upstream = match &self.models.embedder {
            Some(embedder) if rest == "embeddings" => embedder,
            _ => &self.models.llm,
        };
        if request.method == "GET" {
            return upstream.forward(rest, None);
        }
        match self.kept(request, upstream, rest) {
            Ok(response) => response,
            Err(error) => Response::error(500, &format!("the call cannot be kept: {error}")),
        }
    }

    /// Replays a recorded call, or forwards and records it.
    fn kept(&self, request: &Request, upstream: &Upstream, rest: &str) -> Result<Response, JsonlError> {
        let mut asked: Option<Value> = serde_json::from_slice(&request.body).ok();
        let temperature = asked.as_ref().and_then(|body| body["temperature"].as_f64());
        if let (Decoding::Greedy, Some(Value::Object(body))) = (self.models.decoding, &mut asked)
            && rest != "embeddings"
        {
            body.insert("temperature".to_owned(), 0.into());
            body.shift_remove("top_p");
        }
        let body = asked.as_ref().map_or_else(|| request.body.clone(), |body| body.to_string().into_bytes());
        let flight = self.flight();
        let digest = sha256([rest.as_bytes(), b"\n", &body].concat());
        let (key, kept) = self.log().begin(&flight, &digest)?;
        let replayed = kept.is_some();
        let (response, seconds) = match kept {
            Some(KeptResponse { status, content_type, body, seconds, .. }) => {
                (Response { status, content_type, body: body.into_bytes() }, seconds)
            }
            None => {
                let begun = Instant::now();
                (upstream.forward(rest, Some(&body)), begun.elapsed().as_secs_f64())
            }
        };
        let row = CallRow {
            phase: key.phase.clone(),
            about: key.about.clone(),
            path: request.path.clone(),
            request: digest,
            seconds,
            temperature,
            replayed,
            ..of_reply(&response, asked.as_ref())
        };
        self.log().end(&flight.folder, key, row, (!replayed).then_some(&response))?;
        Ok(response)
    }

    fn flight(&self) -> InFlight {
        let flight = self.operation.lock().unwrap_or_else(PoisonError::into_inner).clone();
        flight.unwrap_or_else(|| InFlight {
            folder: self.folder.clone(),
            phase: BETWEEN,
            about: String::new(),
            attempt: 0,
            serial: 0,
        })
    }

    fn log(&self) -> MutexGuard<'_, CallLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Row of a call with its reply, which may be streamed.
fn of_reply(response: &Response, asked: Option<&Value>) -> CallRow {
    let streamed = response.content_type.starts_with("text/event-stream");
    let part = if streamed { "delta" } else { "message" };
    let chunks: Vec<Value> = match streamed {
        true => {
            let body = String::from_utf8_lossy(&response.body);
            let events = body.lines().filter_map(|line| line.strip_prefix("data:"));
            events.filter_map(|event| serde_json::from_str(event).ok()).collect()
        }
        false => serde_json::from_slice(&response.body).into_iter().collect(),
    };
    let choices = || chunks.iter().map(|chunk| &chunk["choices"][0]);
    let finish = choices().rev().find_map(|choice| choice["finish_reason"].as_str());
    let usage = chunks.iter().rev().map(|chunk| &chunk["usage"]).find(|usage| usage.is_object());
    let usage = usage.unwrap_or(&Value::Null);
    let format = asked.and_then(|body| body["response_format"]["type"].as_str());
    let wants_json = matches!(format, Some("json_object" | "json_schema"));
    let parses = || {
        let said =
            choices().filter_map(|choice| choice[part]["content"].as_str().or(choice["text"].as_str()));
        let text: String = said.collect();
        serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok()
    };
    CallRow {
        status: response.status,
        prompt_tokens: usage["prompt_tokens"].as_u64(),
        cached_tokens: usage["prompt_tokens_details"]["cached_tokens"].as_u64(),
        completion_tokens: usage["completion_tokens"].as_u64(),
        finish_reason: finish.map(str::to_owned),
        json: (wants_json && (200..300).contains(&response.status)).then(parses),
        ..CallRow::default()
    }
}

/// Identifies a call within a case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct CallKey {
    phase: String,
    about: String,
    attempt: u32,
    request: String,
    /// Number of equal requests before it in this attempt.
    nth: usize,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct KeptResponse {
    #[serde(flatten)]
    key: CallKey,
    status: u16,
    content_type: String,
    body: String,
    seconds: f64,
}

#[derive(Debug, Default)]
struct CallLog {
    open: Option<Folder>,
    /// Counts of equal requests in the current operation, by digest.
    counts: HashMap<String, usize>,
    serial: u64,
}

#[derive(Debug)]
struct Folder {
    path: PathBuf,
    calls: RowLog<CallRow>,
    responses: RowLog<KeptResponse>,
}

impl CallLog {
    /// Returns the key of the next call, and its recorded reply if there is one.
    fn begin(
        &mut self,
        flight: &InFlight,
        request: &str,
    ) -> Result<(CallKey, Option<KeptResponse>), JsonlError> {
        if self.serial != flight.serial {
            self.serial = flight.serial;
            self.counts.clear();
            let calls = &mut self.folder(&flight.folder)?.calls;
            // Rows are from the last execution of an operation.
            let is_other = |row: &&CallRow| row.phase != flight.phase || row.about != flight.about;
            if flight.attempt == 0 {
                calls.rewrite(calls.rows.iter().filter(is_other).cloned().collect())?;
            }
        }
        let nth = self.counts.entry(request.to_owned()).or_default();
        let key = CallKey {
            phase: flight.phase.to_owned(),
            about: flight.about.clone(),
            attempt: flight.attempt,
            request: request.to_owned(),
            nth: *nth,
        };
        *nth += 1;
        let folder = self.folder(&flight.folder)?;
        let kept = folder.responses.rows.iter().rfind(|kept| kept.key == key).cloned();
        Ok((key, kept))
    }

    /// Records a call. Replies that are errors, which may be transient, or no text are not replayed.
    fn end(
        &mut self,
        folder: &Path,
        key: CallKey,
        row: CallRow,
        response: Option<&Response>,
    ) -> Result<(), JsonlError> {
        if let Some(Response { status, content_type, body }) = response {
            match String::from_utf8(body.clone()).ok().filter(|_| (200..300).contains(status)) {
                Some(body) => self.folder(folder)?.responses.append(KeptResponse {
                    key,
                    status: *status,
                    content_type: content_type.clone(),
                    body,
                    seconds: row.seconds,
                })?,
                None => {
                    if let Some(nth) = self.counts.get_mut(&key.request) {
                        *nth = key.nth;
                    }
                }
            }
        }
        self.folder(folder)?.calls.append(row)
    }

    fn folder(&mut self, path: &Path) -> Result<&mut Folder, JsonlError> {
        let open = match self.open.take().filter(|open| open.path == path) {
            Some(open) => open,
            None => {
                std::fs::create_dir_all(path).map_err(JsonlError::io("create", path))?;
                let responses = RowLog::open(path, RESPONSES)?;
                Folder { path: path.to_owned(), calls: RowLog::open(path, CALLS)?, responses }
            }
        };
        Ok(self.open.insert(open))
    }
}
