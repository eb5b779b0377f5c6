//! The server over real connections, with tiny checkpoints.

mod access;
mod answers;
pub mod attacks;
mod attention;
mod bad_input;
mod cite;
mod clients;
mod embeddings;
mod ends;
mod evict;
mod fields;
mod formats;
mod interventions;
mod keys;
mod load;
mod measures;
mod memory;
mod openapi;
mod operated;
mod page;
mod penalties;
mod probabilities;
mod sampling;
mod schema;
mod score;
mod tools;

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use candle_core::DType;
use palimpsest::api::{Keys, ServeError, ServeOptions, Server};
use palimpsest_core::engine::{ContextLength, LocalModel, LocalOptions, ThinkingOptions};
use palimpsest_core::model::ModelFiles;
use serde_json::{Value, json};
use ureq::Agent;
use ureq::http::Response;

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Tokens per chunk; small, so that short prompts have several chunks.
pub const CHUNK: usize = 16;

pub fn open(path: &Path, context: usize, thinking: ThinkingOptions) -> LocalModel {
    open_in(path, context, thinking, Formats::default())
}

/// Dtype of weights and products, and of the KV cache.
pub type Formats = (Option<DType>, Option<DType>);

pub fn open_in(path: &Path, context: usize, thinking: ThinkingOptions, formats: Formats) -> LocalModel {
    let (context, (dtype, cache_dtype)) = (ContextLength::Exactly(context), formats);
    let options =
        LocalOptions { context, chunk: CHUNK, thinking, dtype, cache_dtype, ..LocalOptions::default() };
    LocalModel::open(&ModelFiles::at(path).unwrap(), &options).unwrap()
}

/// A server of a model; stops when dropped.
pub struct Served {
    pub name: String,
    pub address: SocketAddr,
    pub stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    agent: Agent,
}

pub struct Setting {
    pub context: usize,
    pub queue: usize,
    pub key: Option<&'static str>,
    /// Text of a keys file; `key` if empty.
    pub keys: &'static str,
    pub share_prefixes: bool,
    pub thinking: ThinkingOptions,
    pub retrieval: Option<Vec<(usize, usize)>>,
    pub keep_alive: Duration,
    pub max_answer: usize,
    pub origins: &'static [&'static str],
    pub hosts: &'static [&'static str],
    pub formats: Formats,
}

impl Default for Setting {
    fn default() -> Self {
        Setting {
            context: 2048,
            queue: 8,
            key: None,
            keys: "",
            share_prefixes: false,
            thinking: ThinkingOptions::default(),
            keep_alive: Duration::from_secs(5),
            max_answer: 4096,
            origins: &[],
            hosts: &[],
            retrieval: None,
            formats: Formats::default(),
        }
    }
}

pub fn try_serve(
    path: &Path,
    setting: Setting,
    at: &str,
) -> Result<(Server, palimpsest_core::engine::thread::EngineLoop), ServeError> {
    let Setting {
        context, queue, thinking, keep_alive, max_answer, origins, hosts, retrieval, formats, ..
    } = setting;
    let model = open_in(path, context, thinking, formats);
    let options = ServeOptions {
        keys: match setting.keys {
            "" => setting.key.map_or_else(Keys::default, Keys::one),
            text => Keys::parse(text).unwrap(),
        },
        share_prefixes: setting.share_prefixes,
        queue,
        max_thinking: thinking.max,
        keep_alive,
        max_answer,
        origins: origins.iter().map(|origin| origin.parse().unwrap()).collect(),
        hosts: hosts.iter().map(|host| host.parse().unwrap()).collect(),
        retrieval,
        ..ServeOptions::default()
    };
    Server::new(TcpListener::bind(at).unwrap(), model, options)
}

pub fn serve_path(path: &Path, setting: Setting) -> Served {
    let (server, work) = try_serve(path, setting, "127.0.0.1:0").unwrap();
    let address = server.address().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&stop);
    let threads = vec![thread::spawn(move || server.run(asked).unwrap()), thread::spawn(move || work.run())];
    Served::at(path.file_name().unwrap().to_str().unwrap(), address, stop, threads)
}

pub fn serve(name: &str) -> Served {
    serve_path(&fixture(name), Setting::default())
}

impl Drop for Served {
    fn drop(&mut self) {
        self.end();
    }
}

/// Status and JSON of a reply.
pub struct Reply {
    pub status: u16,
    pub json: Value,
    pub retry_after: Option<String>,
}

impl Reply {
    fn of(mut response: Response<ureq::Body>) -> Self {
        let status = response.status().as_u16();
        let retry_after = response.headers().get("retry-after").map(|v| v.to_str().unwrap().to_owned());
        let text = response.body_mut().with_config().limit(1 << 30).read_to_string().unwrap();
        let json = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Reply { status, json, retry_after }
    }

    /// JSON of a successful reply.
    pub fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{}", self.json);
        self.json
    }

    /// Error of a rejected request with this status.
    pub fn refused(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.json);
        self.json["error"].clone()
    }
}

impl Served {
    /// A server that runs on these threads.
    pub fn at(name: &str, address: SocketAddr, stop: Arc<AtomicBool>, threads: Vec<JoinHandle<()>>) -> Self {
        let agent = Agent::config_builder().http_status_as_error(false).proxy(None).build().new_agent();
        Served { name: name.to_owned(), address, stop, threads, agent }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn get(&self, path: &str) -> Reply {
        Reply::of(self.agent.get(self.url(path)).call().unwrap())
    }

    fn send(&self, path: &str, body: &[u8], headers: &[(&str, &str)]) -> Response<ureq::Body> {
        let mut request = self.agent.post(self.url(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.send(body).unwrap()
    }

    pub fn post_as(&self, path: &str, body: &Value, headers: &[(&str, &str)]) -> Reply {
        Reply::of(self.send(path, body.to_string().as_bytes(), headers))
    }

    pub fn post_bytes(&self, path: &str, body: &[u8]) -> Reply {
        Reply::of(self.send(path, body, &[]))
    }

    pub fn post(&self, path: &str, body: Value) -> Reply {
        self.post_as(path, &self.asked(body), &[])
    }

    fn asked(&self, mut body: Value) -> Value {
        if body.get("model").is_none() {
            body["model"] = self.name.clone().into();
        }
        body
    }

    pub fn chat(&self, body: Value) -> Reply {
        self.post("/v1/chat/completions", body)
    }

    pub fn complete(&self, body: Value) -> Reply {
        self.post("/v1/completions", body)
    }

    /// The frames of a stream as they arrive.
    pub fn stream(&self, path: &str, body: Value) -> impl Iterator<Item = Value> + use<> {
        let mut body = self.asked(body);
        body["stream"] = true.into();
        let response = self.send(path, body.to_string().as_bytes(), &[]);
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let lines = BufReader::new(response.into_body().into_reader()).lines().map(Result::unwrap);
        lines.filter(|line| !line.is_empty() && !line.starts_with(':')).map(|line| {
            let data = line.strip_prefix("data: ").unwrap();
            serde_json::from_str(data).unwrap_or(Value::String(data.to_owned()))
        })
    }

    /// Value of a metric.
    pub fn metric(&self, name: &str) -> f64 {
        let Value::String(text) = self.get("/metrics").ok() else { panic!("metrics are text") };
        let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap();
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    }

    /// Stops the server and waits for it.
    pub fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

/// A single user message.
pub fn user(content: &str) -> Value {
    json!([{"role": "user", "content": content}])
}

/// Joined text of a stream, under `delta.KEY` or, for completions, `text`; and the last frame's `finish_reason`.
pub fn joined(frames: &[Value], choice: usize, key: &str) -> (String, String) {
    assert_eq!(frames.last().unwrap(), "[DONE]");
    let (mut text, mut reason) = (String::new(), String::new());
    for frame in frames {
        let Some(said) = frame["choices"].as_array().and_then(|choices| choices.first()) else { continue };
        if said["index"] != choice {
            continue;
        }
        let piece = if key == "text" { &said["text"] } else { &said["delta"][key] };
        text.push_str(piece.as_str().unwrap_or_default());
        reason.push_str(said["finish_reason"].as_str().unwrap_or_default());
    }
    (text, reason)
}
