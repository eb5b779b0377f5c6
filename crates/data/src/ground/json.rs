//! Lenient JSON parser: reports invalid values with their path, so that one bad value costs only its own row. Python's `json` writes `NaN`,
//! `Infinity` and lone surrogates; hand-edited files have raw line breaks and lone backslashes in strings.

use std::borrow::Cow;

use serde::de::DeserializeOwned;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Path such as `answers[3].text`; `(row)` for the root.
    pub field: String,
    pub found: String,
    pub remedy: &'static str,
}

enum Step {
    /// Object key; `None` before the key is read.
    Key(Option<String>),
    At(usize),
}

fn field(path: &[Step]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            Step::At(at) => text += &format!("[{at}]"),
            Step::Key(Some(key)) if text.is_empty() => text += key,
            Step::Key(Some(key)) => text += &format!(".{key}"),
            Step::Key(None) => {}
        }
    }
    if text.is_empty() { "(row)".to_owned() } else { text }
}

/// Parses a value. Invalid numbers become null and invalid characters U+FFFD; each is reported as a fault.
pub fn read<T: DeserializeOwned>(text: &[u8]) -> Result<(T, Vec<Fault>), serde_json::Error> {
    let error = match serde_json::from_slice(text) {
        Ok(value) => return Ok((value, Vec::new())),
        Err(error) => error,
    };
    let (mended, faults) = mended(text);
    match serde_json::from_slice(&mended) {
        Ok(value) if !faults.is_empty() => Ok((value, faults)),
        _ => Err(error),
    }
}

/// Replaces invalid values by valid JSON. Returns the text unchanged if it is not UTF-8.
fn mended(text: &[u8]) -> (Vec<u8>, Vec<Fault>) {
    if std::str::from_utf8(text).is_err() {
        return (text.to_vec(), Vec::new());
    }
    let (mut out, mut faults, mut path) = (Vec::with_capacity(text.len()), Vec::new(), Vec::new());
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let mut end = at + 1;
        let mut piece = Cow::Borrowed(&text[at..end]);
        let mut fault = None;
        match byte {
            b'{' => path.push(Step::Key(None)),
            b'[' => path.push(Step::At(0)),
            b'}' | b']' => {
                path.pop();
            }
            b',' => match path.last_mut() {
                Some(Step::At(at)) => *at += 1,
                Some(Step::Key(key)) => *key = None,
                None => {}
            },
            b'"' => {
                let Some(quote) = closing_quote(text, at) else { return (text.to_vec(), Vec::new()) };
                end = quote + 1;
                let (string, found) = sound_string(&text[at + 1..quote]);
                fault = found;
                if let Some(Step::Key(key @ None)) = path.last_mut() {
                    *key = Some(string.clone());
                }
                piece = match &fault {
                    Some(_) => Cow::Owned(format!("\"{string}\"").into_bytes()),
                    None => Cow::Borrowed(&text[at..end]),
                };
            }
            b'-' | b'+' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
                end = at + text[at..].iter().take_while(|byte| is_word(byte)).count();
                let word = String::from_utf8_lossy(&text[at..end]);
                if word.parse::<f64>().is_ok_and(|number| !number.is_finite()) {
                    fault =
                        Some((word.into_owned(), "JSON has no such number; write one that it has, or null"));
                    piece = Cow::Borrowed(b"null");
                } else {
                    piece = Cow::Borrowed(&text[at..end]);
                }
            }
            _ => {}
        }
        if let Some((found, remedy)) = fault {
            faults.push(Fault { field: field(&path), found, remedy });
        }
        out.extend_from_slice(&piece);
        at = end;
    }
    (out, faults)
}

fn closing_quote(text: &[u8], start: usize) -> Option<usize> {
    let mut escaped = false;
    for (at, byte) in text.iter().enumerate().skip(start + 1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Some(at),
            _ => {}
        }
    }
    None
}

/// A string's content as valid JSON, and its first fault with the remedy.
fn sound_string(raw: &[u8]) -> (String, Option<(String, &'static str)>) {
    let text = String::from_utf8_lossy(raw);
    let mut fault = None;
    let mut out = String::with_capacity(text.len());
    let mut rest = &*text;
    while let Some(c) = rest.chars().next() {
        let mut used = c.len_utf8();
        let mut broken = None;
        if c == '\\' {
            let unit = |text: &str| u16::from_str_radix(text.strip_prefix("\\u")?.get(..4)?, 16).ok();
            match (unit(rest), rest.chars().nth(1)) {
                (Some(high @ 0xD800..=0xDFFF), _) => {
                    let low = unit(rest.get(6..).unwrap_or_default());
                    let paired = high < 0xDC00 && low.is_some_and(|low| (0xDC00..=0xDFFF).contains(&low));
                    used = if paired { 12 } else { 6 };
                    if !paired {
                        broken = Some(("\u{fffd}", "half of a character; write it whole, or leave it out"));
                    }
                }
                (Some(_), _) => used = 6,
                (None, Some('"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't')) => used = 2,
                (None, _) => broken = Some(("\\\\", "a backslash is written \\\\ in JSON")),
            }
        } else if c < ' ' {
            broken = Some((" ", "line breaks and tabs are written \\n and \\t in a JSON string"));
        }
        let (piece, behind) = rest.split_at(used.min(rest.len()));
        match broken {
            Some((instead, remedy)) => {
                out += instead;
                let found =
                    if c < ' ' { format!("U+{:04X} in a string", u32::from(c)) } else { piece.to_owned() };
                fault = fault.or(Some((found, remedy)));
            }
            None => out += piece,
        }
        rest = behind;
    }
    (out, fault)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_json_does_not_have_is_named_by_its_place_and_the_rest_is_read() {
        for (text, value, field, found) in [
            (r#"{"a": [1, NaN]}"#, json!({"a": [1, null]}), "a[1]", "NaN"),
            (r#"{"a": {"b": -Infinity}}"#, json!({"a": {"b": null}}), "a.b", "-Infinity"),
            (r#"{"a": 1e999, "b": 2}"#, json!({"a": null, "b": 2}), "a", "1e999"),
            (r#"[{"t": "x\ud83d"}, 2]"#, json!([{"t": "x\u{fffd}"}, 2]), "[0].t", "\\ud83d"),
            (r#"{"t": "\udc00\ud83d\ude00"}"#, json!({"t": "\u{fffd}😀"}), "t", "\\udc00"),
            ("{\"t\": \"a\nb\"}", json!({"t": "a b"}), "t", "U+000A in a string"),
            (r#"{"t": "C:\data"}"#, json!({"t": "C:\\data"}), "t", "\\"),
            (r#"{"k\ud800": 1}"#, json!({"k\u{fffd}": 1}), "k\u{fffd}", "\\ud800"),
            ("NaN", Value::Null, "(row)", "NaN"),
        ] {
            let (read, faults) = read::<Value>(text.as_bytes()).unwrap();
            assert_eq!((read, faults.len()), (value, 1), "{text}");
            assert_eq!((faults[0].field.as_str(), faults[0].found.as_str()), (field, found), "{text}");
        }
    }

    #[test]
    fn sound_json_has_no_fault_and_other_texts_keep_the_parsers_error() {
        for text in [r#"{"a": "\u00e9 \ud83d\ude00 \\ \" /", "b": [-0.5e-3, true, null]}"#, "[]", "\"\\\\\""]
        {
            assert_eq!(mended(text.as_bytes()), (text.as_bytes().to_vec(), Vec::new()), "{text}");
        }
        assert!(read::<Value>(b"{\"t\": \"caf\xe9\", \"n\": NaN}").is_err());
        for text in ["", "{", "[1,", "{\"a\" NaN", "\"\\", "\"", "nope", "[1 2]", "{\"a\": \"\\u12"] {
            assert!(read::<Value>(text.as_bytes()).is_err(), "{text}");
        }
    }
}
