//! A [`ChatModel`] behind an OpenAI-compatible HTTP endpoint: vLLM, SGLang, llama.cpp, a hosted model.
//!
//! Owns the address, the key, the retries and the wording of what can go wrong on the wire. Requests and replies have the few
//! fields that are needed, because servers differ in the others. Calls block; nothing here needs an event loop. The key comes
//! from the environment and is put into no error, log or file.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use ureq::Agent;
use ureq::http::header::{AUTHORIZATION, CONTENT_TYPE, LOCATION, RETRY_AFTER};
use ureq::http::{HeaderValue, Uri};

use super::{CallTokens, ChatError, ChatModel, Message, Reply, Sampling, StopReason};
use palimpsest_core::text::{ReasoningEffort, Split};

mod api;
mod server;

pub use server::{ServerCard, ServerModel};

/// Where the key is looked for, in this order.
pub const KEY_VARIABLES: [&str; 2] = ["PALIMPSEST_API_KEY", "OPENAI_API_KEY"];

/// Most characters of a server's own words that an error repeats.
const QUOTED: usize = 300;

/// Words of servers that refuse a prompt longer than their context, in lower case: OpenAI and vLLM, SGLang, llama.cpp.
const TOO_LONG: [&str; 5] = [
    "context_length_exceeded",
    "maximum context length",
    "longer than the model's context length",
    "exceed_context_size",
    "exceeds the available context size",
];

/// Most bytes of a reply: far more than any answer has.
const LONGEST_REPLY: u64 = 64 << 20;

/// Timeouts and retries of an [`Endpoint`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Patience {
    /// For one attempt, from connecting to the reply's last byte.
    pub timeout: Duration,
    /// Attempts after the first one.
    pub retries: usize,
    /// Before the first retry; doubled for each further one, with jitter.
    pub first_delay: Duration,
    /// Most that is waited between attempts, whatever the server's `Retry-After` says.
    pub longest_delay: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience {
            timeout: Duration::from_secs(600),
            retries: 5,
            first_delay: Duration::from_millis(500),
            longest_delay: Duration::from_secs(60),
        }
    }
}

/// A model behind an endpoint. A clone shares its connections and counts tokens of its own.
#[derive(Clone)]
pub struct Endpoint {
    /// Without the model and a slash at the end.
    base: String,
    url: String,
    model: String,
    key: Option<Key>,
    patience: Patience,
    agent: Agent,
    /// Newer hosted models refuse `max_tokens` and name its successor; older servers know only `max_tokens`.
    completion_limit: CompletionLimit,
    /// Of all replies since it was asked for last.
    usage: Option<CallTokens>,
    thinking: EndpointThinking,
    stops: Vec<String>,
    /// Sent as `response_format`.
    response_format: Option<Value>,
}

/// Settings of an endpoint's thoughts. By default nothing, as servers differ in what they take.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EndpointThinking {
    /// True if the model was told to think. A reply that its limit cut then began inside a thought, where it holds no marker.
    pub on: bool,
    /// Sent as `chat_template_kwargs`, the variables that the server renders its chat template with; empty sends nothing.
    pub chat_template_kwargs: Map<String, Value>,
    /// Sent as `reasoning_effort`.
    pub reasoning_effort: Option<ReasoningEffort>,
    /// Most tokens of a thought, added to the request's limit; 0 adds none.
    pub max_tokens: usize,
}

/// A secret key of an endpoint.
#[derive(Clone)]
pub struct Key {
    secret: String,
    header: HeaderValue,
}

#[derive(Clone, Copy, PartialEq)]
enum CompletionLimit {
    MaxTokens,
    MaxCompletionTokens,
}

/// The failure of one attempt.
enum Failure {
    /// Connecting, sending or receiving.
    Transport(ureq::Error),
    /// The server answered with an error.
    Status { status: u16, body: String, retry_after: Option<Duration> },
    /// The server answered 200 with something that is no chat completion.
    Unreadable { reason: String, body: String },
    /// The server answered 200, and its JSON ends in the middle.
    Cut { body: String },
}

impl Failure {
    /// True if the same request may well succeed later.
    fn is_passing(&self) -> bool {
        match self {
            Failure::Transport(error) => !matches!(error, ureq::Error::BadUri(_) | ureq::Error::Http(_)),
            Failure::Status { status, .. } => matches!(status, 408 | 429 | 500..=599),
            Failure::Unreadable { .. } => false,
            Failure::Cut { .. } => true,
        }
    }
}

/// The body of a request. `max_tokens` is deprecated, and the only name that every server knows.
#[derive(Serialize)]
struct Request<'a> {
    model: &'a str,
    messages: &'a [Message],
    temperature: f32,
    top_p: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_effort: Option<ReasoningEffort>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    chat_template_kwargs: &'a Map<String, Value>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    stop: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    response_format: Option<&'a Value>,
}

#[derive(Deserialize)]
struct Completion {
    choices: Vec<Choice>,
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Choice {
    message: ReplyMessage,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct ReplyMessage {
    content: Option<Content>,
    /// In the place of the content, where a hosted model declines.
    refusal: Option<String>,
    /// The thought, as vLLM and SGLang call it.
    reasoning_content: Option<Value>,
    /// The same, as newer ones and OpenRouter do. Of any type: some servers have an object there.
    reasoning: Option<Value>,
}

/// The content: a text, or parts of one, as some hosted models have it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<ContentPart>),
}

/// `{"type": "text", "text": "..."}`; of a thought `{"type": "thinking", "thinking": [...]}` with parts or a text in it.
#[derive(Deserialize)]
struct ContentPart {
    text: Option<String>,
    thinking: Option<Content>,
}

impl Content {
    /// Its text without thoughts, and the thoughts.
    fn split(self) -> (String, String) {
        let parts = match self {
            Content::Text(text) => return (text, String::new()),
            Content::Parts(parts) => parts,
        };
        let (mut text, mut thought) = (String::new(), String::new());
        for part in parts {
            text.extend(part.text);
            thought.extend(part.thinking.map(|inner| inner.split().0));
        }
        (text, thought)
    }
}

impl ReplyMessage {
    /// The thought that the server has split off itself.
    fn thought(&self) -> Option<&str> {
        let fields = [&self.reasoning_content, &self.reasoning].into_iter().flatten();
        fields.filter_map(Value::as_str).map(str::trim).find(|text| !text.is_empty())
    }
}

/// In the place of an answer that the server withheld.
const FILTERED: &str = "(the server's content filter withheld the answer)";

/// The wait that a server asks for: seconds, or a date, less the time of the clock here.
fn retry_after(header: &str) -> Option<Duration> {
    if let Ok(seconds) = header.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let then = jiff::fmt::rfc2822::parse(header.trim()).ok()?.timestamp();
    let wait = then.duration_since(jiff::Timestamp::now());
    Some(Duration::try_from(wait).unwrap_or_default())
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<usize>,
    completion_tokens: Option<usize>,
}

impl Endpoint {
    /// The endpoint that `address` names: `http://host[:port]/v1#model`. The key is the first of [`KEY_VARIABLES`] that
    /// is set, or none.
    pub fn from_address(address: &str, patience: Patience) -> Result<Self, ChatError> {
        let key = KEY_VARIABLES.iter().find_map(|name| {
            let value = std::env::var(name).ok()?;
            (!value.trim().is_empty()).then_some((*name, value))
        });
        let key = key.map(|(name, value)| Key::new(name, value.trim())).transpose()?;
        Endpoint::new(address, key, patience)
    }

    /// The endpoint at an address, with this key.
    pub fn new(address: &str, key: Option<Key>, patience: Patience) -> Result<Self, ChatError> {
        let Address { base, host, model } = Address::parse(address)?;
        let url = format!("{base}/chat/completions");
        let mut config = Agent::config_builder()
            .timeout_global(Some(patience.timeout))
            .timeout_connect(Some(patience.timeout.min(Duration::from_secs(30))))
            // An error's body says what is wrong.
            .http_status_as_error(false)
            // A redirected POST would arrive as a GET, and perhaps with the key at a stranger's.
            .max_redirects(0)
            .max_redirects_will_error(false);
        if matches!(host.as_str(), "localhost" | "127.0.0.1" | "[::1]") {
            config = config.proxy(None);
        }
        let completion_limit = CompletionLimit::MaxTokens;
        Ok(Endpoint {
            base,
            url,
            model,
            key,
            patience,
            agent: config.build().new_agent(),
            completion_limit,
            usage: None,
            thinking: EndpointThinking::default(),
            stops: Vec::new(),
            response_format: None,
        })
    }

    /// The same endpoint, told about thoughts.
    #[must_use]
    pub fn thinking(self, thinking: EndpointThinking) -> Self {
        Endpoint { thinking, ..self }
    }

    /// The same endpoint, told strings that end an answer.
    #[must_use]
    pub fn stopping_at(self, stops: Vec<String>) -> Self {
        Endpoint { stops, ..self }
    }

    /// Refuses an endpoint that nobody answers at, at once and without retries: for the start of a long job. Any HTTP
    /// response will do, and so will a slow one; what it says comes out with the first request.
    pub fn check_reachable(&self) -> Result<(), ChatError> {
        let mut request = self.agent.get(&self.base);
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key.header.clone());
        }
        match request.config().timeout_global(Some(Duration::from_secs(10))).build().call() {
            Err(error) if is_connect(&error) => Err(self.failed(&Failure::Transport(error))),
            _ => Ok(()),
        }
    }

    fn request<'a>(&'a self, messages: &'a [Message], sampling: &Sampling) -> Request<'a> {
        let limit = sampling.max_new_tokens.saturating_add(self.thinking.max_tokens);
        let (max_tokens, max_completion_tokens) = match self.completion_limit {
            CompletionLimit::MaxTokens => (Some(limit), None),
            CompletionLimit::MaxCompletionTokens => (None, Some(limit)),
        };
        Request {
            model: &self.model,
            messages,
            temperature: sampling.temperature as f32,
            top_p: sampling.top_p as f32,
            seed: i64::try_from(sampling.seed).ok(),
            max_tokens,
            max_completion_tokens,
            reasoning_effort: self.thinking.reasoning_effort,
            chat_template_kwargs: &self.thinking.chat_template_kwargs,
            stop: &self.stops,
            response_format: self.response_format.as_ref(),
        }
    }

    /// One request, a POST of JSON where there is a body and a GET where there is none, and what came back with a status of success.
    fn exchange(&self, url: &str, body: Option<&[u8]>) -> Result<Vec<u8>, Failure> {
        let key = self.key.as_ref().map(|key| (AUTHORIZATION, key.header.clone()));
        let sent = match body {
            Some(body) => {
                let request = self.agent.post(url).header(CONTENT_TYPE, "application/json");
                key.into_iter().fold(request, |request, (name, key)| request.header(name, key)).send(body)
            }
            None => {
                let request = self.agent.get(url);
                let request = key.into_iter().fold(request, |request, (name, key)| request.header(name, key));
                // A GET costs a server nothing.
                let timeout = self.patience.timeout.min(Duration::from_secs(30));
                request.config().timeout_global(Some(timeout)).build().call()
            }
        };
        let mut response = sent.map_err(Failure::Transport)?;
        let status = response.status();
        let header = |name| response.headers().get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
        let retry_after = header(RETRY_AFTER).as_deref().and_then(retry_after);
        let location = header(LOCATION);
        let reader = response.body_mut().with_config().limit(LONGEST_REPLY);
        let bytes = reader.read_to_vec().map_err(Failure::Transport)?;
        if !status.is_success() {
            let text = String::from_utf8_lossy(&bytes);
            let body = location.map_or_else(|| text.into_owned(), |to| format!("redirected to {to}"));
            return Err(Failure::Status { status: status.as_u16(), body, retry_after });
        }
        Ok(bytes)
    }

    fn attempt(&self, body: &[u8]) -> Result<Reply, Failure> {
        let bytes = self.exchange(&self.url, Some(body))?;
        let text = String::from_utf8_lossy(&bytes);
        let unreadable = |reason: String| Failure::Unreadable { reason, body: text.to_string() };
        let completion: Completion = serde_json::from_slice(&bytes).map_err(|e| match e.is_eof() {
            // A body that ends with the connection has no length to fall short of.
            true if bytes.starts_with(b"{") => Failure::Cut { body: text.to_string() },
            _ => unreadable(format!("it is no chat completion: {e}")),
        })?;
        let choice = completion
            .choices
            .into_iter()
            .next()
            .ok_or_else(|| unreadable("it has no choices".to_owned()))?;
        let own = choice.message.thought().map(str::to_owned);
        let (content, of_parts) = choice.message.content.map(Content::split).unwrap_or_default();
        let own = own.or(Some(of_parts.trim().to_owned()).filter(|text| !text.is_empty()));
        let at_limit = matches!(choice.finish_reason.as_deref(), Some("length" | "max_tokens"));
        // The server's template may have opened the thought: what was cut before its end holds no marker, and is no answer.
        let inside = self.thinking.on && at_limit && own.is_none() && !Split::is_marked(&content);
        let Split { thought, answer } = match inside && !content.trim().is_empty() {
            true => Split { thought: Some(content.trim().to_owned()), answer: None },
            false => Split::of_foreign(&content),
        };
        let answer = answer.filter(|answer| !answer.trim().is_empty());
        let refusal = choice.message.refusal.filter(|text| !text.trim().is_empty() && answer.is_none());
        // A filter is a refusal: the same request would come to the same.
        let filtered = || choice.finish_reason.as_deref() == Some("content_filter") && answer.is_none();
        let refusal = refusal.or_else(|| filtered().then(|| FILTERED.to_owned()));
        let refused = refusal.is_some();
        let answer = answer.or(refusal);
        let thought = match (own, thought) {
            (Some(own), Some(thought)) => Some(format!("{own}\n\n{thought}")),
            (own, thought) => own.or(thought),
        };
        if answer.is_none() && thought.is_none() {
            let why = choice.finish_reason.as_deref().unwrap_or("none");
            return Err(unreadable(format!(
                "its message has no content (finish_reason {why}); a reasoning model needs more new tokens"
            )));
        }
        let stop = match choice.finish_reason.as_deref() {
            _ if refused => StopReason::Refused,
            _ if at_limit => StopReason::MaxNewTokens,
            _ => StopReason::EndOfTurn,
        };
        let stop = stop.seen_in(answer.is_some());
        let text = answer.unwrap_or_default();
        let (prompt_tokens, completion_tokens) =
            completion.usage.map_or((None, None), |u| (u.prompt_tokens, u.completion_tokens));
        Ok(Reply { text, thought, stop, prompt_tokens, completion_tokens })
    }

    /// Sends until there is a reply, a lasting failure, or no patience left.
    fn send(&self, messages: &[Message], sampling: &Sampling) -> Result<Reply, Failure> {
        let body = serde_json::to_vec(&self.request(messages, sampling)).map_err(|e| {
            Failure::Unreadable { reason: format!("the request cannot be written: {e}"), body: String::new() }
        })?;
        self.retrying(|| self.attempt(&body))
    }

    /// Tries until it succeeds, or fails for good, or no patience is left.
    fn retrying<T>(&self, attempt: impl Fn() -> Result<T, Failure>) -> Result<T, Failure> {
        let longest = self.patience.longest_delay;
        let mut delays = ExponentialBuilder::default()
            .with_min_delay(self.patience.first_delay)
            .with_max_delay(longest)
            .with_max_times(self.patience.retries)
            .with_jitter()
            .build();
        loop {
            let failure = match attempt() {
                Err(failure) if failure.is_passing() => failure,
                done => return done,
            };
            // No header makes more attempts than there are.
            let Some(delay) = delays.next() else { return Err(failure) };
            let asked = match &failure {
                Failure::Status { retry_after, .. } => *retry_after,
                _ => None,
            };
            let delay = asked.unwrap_or(delay).min(longest);
            tracing::warn!("{}; trying again in {:.1} s", self.explain(&failure), delay.as_secs_f64());
            std::thread::sleep(delay);
        }
    }

    fn failed(&self, failure: &Failure) -> ChatError {
        let message = self.explain(failure);
        ChatError { too_long: says_too_long(&message), message }
    }

    /// One line: the address, what happened, what to do.
    fn explain(&self, failure: &Failure) -> String {
        let (what, remedy) = match failure {
            Failure::Transport(ureq::Error::Timeout(_)) => (
                format!("no reply within {:.0} s", self.patience.timeout.as_secs_f64()),
                "is the server overloaded, or the context too long for it?",
            ),
            Failure::Transport(error) if is_connect(error) => (
                format!("no connection ({})", innermost(error)),
                "is the server running, and the host and port right?",
            ),
            Failure::Transport(error) => {
                (format!("the connection broke ({})", innermost(error)), "look at the server's log")
            }
            Failure::Status { status, body, .. } => (
                format!("status {status}: {}", self.quote(body)),
                match status {
                    401 | 403 => {
                        "set PALIMPSEST_API_KEY (or OPENAI_API_KEY) to a key that the server accepts"
                    }
                    404 => "is the path right (usually it ends in /v1), and does the server have this model?",
                    400 | 413 | 422 => {
                        "the server refuses this request: is the context too long for the model?"
                    }
                    429 => {
                        "the server limits the rate or the quota is used up; start the same command again later"
                    }
                    300..=399 => "give the address that it redirects to",
                    _ => "look at the server's log",
                },
            ),
            Failure::Cut { body } => (
                format!("the connection broke in the middle of the reply: {}", self.quote(body)),
                "look at the server's log",
            ),
            Failure::Unreadable { reason, body } => (
                format!("the reply cannot be used: {reason}: {}", self.quote(body)),
                "is this an OpenAI-compatible endpoint?",
            ),
        };
        format!("endpoint {} model {}: {what}; {remedy}", self.url, self.model)
    }

    /// The beginning of what a server said, on one line and without the key, should the server repeat it.
    fn quote(&self, body: &str) -> String {
        let mut text = body.split_whitespace().collect::<Vec<_>>().join(" ");
        if let Some(key) = &self.key {
            text = text.replace(&key.secret, "[key]");
        }
        match text.char_indices().nth(QUOTED) {
            Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
            None if text.is_empty() => "(nothing more)".to_owned(),
            None => text,
        }
    }
}

impl ChatModel for Endpoint {
    fn name(&self) -> String {
        format!("{}#{}", self.base, self.model)
    }

    fn reply(&mut self, messages: &[Message], sampling: &Sampling) -> Result<Reply, ChatError> {
        let mut outcome = self.send(messages, sampling);
        if let Err(Failure::Status { status: 400, body, .. }) = &outcome
            && self.completion_limit == CompletionLimit::MaxTokens
            && body.contains("max_completion_tokens")
        {
            self.completion_limit = CompletionLimit::MaxCompletionTokens;
            outcome = self.send(messages, sampling);
        }
        if let Ok(reply) = &outcome {
            let before = self.usage.unwrap_or(CallTokens { computed: Some(0), generated: Some(0) });
            let sum = |a: Option<usize>, b: Option<usize>| a.zip(b).map(|(a, b)| a + b);
            self.usage = Some(CallTokens {
                computed: sum(before.computed, reply.prompt_tokens),
                generated: sum(before.generated, reply.completion_tokens),
            });
        }
        outcome.map_err(|failure| self.failed(&failure))
    }

    fn take_tokens(&mut self) -> CallTokens {
        self.usage.take().unwrap_or_default()
    }
}

impl std::fmt::Debug for Endpoint {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("url", &self.url).field("model", &self.model).finish_non_exhaustive()
    }
}

impl Key {
    /// The key `secret` from `source`, which errors name.
    pub fn new(source: &str, secret: &str) -> Result<Self, ChatError> {
        let mut header = HeaderValue::from_str(&format!("Bearer {secret}")).map_err(|_| {
            ChatError::from(format!(
                "{source} holds characters that no HTTP header can carry; set it to the bare key"
            ))
        })?;
        header.set_sensitive(true);
        Ok(Key { secret: secret.to_owned(), header })
    }
}

/// `http://host[:port]/v1#model`, taken apart.
struct Address {
    /// Without the model and a slash at the end.
    base: String,
    host: String,
    model: String,
}

impl Address {
    fn parse(address: &str) -> Result<Self, ChatError> {
        const FORM: &str = "give http://host[:port]/v1#model, for example http://127.0.0.1:8000/v1#qwen3-8b";
        let (base, model) = address.split_once('#').unwrap_or((address, ""));
        let lower = base.to_lowercase();
        // The address is not repeated where it may hold a password.
        if !["http://", "https://"].iter().any(|scheme| lower.starts_with(scheme)) && !base.contains('@') {
            return Err(ChatError::from(format!("endpoint `{address}` is no http or https address; {FORM}")));
        }
        let uri: Uri = base
            .parse()
            .map_err(|e| ChatError::from(format!("the endpoint's address does not parse ({e}); {FORM}")))?;
        let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
        if authority.contains('@') || uri.query().is_some() {
            let keys = KEY_VARIABLES.join(" or ");
            return Err(ChatError::from(format!(
                "the endpoint's address holds a user, a password or a query; put the key into {keys} and {FORM}"
            )));
        }
        let host = uri.host().unwrap_or_default().to_lowercase();
        let Some(scheme @ ("http" | "https")) = uri.scheme_str().filter(|_| !host.is_empty()) else {
            return Err(ChatError::from(format!("endpoint `{address}` is no http or https address; {FORM}")));
        };
        if model.is_empty() {
            return Err(ChatError::from(format!("endpoint `{address}` names no model; {FORM}")));
        }
        let usual = if scheme == "http" { 80 } else { 443 };
        let port = uri.port_u16().filter(|port| *port != usual);
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        let path = uri.path().trim_end_matches('/');
        Ok(Address { base: format!("{scheme}://{host}{port}{path}"), host, model: model.to_owned() })
    }
}

/// True if nobody could be reached at all.
fn is_connect(error: &ureq::Error) -> bool {
    use std::io::ErrorKind;
    match error {
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed | ureq::Error::Tls(_) => true,
        ureq::Error::Io(error) => matches!(
            error.kind(),
            ErrorKind::ConnectionRefused
                | ErrorKind::AddrNotAvailable
                | ErrorKind::HostUnreachable
                | ErrorKind::NetworkUnreachable
        ),
        _ => false,
    }
}

/// The last error of the chain: `Connection refused`, not `io: Connection refused`.
fn innermost(error: &ureq::Error) -> String {
    let mut inner: &dyn std::error::Error = match error {
        ureq::Error::Io(error) => error,
        error => error,
    };
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

fn says_too_long(message: &str) -> bool {
    let said = message.to_lowercase();
    TOO_LONG.iter().any(|words| said.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_says_in_seconds_or_by_a_date_when_to_come_back() {
        assert_eq!(retry_after(" 7 "), Some(Duration::from_secs(7)));
        assert_eq!(retry_after("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO), "it is past");
        let then = jiff::Timestamp::now() + Duration::from_secs(1000);
        let date = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&then).unwrap();
        let wait = retry_after(&date).unwrap();
        assert!((900..=1000).contains(&wait.as_secs()), "{wait:?}");
        assert_eq!(retry_after("soon"), None);
    }

    #[test]
    fn a_servers_refusal_of_a_long_prompt_is_known() {
        for long in [
            "endpoint http://h model m: status 400: {\"message\":\"This model's maximum context length is 8192 tokens.\"}; remedy",
            "endpoint http://h model m: status 400: {\"code\":\"context_length_exceeded\"}; remedy",
            "status 400: the request exceeds the available context size. try increasing the context size",
            "status 400: The input (9000 tokens) is longer than the model's context length (8192 tokens).",
        ] {
            assert!(says_too_long(long), "{long}");
        }
        for other in [
            "endpoint http://h model m: status 500: out of memory",
            "not asked: row 3",
            "the model gave no answer",
        ] {
            assert!(!says_too_long(other), "{other}");
        }
    }
}
