//! Spans of OpenTelemetry, one a request, by its conventions for generative AI, sent to a collector as OTLP's JSON over HTTP.
//!
//! Off unless an address is given. Requests only put a span into a short queue; a thread of its own sends what is there, and what does
//! not fit is dropped, so that a collector that is slow or down holds nobody up. No text of any request is in a span, but for the
//! names of spans of prompts, which are titles of documents where documents are sent.
//!
//! Written here: OpenTelemetry's own crates are fourteen more (23 seconds of a clean build with one job), of which this would use one span.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::HeaderMap;
use serde_json::{Value, json};
use ureq::Agent;

use crate::progress::note;

/// Spans that wait; more are dropped.
const WAITING: usize = 1024;

/// Spans that are sent together.
const TOGETHER: usize = 128;

/// Wait for further spans to send with one.
const GATHER: Duration = Duration::from_millis(500);

/// Most time to send some.
const SENDING: Duration = Duration::from_secs(5);

/// Most time to send what is left when the server ends.
const ENDING: Duration = Duration::from_secs(2);

/// The header by which a caller's span is the parent (W3C Trace Context).
const PARENT: &str = "traceparent";

/// A server span, as OTLP numbers kinds.
const SERVER: u32 = 2;

/// An error, as OTLP numbers statuses.
const ERROR: u32 = 2;

/// The collector, and the name of this service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Otlp {
    url: String,
    headers: Vec<(String, String)>,
    service: String,
}

/// An address that is none.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{given:?} is no address of an OTLP collector; give one such as http://127.0.0.1:4318")]
pub struct OtlpError {
    given: String,
}

impl Otlp {
    /// At the base address of a collector, with headers as `OTEL_EXPORTER_OTLP_HEADERS` has them (`name=value,name=value`).
    pub fn new(base: &str, headers: &str, service: Option<String>) -> Result<Self, OtlpError> {
        let base = base.trim().trim_end_matches('/');
        let host = base.strip_prefix("http://").or_else(|| base.strip_prefix("https://"));
        if host.is_none_or(|host| host.is_empty() || host.starts_with('/'))
            || base.contains(char::is_whitespace)
        {
            return Err(OtlpError { given: base.to_owned() });
        }
        let traces = "/v1/traces";
        let url = if base.ends_with(traces) { base.to_owned() } else { format!("{base}{traces}") };
        let pairs = headers.split(',').filter_map(|pair| pair.split_once('='));
        let headers = pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect();
        Ok(Otlp { url, headers, service: service.unwrap_or_else(|| "palimpsest".to_owned()) })
    }

    /// Sends a body of spans.
    fn send(&self, agent: &Agent, spans: &[Value]) -> Result<(), ureq::Error> {
        let resource = attributes(&[
            ("service.name".to_owned(), self.service.clone().into()),
            ("service.version".to_owned(), env!("CARGO_PKG_VERSION").into()),
        ]);
        let scope = json!({"name": "palimpsest", "version": env!("CARGO_PKG_VERSION")});
        let body = json!({"resourceSpans": [{
            "resource": {"attributes": resource}, "scopeSpans": [{"scope": scope, "spans": spans}]
        }]});
        let mut request = agent.post(&self.url).header("content-type", "application/json");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        request.send(body.to_string().as_bytes()).map(drop)
    }
}

/// The way to the collector.
#[derive(Debug)]
pub struct Telemetry {
    spans: Mutex<Option<SyncSender<Value>>>,
    ended: Mutex<Receiver<()>>,
}

impl Telemetry {
    /// To this collector.
    pub fn new(otlp: Otlp) -> std::io::Result<Self> {
        let (spans, received) = mpsc::sync_channel(WAITING);
        let (ending, ended) = mpsc::channel();
        thread::Builder::new().name("otlp".to_owned()).spawn(move || {
            run(&otlp, &received);
            // Nobody may wait any more.
            let _ = ending.send(());
        })?;
        Ok(Telemetry { spans: Mutex::new(Some(spans)), ended: Mutex::new(ended) })
    }

    /// Hands a span over, or drops it where too many wait.
    pub fn tell(&self, span: &Span) {
        let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(spans) = spans.as_ref() {
            let _ = spans.try_send(span.json());
        }
    }

    /// Sends what waits, for two seconds at most.
    pub fn close(&self) {
        drop(self.spans.lock().unwrap_or_else(PoisonError::into_inner).take());
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = ended.recv_timeout(ENDING);
    }
}

/// Sends spans until there are no more to come. Says once that the collector cannot be reached, and once that it can again.
fn run(otlp: &Otlp, received: &Receiver<Value>) {
    let agent = Agent::config_builder().timeout_global(Some(SENDING)).build().new_agent();
    let mut lost = false;
    while let Ok(first) = received.recv() {
        let mut spans = vec![first];
        while spans.len() < TOGETHER {
            match received.recv_timeout(GATHER) {
                Ok(span) => spans.push(span),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        let sent = otlp.send(&agent, &spans);
        match (&sent, lost) {
            (Err(error), false) => note(format_args!(
                "traces do not reach {}: {error}; they are dropped until they do, and requests are served as ever",
                otlp.url
            )),
            (Ok(()), true) => note(format_args!("traces reach {} again", otlp.url)),
            _ => {}
        }
        lost = sent.is_err();
    }
}

/// The place of a request in a trace.
#[derive(Debug, Clone)]
pub struct Place {
    trace: String,
    parent: Option<String>,
    begun: SystemTime,
    /// False where the caller's trace is not recorded.
    sampled: bool,
}

impl Place {
    /// Of a request with these headers, which begins now.
    pub fn new(headers: &HeaderMap) -> Self {
        let begun = SystemTime::now();
        let given = headers.get(PARENT).and_then(|value| value.to_str().ok()).and_then(parent);
        match given {
            Some((trace, parent, sampled)) => Place { trace, parent: Some(parent), begun, sampled },
            None => {
                let trace = format!("{:032x}", rand::random::<u128>().max(1));
                Place { trace, parent: None, begun, sampled: true }
            }
        }
    }
}

/// The trace, the span and the flag of `00-TRACE-SPAN-FLAGS`.
fn parent(header: &str) -> Option<(String, String, bool)> {
    let mut parts = header.trim().split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let hex = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let is_zero = |text: &str| text.bytes().all(|byte| byte == b'0');
    let valid = hex(version, 2) && version != "ff" && hex(trace, 32) && hex(span, 16) && hex(flags, 2);
    if !valid || is_zero(trace) || is_zero(span) {
        return None;
    }
    let sampled = u8::from_str_radix(flags, 16).is_ok_and(|flags| flags & 1 == 1);
    Some((trace.to_owned(), span.to_owned(), sampled))
}

/// A request that has ended.
#[derive(Debug)]
pub struct Span {
    pub place: Place,
    /// `chat`, `text_completion` or `embeddings`.
    pub operation: &'static str,
    /// The model, where the request was read so far.
    pub model: Option<String>,
    /// Its attributes, beside those that every one has.
    pub attributes: Vec<(String, Value)>,
    /// The kind of its error, where it has one.
    pub error: Option<String>,
    /// True if the server failed.
    pub failed: bool,
}

impl Span {
    /// The operation of a path, where requests to it are told.
    pub fn operation(path: &str) -> Option<&'static str> {
        match path {
            "/v1/chat/completions" => Some("chat"),
            "/v1/completions" => Some("text_completion"),
            "/v1/embeddings" => Some("embeddings"),
            _ => None,
        }
    }

    /// True if the caller's trace is recorded, or begins here.
    pub fn is_told(&self) -> bool {
        self.place.sampled
    }

    /// As OTLP has it.
    fn json(&self) -> Value {
        let nanoseconds = |time: SystemTime| {
            time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos()).to_string()
        };
        let mut all = vec![
            ("gen_ai.operation.name".to_owned(), Value::from(self.operation)),
            ("gen_ai.provider.name".to_owned(), "palimpsest".into()),
        ];
        let mut name = self.operation.to_owned();
        if let Some(model) = &self.model {
            name = format!("{name} {model}");
            all.push(("gen_ai.request.model".to_owned(), model.clone().into()));
            all.push(("gen_ai.response.model".to_owned(), model.clone().into()));
        }
        all.extend(self.attributes.iter().cloned());
        if let Some(error) = &self.error {
            all.push(("error.type".to_owned(), error.clone().into()));
        }
        let mut json = json!({
            "traceId": self.place.trace, "spanId": format!("{:016x}", rand::random::<u64>().max(1)),
            "name": name, "kind": SERVER,
            "startTimeUnixNano": nanoseconds(self.place.begun), "endTimeUnixNano": nanoseconds(SystemTime::now()),
            "attributes": attributes(&all)
        });
        if let Some(parent) = &self.place.parent {
            json["parentSpanId"] = parent.clone().into();
        }
        if self.failed {
            json["status"] = json!({"code": ERROR});
        }
        json
    }
}

/// Attributes as OTLP's JSON has them; those without a value are left out.
fn attributes(all: &[(String, Value)]) -> Vec<Value> {
    let one = |(key, value): &(String, Value)| Some(json!({"key": key, "value": any(value)?}));
    all.iter().filter_map(one).collect()
}

/// A value as OTLP's JSON has it; whole numbers are texts there.
fn any(value: &Value) -> Option<Value> {
    Some(match value {
        Value::Null | Value::Object(_) => return None,
        Value::Bool(value) => json!({"boolValue": value}),
        Value::String(value) => json!({"stringValue": value}),
        Value::Number(number) if number.is_f64() => json!({"doubleValue": number}),
        Value::Number(number) => json!({"intValue": number.to_string()}),
        Value::Array(list) => {
            json!({"arrayValue": {"values": list.iter().filter_map(any).collect::<Vec<_>>()}})
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_has_an_address_of_http_and_headers_in_pairs() {
        let otlp = |base: &str| Otlp::new(base, "authorization=Bearer x, tenant=a", None);
        let Ok(found) = otlp("http://127.0.0.1:4318/") else { panic!("an address") };
        assert_eq!(found.url, "http://127.0.0.1:4318/v1/traces");
        assert_eq!(found.headers[1], ("tenant".to_owned(), "a".to_owned()));
        assert_eq!(
            otlp("https://c/x/v1/traces").map(|otlp| otlp.url),
            Ok("https://c/x/v1/traces".to_owned())
        );
        for wrong in ["", "127.0.0.1:4318", "http://", "grpc://c:4317", "http://a b"] {
            assert!(otlp(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_parent_is_one_of_the_standards_form() {
        let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        let of = |flags: &str| parent(&format!("00-{trace}-{span}-{flags}"));
        assert_eq!(of("01"), Some((trace.to_owned(), span.to_owned(), true)));
        assert_eq!(of("00").map(|(.., sampled)| sampled), Some(false));
        for wrong in ["", "00-1-2-01", "00-00000000000000000000000000000000-00f067aa0ba902b7-01"] {
            assert_eq!(parent(wrong), None, "{wrong}");
        }
    }
}
