//! Request bodies: received, charged to the request memory, and parsed off the connection thread. Their time limits are in `socket`.

use std::error::Error;
use std::iter::successors;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::CONTENT_LENGTH;
use futures_util::StreamExt;
use serde_json::Value;

use super::app::App;
use super::error::ApiError;
use super::json::drop_nulls;
use super::memory::{Full, Held};
use super::off_thread::off_thread;
use super::socket::SlowBody;

/// Larger than the text of any context.
pub const LONGEST_BODY: usize = 32 << 20;

/// Upper bound on a parsed value's bytes besides its text, including array growth.
const VALUE: u64 = 2 * size_of::<Value>() as u64;

pub struct Received {
    value: Value,
    texts: u64,
    held: Held,
}

/// Receives a body within the request memory.
pub async fn receive(app: &App, request: Request) -> Result<Received, ApiError> {
    let mut held = app.memory.hold();
    let bytes = collect(request, LONGEST_BODY, |more| held.add(more).map_err(full)).await?;
    off_thread(move || parsed(&bytes, held)).await
}

/// Receives at most `most` bytes; `charge` is told of each part before it is kept.
pub async fn collect(
    request: Request,
    most: usize,
    mut charge: impl FnMut(u64) -> Result<(), ApiError>,
) -> Result<Vec<u8>, ApiError> {
    let too_large = || {
        let message = format!("the request's body is longer than {most} bytes; send less");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, Some("body_too_large"), message)
    };
    let length = request.headers().get(CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.parse::<usize>().ok()).unwrap_or(0);
    if length > most {
        return Err(too_large());
    }
    let mut bytes: Vec<u8> = Vec::with_capacity(length);
    let mut stream = request.into_body().into_data_stream();
    while let Some(chunk) = stream.next().await {
        let chunk: Bytes = chunk.map_err(|error| unreadable(&error))?;
        if bytes.len() + chunk.len() > most {
            return Err(too_large());
        }
        charge(chunk.len() as u64)?;
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

fn unreadable(error: &axum::Error) -> ApiError {
    let mut causes = successors(Some(error as &(dyn Error + 'static)), |&error| error.source());
    match causes.find_map(|error| error.downcast_ref::<SlowBody>()) {
        Some(slow) => ApiError::new(StatusCode::REQUEST_TIMEOUT, Some("body_timeout"), slow.to_string()),
        None => {
            let message = format!("the request's body cannot be read: {error}");
            ApiError::new(StatusCode::BAD_REQUEST, None, message)
        }
    }
}

fn full(full: Full) -> ApiError {
    full.error("the request's body", None, "send less")
}

/// Parses the body. Keeps the memory of the values charged, releases that of the bytes.
fn parsed(bytes: &[u8], mut held: Held) -> Result<Received, ApiError> {
    let (values, texts) = weight(bytes);
    let takes = values * VALUE + texts;
    held.add(takes).map_err(full)?;
    let mut value = serde_json::from_slice(bytes).map_err(|error| {
        let message = format!("the request's body is no JSON: {error}{}", place(bytes, &error));
        ApiError::new(StatusCode::BAD_REQUEST, Some("invalid_json"), message)
    })?;
    drop_nulls(&mut value);
    held.keep(takes);
    Ok(Received { value, texts, held })
}

/// Upper bounds on the number of values and names, and on string bytes.
fn weight(bytes: &[u8]) -> (u64, u64) {
    let (mut values, mut texts, mut in_text, mut escaped) = (1, 0, false, false);
    for &byte in bytes {
        match byte {
            _ if escaped => (escaped, texts) = (false, texts + 1),
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            _ if in_text => texts += 1,
            b',' | b':' | b'[' | b'{' => values += 1,
            _ => {}
        }
    }
    (values, texts)
}

fn place(bytes: &[u8], error: &serde_json::Error) -> String {
    const AROUND: usize = 24;
    let line = bytes.split(|&byte| byte == b'\n').nth(error.line().saturating_sub(1)).unwrap_or_default();
    let at = error.column().saturating_sub(1).min(line.len());
    let before = line.get(at.saturating_sub(AROUND)..at).unwrap_or_default();
    let after = line.get(at..line.len().min(at + AROUND)).unwrap_or_default();
    let text =
        |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_matches(char::REPLACEMENT_CHARACTER).to_owned();
    match line.is_empty() {
        true => String::new(),
        false => format!(", at >>> of: {} >>>{}", text(before), text(after)),
    }
}

impl Received {
    pub fn model(&self) -> Option<&str> {
        self.value["model"].as_str()
    }

    /// Runs `prepare` off the connection thread, with a permit to tokenise the texts.
    pub async fn prepared<T: Send + 'static>(
        self,
        app: &Arc<App>,
        prepare: impl FnOnce(&Arc<App>, Value) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let Received { value, texts, held } = self;
        let place = app.memory.place_for_texts(texts).await;
        let app = Arc::clone(app);
        off_thread(move || {
            let (_held, _place) = (held, place);
            prepare(&app, value)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::Memory;
    use super::*;
    use palimpsest_core::engine::memory_plan::ServerMemory;

    #[test]
    fn what_a_body_becomes_is_counted_from_above_before_it_is_read() {
        fn parts(value: &Value) -> (u64, u64) {
            let sum = |(a, b): (u64, u64), (c, d): (u64, u64)| (a + c, b + d);
            match value {
                Value::String(text) => (1, text.len() as u64),
                Value::Array(list) => list.iter().map(parts).fold((1, 0), sum),
                Value::Object(map) => {
                    let entries = map.iter().map(|(key, value)| sum(parts(value), (1, key.len() as u64)));
                    entries.fold((1, 0), sum)
                }
                _ => (1, 0),
            }
        }
        for text in [
            r#"{"a": [1, -2, 3.5, 1e300, null, true, "x\n\u00e9, \"[:"], "b": {"c": {}, "d": [], "\\": ""}}"#,
            "18446744073709551615",
            "[]",
            "[[1, 2], [3], {}]",
            "\"text\"",
        ] {
            let value = serde_json::from_str(text).unwrap_or_default();
            let ((values, texts), (most, longest)) = (parts(&value), weight(text.as_bytes()));
            assert!(values <= most && most <= 2 * values && texts <= longest, "{text}");
        }
    }

    #[test]
    fn a_body_that_becomes_more_than_there_is_is_refused_while_it_is_read() {
        let plan = ServerMemory { requests: 1 << 20, ..ServerMemory::default() };
        let (memory, text) = (Arc::new(Memory::new(plan)), format!("[{}0]", "0,".repeat(400_000)));
        let read = parsed(text.as_bytes(), memory.hold());
        let refused = read.err().map(|error| (error.status.as_u16(), error.code));
        assert_eq!(refused, Some((413, Some("memory_exceeded"))));
        assert_eq!(memory.used(), 0);
    }
}
