//! A [`ChatModel`] over an OpenAI-compatible HTTP endpoint: vLLM, SGLang, llama.cpp, hosted models.
//!
//! Owns the address, key, retries and error messages. Uses only the fields it needs, since servers differ in the others. Calls block. The
//! key comes from the environment, goes to its own server alone ([`KeyArgs`]), and is removed from all that the server says.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use serde_json::{Map, Value, json};
use ureq::http::header::{AUTHORIZATION, CONTENT_TYPE, LOCATION, RETRY_AFTER};
use ureq::http::{Response, Uri};
use ureq::{Agent, Body, Proxy, ProxyProtocol};

use super::{CallTokens, ChatError, ChatModel, Message, Reply, Sampling, StopReason};
use crate::http::{is_loopback, retry_after};
use palimpsest_core::engine::before_stop;
use palimpsest_core::text::ReasoningEffort;

mod api;
mod failure;
mod keys;
mod parameters;
mod reply;
mod server;

pub use api::Passed;
pub use keys::{Key, KeyArgs, Keys};
pub use server::{ServerCard, ServerModel};

use failure::{Failure, error_in, is_connect, says_too_long};
use parameters::{LeftOut, Parameter};

const QUOTED: usize = 300;

const LONGEST_REPLY: u64 = 64 << 20;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Patience {
    /// Per attempt, from connect to last byte.
    pub timeout: Duration,
    pub retries: usize,
    /// Before the first retry; doubles each time, with jitter.
    pub first_delay: Duration,
    /// Maximum delay between attempts; caps `Retry-After`.
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

/// Clones share connections and count their own tokens.
#[derive(Clone)]
pub struct Endpoint {
    /// Without model and trailing slash.
    base: String,
    host: String,
    url: String,
    model: String,
    key: Option<Key>,
    patience: Patience,
    agent: Agent,
    proxy: Option<Between>,
    /// Parameters the server rejects, shared by clones.
    left_out: LeftOut,
    usage: Option<CallTokens>,
    thinking: EndpointThinking,
    stops: Vec<String>,
    response_format: Option<Value>,
}

/// Thinking settings. The default sends nothing, since servers differ.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EndpointThinking {
    /// The model was told to think; a truncated reply without a marker then counts as thought.
    pub on: bool,
    pub chat_template_kwargs: Map<String, Value>,
    pub reasoning_effort: Option<ReasoningEffort>,
    /// Maximum thinking tokens, added to the request's limit.
    pub max_tokens: usize,
}

/// True for an address, false for the name of a local model or a command.
pub fn is_address(text: &str) -> bool {
    let begins_with =
        |scheme: &str| text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    begins_with("http://") || begins_with("https://")
}

impl Endpoint {
    /// `http://host[:port]/v1#model`, with its server's key.
    pub fn from_address(address: &str, keys: &Keys, patience: Patience) -> Result<Self, ChatError> {
        Endpoint::new(address, keys.of(address), patience)
    }

    pub fn new(address: &str, key: Option<Key>, patience: Patience) -> Result<Self, ChatError> {
        let (base, host, model) = parse_address(address)?;
        let url = format!("{base}/chat/completions");
        let (through, proxy) = if is_loopback(&host) { (None, None) } else { Between::of(&url) };
        let config = Agent::config_builder()
            .timeout_global(Some(patience.timeout))
            .timeout_connect(Some(patience.timeout.min(Duration::from_secs(30))))
            .http_status_as_error(false)
            // A redirected POST becomes a GET, possibly sending the key to another host.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(through);
        Ok(Endpoint {
            base,
            host,
            url,
            model,
            key,
            patience,
            agent: config.build().new_agent(),
            proxy,
            left_out: LeftOut::default(),
            usage: None,
            thinking: EndpointThinking::default(),
            stops: Vec::new(),
            response_format: None,
        })
    }

    #[must_use]
    pub fn thinking(self, thinking: EndpointThinking) -> Self {
        Endpoint { thinking, ..self }
    }

    #[must_use]
    pub fn stopping_at(self, stops: Vec<String>) -> Self {
        Endpoint { stops, ..self }
    }

    /// Fails if nothing answers, without retries. Any HTTP response or a timeout passes.
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

    fn value(&self, parameter: Parameter, sampling: &Sampling) -> Option<Value> {
        let EndpointThinking { chat_template_kwargs: kwargs, reasoning_effort, max_tokens, .. } =
            &self.thinking;
        match parameter {
            Parameter::Temperature => Some(sampling.temperature.into()),
            Parameter::TopP => Some(sampling.top_p.into()),
            Parameter::Seed => i64::try_from(sampling.seed).ok().map(Value::from),
            Parameter::Stop => (!self.stops.is_empty()).then(|| json!(self.stops)),
            Parameter::ReasoningEffort => reasoning_effort.map(|effort| json!(effort)),
            Parameter::ChatTemplateKwargs => (!kwargs.is_empty()).then(|| json!(kwargs)),
            Parameter::ResponseFormat => self.response_format.clone(),
            Parameter::MaxTokens => Some(sampling.max_new_tokens.saturating_add(*max_tokens).into()),
        }
    }

    /// The request without rejected parameters. `max_tokens` is deprecated but understood by every server.
    fn body(&self, messages: &[Message], sampling: &Sampling, left_out: &[Parameter]) -> String {
        let mut body = json!({ "model": self.model, "messages": messages });
        for parameter in Parameter::ALL {
            let name = match parameter {
                Parameter::MaxTokens if left_out.contains(&parameter) => "max_completion_tokens",
                _ if left_out.contains(&parameter) => continue,
                _ => parameter.name(),
            };
            if let Some(value) = self.value(parameter, sampling) {
                body[name] = value;
            }
        }
        body.to_string()
    }

    /// Sends one request with the key.
    fn call(&self, url: &str, body: Option<&[u8]>) -> Result<Response<Body>, ureq::Error> {
        let key = self.key.as_ref().map(|key| (AUTHORIZATION, key.header.clone()));
        match body {
            Some(body) => {
                let request = self.agent.post(url).header(CONTENT_TYPE, "application/json");
                key.into_iter().fold(request, |request, (name, key)| request.header(name, key)).send(body)
            }
            None => {
                let request = self.agent.get(url);
                let request = key.into_iter().fold(request, |request, (name, key)| request.header(name, key));
                let timeout = self.patience.timeout.min(Duration::from_secs(30));
                request.config().timeout_global(Some(timeout)).build().call()
            }
        }
    }

    /// All that a server says passes here, before it is read, quoted or kept.
    fn redacted(&self, said: Vec<u8>) -> Vec<u8> {
        match &self.key {
            Some(key) => key.redacted(said),
            None => said,
        }
    }

    fn redacted_text(&self, said: String) -> String {
        String::from_utf8_lossy(&self.redacted(said.into_bytes())).into_owned()
    }

    fn exchange(&self, url: &str, body: Option<&[u8]>) -> Result<Vec<u8>, Failure> {
        let mut response = self.call(url, body).map_err(Failure::Transport)?;
        let status = response.status();
        let header = |name| response.headers().get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
        let retry_after = header(RETRY_AFTER).as_deref().and_then(retry_after);
        let location = header(LOCATION).map(|to| self.redacted_text(to));
        let reader = response.body_mut().with_config().limit(LONGEST_REPLY);
        let bytes = self.redacted(reader.read_to_vec().map_err(Failure::Transport)?);
        if !status.is_success() {
            let text = String::from_utf8_lossy(&bytes);
            let body = location.map_or_else(|| text.into_owned(), |to| format!("redirected to {to}"));
            return Err(Failure::Status { status: status.as_u16(), body, retry_after });
        }
        error_in(&bytes, retry_after).map_or(Ok(bytes), Err)
    }

    fn send(
        &self,
        messages: &[Message],
        sampling: &Sampling,
        left_out: &[Parameter],
    ) -> Result<Reply, Failure> {
        let body = self.body(messages, sampling, left_out);
        let in_thought = self.thinking.on && !left_out.contains(&Parameter::ChatTemplateKwargs);
        let read = || reply::read(&self.exchange(&self.url, Some(body.as_bytes()))?, in_thought);
        let mut reply = self.retrying(read)?;
        // A text that is JSON may escape the key once more, and whoever parses it would get the key.
        reply.text = self.redacted_text(reply.text);
        reply.thought = reply.thought.map(|thought| self.redacted_text(thought));
        if left_out.contains(&Parameter::Stop) && reply.stop != StopReason::Refused {
            let end = before_stop(&reply.text, &self.stops).len();
            if end < reply.text.len() {
                reply.text.truncate(end);
                reply.stop = StopReason::EndOfTurn;
            }
        }
        Ok(reply)
    }

    fn sent(&self, sampling: &Sampling, left_out: &[Parameter]) -> Vec<Parameter> {
        let is_sent = |one: &Parameter| !left_out.contains(one) && self.value(*one, sampling).is_some();
        Parameter::ALL.into_iter().filter(is_sent).collect()
    }

    /// Sends the request; on rejection by name, omits the parameter from then on.
    fn send_accepted(&self, messages: &[Message], sampling: &Sampling) -> Result<Reply, Failure> {
        let mut left_out = self.left_out.now();
        let mut outcome = self.send(messages, sampling, &left_out);
        while let Err(failure) = &outcome
            && let Some(body) = failure.refusal().filter(|body| !says_too_long(body))
            && let Some(refused) = Parameter::refused(body, &self.sent(sampling, &left_out), sampling)
        {
            left_out.push(refused);
            outcome = self.send(messages, sampling, &left_out);
        }
        let new = if outcome.is_ok() { self.left_out.add(&left_out) } else { Vec::new() };
        for parameter in new.into_iter().filter(|parameter| *parameter != Parameter::MaxTokens) {
            tracing::warn!(
                "{}: it refuses `{}`, which is left out from here on; the rows say so (refused_parameters)",
                self.name(),
                parameter.name()
            );
        }
        outcome
    }

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
            // `Retry-After` does not add attempts.
            let Some(delay) = delays.next() else { return Err(failure) };
            let delay = failure.retry_after().unwrap_or(delay).min(longest);
            tracing::warn!("{}; trying again in {:.1} s", self.explain(&failure), delay.as_secs_f64());
            std::thread::sleep(delay);
        }
    }

    fn failed(&self, failure: &Failure) -> ChatError {
        let message = self.explain(failure);
        let is_empty = matches!(failure, Failure::Empty { .. });
        ChatError { too_long: says_too_long(&message), is_empty, message }
    }

    /// One line: address, problem, remedy.
    fn explain(&self, failure: &Failure) -> String {
        let (what, remedy) = failure.words(self.patience.timeout, quote);
        let Endpoint { url, host, model, proxy, key, .. } = self;
        let remedy = match failure {
            Failure::Status { status: 401 | 403, .. } => {
                key.as_ref().map_or_else(|| keys::wanted(host), |key| key.refused(host))
            }
            _ => remedy.to_owned(),
        };
        match proxy {
            None => format!("endpoint {url} model {model}: {what}; {remedy}"),
            Some(proxy) => {
                let remedy = match failure {
                    Failure::Transport(error) if is_connect(error) => proxy.remedy(host),
                    _ => remedy,
                };
                format!("endpoint {url} model {model}, {proxy}: {what}; {remedy}")
            }
        }
    }
}

/// Start of a server message, on one line.
fn quote(body: &str) -> String {
    let text = body.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None if text.is_empty() => "(nothing more)".to_owned(),
        None => text,
    }
}

impl ChatModel for Endpoint {
    fn name(&self) -> String {
        format!("{}#{}", self.base, self.model)
    }

    fn reply(&mut self, messages: &[Message], sampling: &Sampling) -> Result<Reply, ChatError> {
        let outcome = self.send_accepted(messages, sampling);
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

    fn refused_parameters(&self) -> Vec<String> {
        let left_out = self.left_out.now().into_iter().filter(|parameter| *parameter != Parameter::MaxTokens);
        left_out.map(|parameter| parameter.name().to_owned()).collect()
    }

    fn take_tokens(&mut self) -> CallTokens {
        self.usage.take().unwrap_or_default()
    }

    fn hold_to(&mut self, schema: Option<(&str, &Value)>) -> Result<(), ChatError> {
        Endpoint::hold_to(self, schema);
        Ok(())
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("url", &self.url).field("model", &self.model).finish_non_exhaustive()
    }
}

/// Splits `http://host[:port]/v1#model` into base URL, host and model.
fn parse_address(address: &str) -> Result<(String, String, String), ChatError> {
    const FORM: &str = "give http://host[:port]/v1#model, for example http://127.0.0.1:8000/v1#qwen3-8b";
    let no_http = || ChatError::from(format!("endpoint `{address}` is no http or https address; {FORM}"));
    let (base, model) = address.split_once('#').unwrap_or((address, ""));
    // Do not repeat an address that may hold a password.
    if !is_address(base) && !base.contains('@') {
        return Err(no_http());
    }
    let uri: Uri =
        base.parse().map_err(|e| format!("the endpoint's address does not parse ({e}); {FORM}"))?;
    let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
    if authority.contains('@') || uri.query().is_some() {
        return Err(ChatError::from(format!(
            "the endpoint's address holds a user, a password or a query; put the key into an environment variable, name it by --key \
             HOST=VARIABLE, and {FORM}"
        )));
    }
    let host = uri.host().unwrap_or_default().to_lowercase();
    let Some(scheme @ ("http" | "https")) = uri.scheme_str().filter(|_| !host.is_empty()) else {
        return Err(no_http());
    };
    if model.is_empty() {
        return Err(ChatError::from(format!("endpoint `{address}` names no model; {FORM}")));
    }
    let usual = if scheme == "http" { 80 } else { 443 };
    let port = uri.port_u16().filter(|port| *port != usual);
    let port = port.map(|port| format!(":{port}")).unwrap_or_default();
    let path = uri.path().trim_end_matches('/');
    Ok((format!("{scheme}://{host}{port}{path}"), host, model.to_owned()))
}

/// In ureq's order of precedence.
const VARIABLES: [&str; 6] =
    ["ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"];

/// The proxy from the environment, named in errors so that an unnoticed proxy is found.
#[derive(Clone)]
struct Between {
    address: String,
    variable: &'static str,
    /// False for SOCKS, which is not supported; requests go direct.
    is_used: bool,
}

impl Between {
    /// The environment's proxy for `url`, and its description for errors.
    fn of(url: &str) -> (Option<Proxy>, Option<Self>) {
        let uri = url.parse::<Uri>();
        let Some(proxy) = Proxy::try_from_env().filter(|proxy| uri.is_ok_and(|uri| !proxy.is_no_proxy(&uri)))
        else {
            return (None, None);
        };
        let same = |name: &&&str| {
            let named = std::env::var(name).ok().and_then(|value| Proxy::new(&value).ok());
            named.is_some_and(|named| named.uri() == proxy.uri())
        };
        let between = Between {
            address: format!("{}:{}", proxy.host(), proxy.port()),
            variable: VARIABLES.iter().find(same).copied().unwrap_or("the environment"),
            is_used: matches!(proxy.protocol(), ProxyProtocol::Http | ProxyProtocol::Https),
        };
        (Some(proxy).filter(|_| between.is_used), Some(between))
    }

    fn remedy(&self, host: &str) -> String {
        match self.is_used {
            true => format!(
                "is the proxy running, and meant for this host? NO_PROXY={host} in the environment goes around it"
            ),
            false => format!(
                "is the server running? If it is behind the proxy, name an HTTP proxy in {}",
                self.variable
            ),
        }
    }
}

impl std::fmt::Display for Between {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Between { address, variable, is_used } = self;
        match is_used {
            true => write!(f, "through the proxy {address} of {variable}"),
            false => write!(f, "without the SOCKS proxy {address} of {variable}, which is not supported"),
        }
    }
}
