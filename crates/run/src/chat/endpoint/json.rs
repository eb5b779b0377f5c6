//! Lenient JSON of servers: byte order marks, unpaired surrogates, NaN and infinities.

use serde_json::Value;

/// Written by Python's json but not valid JSON.
const NO_NUMBERS: [&str; 3] = ["NaN", "Infinity", "-Infinity"];

pub(super) fn is_blank(c: char) -> bool {
    c.is_whitespace() || c == '\u{feff}'
}

/// Parses a body, repairing it if necessary. Unwraps a single-element list (Gemini's errors).
pub(super) fn parsed(body: &str) -> serde_json::Result<Value> {
    let text = body.trim_start_matches(is_blank);
    let value: Value = serde_json::from_str(text).or_else(|_| serde_json::from_str(&mended(text)))?;
    Ok(match value {
        Value::Array(mut list) if list.len() == 1 => list.remove(0),
        value => value,
    })
}

fn mended(text: &str) -> String {
    let mut strict = String::with_capacity(text.len());
    let (mut rest, mut quoted) = (text, false);
    while let Some(first) = rest.chars().next() {
        let number = || NO_NUMBERS.iter().find(|word| !quoted && rest.starts_with(**word));
        let length = match first {
            '"' => {
                quoted = !quoted;
                1
            }
            '\\' if quoted => match (unit(rest), rest.get(6..).and_then(unit)) {
                (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
                (Some(0xd800..=0xdfff), _) => {
                    strict.push('\u{fffd}');
                    rest = rest.get(6..).unwrap_or_default();
                    continue;
                }
                _ => 1 + rest.chars().nth(1).map_or(0, char::len_utf8),
            },
            control if quoted && control < ' ' => {
                strict.push_str(&format!("\\u{:04x}", u32::from(control)));
                rest = rest.get(1..).unwrap_or_default();
                continue;
            }
            other => match number() {
                Some(word) => {
                    strict.push_str("null");
                    rest = rest.get(word.len()..).unwrap_or_default();
                    continue;
                }
                None => other.len_utf8(),
            },
        };
        let (taken, after) = rest.split_at(length);
        strict.push_str(taken);
        rest = after;
    }
    strict
}

fn unit(text: &str) -> Option<u16> {
    u16::from_str_radix(text.strip_prefix("\\u")?.get(..4)?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_of_lenient_writers_is_made_strict() {
        for (text, strict) in [
            (r#"{"a": "\ud83d\ude00"}"#, r#"{"a": "\ud83d\ude00"}"#),
            (r#"{"a": "x\ud83d"}"#, "{\"a\": \"x\u{fffd}\"}"),
            (r#"{"a": "\ud83d\ud83d\ude00"}"#, "{\"a\": \"\u{fffd}\\ud83d\\ude00\"}"),
            (r#"{"a": "\ude00\n\\ud83d\""}"#, "{\"a\": \"\u{fffd}\\n\\\\ud83d\\\"\"}"),
            (r#"{"NaN": [NaN, -Infinity, Infinity, -1]}"#, r#"{"NaN": [null, null, null, -1]}"#),
            ("{\"a\": \"x\n\ty\"}\n", "{\"a\": \"x\\u000a\\u0009y\"}\n"),
            (r#"{"a": "\u12"#, r#"{"a": "\u12"#),
            ("\"é\\é\\", "\"é\\é\\"),
        ] {
            assert_eq!(mended(text), strict, "{text}");
        }
    }
}
