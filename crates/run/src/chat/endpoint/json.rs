//! JSON of servers, read leniently where it is malformed.

use serde_json::Value;

use crate::chat::loose_json::read;

fn start(body: &str) -> &str {
    body.trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}')
}

/// Parses a body. Unwraps a single-element list (Gemini's errors).
pub(super) fn parsed(body: &str) -> serde_json::Result<Value> {
    let text = start(body);
    let lenient = || {
        let read = read(text).filter(|read| read.finished && text.starts_with(['{', '[']))?;
        text[read.length..].trim().is_empty().then(|| Value::from(read.value))
    };
    let value = serde_json::from_str(text).or_else(|error| lenient().ok_or(error))?;
    Ok(match value {
        Value::Array(mut list) if list.len() == 1 => list.remove(0),
        value => value,
    })
}

/// True if a body that does not parse ended early, as bodies without a length may. Blank lines are keep-alives.
pub(super) fn is_cut(body: &str) -> bool {
    let text = start(body);
    let is_open = text.starts_with('{') && read(text).is_some_and(|read| !read.finished);
    is_open || (!body.is_empty() && body.trim().is_empty())
}
