//! Failures of one attempt at an endpoint: which are transient, and their messages. An error in the body of a 200 reply is classified by
//! its own code.

use std::time::Duration;

use serde_json::Value;

use super::parameters::Parameter;
use crate::chat::loose_json::parsed;

/// Lower-case phrases for an exceeded context: OpenAI and vLLM, SGLang, llama.cpp.
const TOO_LONG: [&str; 5] = [
    "context_length_exceeded",
    "maximum context length",
    "longer than the model's context length",
    "exceed_context_size",
    "exceeds the available context size",
];

/// Lower-case phrases of transient errors without a code.
const PASSING: [&str; 15] = [
    "rate limit",
    "rate_limit",
    "ratelimit",
    "too many requests",
    "throttl",
    "overload",
    "timeout",
    "timed out",
    "unavailable",
    "server_error",
    "internal",
    "capacity",
    "exhausted",
    "try again",
    "disconnected",
];

const UNRESOLVED: &str = "failed to lookup address information";

const CODES: [&str; 5] = ["code", "status", "status_code", "statusCode", "http_code"];

pub(super) enum Failure {
    Transport(ureq::Error),
    Status {
        status: u16,
        body: String,
        retry_after: Option<Duration>,
    },
    Told {
        body: String,
        retry_after: Option<Duration>,
    },
    Unreadable {
        reason: String,
        body: String,
    },
    /// A reply without text.
    Empty {
        reason: String,
        body: String,
    },
    /// Status 200 with truncated JSON or a truncated answer.
    Cut {
        how: String,
        body: String,
    },
}

impl Failure {
    pub fn is_passing(&self) -> bool {
        match self {
            Failure::Transport(error) => !matches!(error, ureq::Error::BadUri(_) | ureq::Error::Http(_)),
            Failure::Status { status, .. } => matches!(status, 408 | 429 | 500..=599),
            Failure::Told { body, .. } => {
                let said = body.to_lowercase();
                !says_too_long(&said) && PASSING.iter().any(|words| said.contains(words))
            }
            Failure::Unreadable { .. } | Failure::Empty { .. } => false,
            Failure::Cut { .. } => true,
        }
    }

    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Failure::Status { retry_after, .. } | Failure::Told { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    pub fn refusal(&self) -> Option<&str> {
        match self {
            // LiteLLM rejects with 500.
            Failure::Status { status: 400 | 422 | 500, body, .. } => Some(body),
            Failure::Told { body, .. } => Some(body).filter(|_| !self.is_passing()).map(String::as_str),
            _ => None,
        }
    }

    pub fn words(&self, timeout: Duration, quote: impl Fn(&str) -> String) -> (String, &'static str) {
        match self {
            Failure::Transport(ureq::Error::Timeout(_)) => (
                format!("no reply within {:.0} s", timeout.as_secs_f64()),
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
                format!("status {status}: {}", quote(body)),
                match status {
                    404 => "is the path right (usually it ends in /v1), and does the server have this model?",
                    400 | 413 | 422 if Parameter::is_named(body) && !says_too_long(body) => {
                        "the server refuses this request; change the parameter that it names"
                    }
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
            Failure::Told { body, .. } => {
                (format!("the reply is an error: {}", quote(body)), "look at the server's log")
            }
            Failure::Cut { how, body } => (format!("{how}: {}", quote(body)), "look at the server's log"),
            Failure::Unreadable { reason, body } | Failure::Empty { reason, body } => (
                format!("the reply cannot be used: {reason}: {}", quote(body)),
                "is this an OpenAI-compatible endpoint?",
            ),
        }
    }
}

pub(super) fn error_in(bytes: &[u8], retry_after: Option<Duration>) -> Option<Failure> {
    bytes.windows(7).any(|part| part == b"\"error\"").then_some(())?;
    let text = String::from_utf8_lossy(bytes).into_owned();
    let body = parsed(&text).ok()?;
    let error = match &body {
        Value::Object(fields) if fields.get("object").is_some_and(|kind| kind == "error") => &body,
        _ => [&body["error"], &body["choices"][0]["error"]].into_iter().find(|error| is_error(error))?,
    };
    // A partial answer beside it may be long.
    let of_choice = is_error(&body["choices"][0]["error"]);
    let text = if of_choice { error.to_string() } else { text };
    let fields = [error, &error["error"], &body];
    let under = |of: &&Value| CODES.iter().find_map(|key| status(of.get(*key)?));
    let code = status(error).or_else(|| fields.iter().find_map(under));
    Some(match code {
        Some(status) => Failure::Status { status, body: text, retry_after },
        None if of_choice => Failure::Cut { how: "the server broke the reply off".to_owned(), body: text },
        None => Failure::Told { body: text, retry_after },
    })
}

/// Many servers write `"error": null` beside an answer.
fn is_error(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::Bool(failed) => *failed,
        Value::String(text) => !text.trim().is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}

/// Error status from `429`, `429.0` or `"429"`.
fn status(code: &Value) -> Option<u16> {
    let code = code.as_f64().or_else(|| code.as_str()?.trim().parse().ok())?;
    (code.fract() == 0.0 && (300.0..600.0).contains(&code)).then_some(code as u16)
}

pub(super) fn is_connect(error: &ureq::Error) -> bool {
    use std::io::ErrorKind;
    match error {
        ureq::Error::HostNotFound
        | ureq::Error::ConnectionFailed
        | ureq::Error::ConnectProxyFailed(_)
        | ureq::Error::Tls(_) => true,
        ureq::Error::Io(error) => {
            let unreachable = matches!(
                error.kind(),
                ErrorKind::ConnectionRefused
                    | ErrorKind::AddrNotAvailable
                    | ErrorKind::HostUnreachable
                    | ErrorKind::NetworkUnreachable
            );
            // The standard library has no stable error kind for an unresolved name.
            unreachable || error.to_string().starts_with(UNRESOLVED)
        }
        _ => false,
    }
}

/// Last error of the chain: `Connection refused`, not `io: Connection refused`.
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

pub(super) fn says_too_long(message: &str) -> bool {
    let said = message.to_lowercase();
    TOO_LONG.iter().any(|words| said.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_does_not_resolve_is_nobody_to_connect_to() {
        let error = std::net::ToSocketAddrs::to_socket_addrs("no name at all:80").unwrap_err();
        assert!(is_connect(&ureq::Error::Io(error)));
        assert!(!is_connect(&ureq::Error::Io(std::io::ErrorKind::ConnectionReset.into())));
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

    /// Lines of: status, or `passing` or `lasting` without a status, or `-` for no error; then the body of a 200 reply. More are in
    /// tests/endpoint/replies.rs.
    const BODIES: &str = r#"
408 {"error": {"message": "x", "status": 408}}
502 {"error": true, "message": "x", "statusCode": 502}
passing {"error": {"code": "rate_limit_exceeded"}}
lasting {"error": {"code": "1302", "message": "slow down"}}
lasting {"error": {"message": "internal: maximum context length is 5"}}
- {"error": "", "choices": []}
- {"error": false, "choices": []}
- {"choices": [{"message": {"content": "an \"error\" in it"}}]}
- {"choices": [{"message": {"content": "{\"error\": {\"code\": 500}}"}}]}
- no JSON with "error"
"#;

    #[test]
    fn an_error_is_an_error_whatever_the_status() {
        for line in BODIES.trim().lines() {
            let (expected, body) = line.split_once(' ').unwrap();
            for body in [body.to_owned(), format!("\u{feff}{body}")] {
                let found = match error_in(body.as_bytes(), None) {
                    Some(Failure::Status { status, .. }) => status.to_string(),
                    Some(told @ Failure::Told { .. }) if told.is_passing() => "passing".to_owned(),
                    Some(Failure::Told { .. }) => "lasting".to_owned(),
                    Some(_) => "?".to_owned(),
                    None => "-".to_owned(),
                };
                assert_eq!(found, expected, "{body}");
            }
        }
    }
}
