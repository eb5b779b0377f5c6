//! Closes a JSON object before the token limit. Tracks its shortest completion and duplicate keys; the constraint ensures validity.

use std::collections::BTreeSet;

use super::constraint::Guide;

#[derive(Debug, Clone)]
pub(super) struct Closing {
    most: usize,
    text: JsonText,
}

impl Closing {
    /// `most`: limit on tokens of thought and answer.
    pub fn new(most: usize) -> Self {
        Closing { most, text: JsonText::default() }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.text.push(bytes);
    }

    /// True if these bytes would complete a duplicate key.
    pub fn doubles(&self, bytes: &[u8]) -> bool {
        let mut after = self.text.clone();
        after.push(bytes);
        after.doubled > self.text.doubled
    }

    /// Returns `token` if the object can still be closed after it, else the first token of the closing text.
    pub fn in_time(&self, token: u32, guide: &Guide, generated: usize) -> u32 {
        let left = self.most.saturating_sub(generated + 1);
        // Cheap while there is room: a token has at least one byte.
        let mut after = self.text.clone();
        after.push(&guide.bytes(&[token]));
        let rest = after.rest();
        if rest.len() <= left || guide.tokens(&rest).len() <= left {
            return token;
        }
        guide.tokens(&self.text.rest()).first().copied().unwrap_or(token)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum At {
    /// Before a value.
    #[default]
    Value,
    /// After `[`.
    FirstValue,
    /// After `{`.
    FirstKey,
    /// After a comma in an object.
    Key,
    /// After a key.
    Colon,
    /// After a value.
    After,
    /// In a string, with its bytes so far.
    Text { key: bool, since: Vec<u8> },
    /// In a number, `true`, `false` or `null`.
    Bare(Vec<u8>),
}

#[derive(Debug, Clone, Default)]
struct JsonText {
    at: At,
    /// Keys of each open object; `None` for arrays.
    open: Vec<Option<BTreeSet<String>>>,
    doubled: usize,
}

impl JsonText {
    fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.step(byte);
        }
    }

    fn step(&mut self, byte: u8) {
        match &mut self.at {
            At::Text { key, since } => {
                if byte != b'"' || escape(since).is_some_and(|escape| escape == [b'\\']) {
                    return since.push(byte);
                }
                let (key, text) = (*key, unescaped(since));
                self.at = if key { At::Colon } else { At::After };
                if let (true, Some(Some(keys))) = (key, self.open.last_mut())
                    && !keys.insert(text)
                {
                    self.doubled += 1;
                }
            }
            At::Bare(since) if !matches!(byte, b',' | b']' | b'}' | b' ' | b'\n') => since.push(byte),
            _ => self.mark(byte),
        }
    }

    /// Handles a byte outside strings and literals.
    fn mark(&mut self, byte: u8) {
        let in_object = self.open.last().is_some_and(Option::is_some);
        self.at = match byte {
            b' ' | b'\n' | b'\t' | b'\r' => match self.at {
                At::Bare(_) => At::After,
                _ => return,
            },
            b'{' => {
                self.open.push(Some(BTreeSet::new()));
                At::FirstKey
            }
            b'[' => {
                self.open.push(None);
                At::FirstValue
            }
            b'}' | b']' => {
                self.open.pop();
                At::After
            }
            b',' if in_object => At::Key,
            b',' | b':' => At::Value,
            b'"' => At::Text { key: matches!(self.at, At::FirstKey | At::Key), since: Vec::new() },
            byte => At::Bare(vec![byte]),
        };
    }

    /// The shortest completion.
    fn rest(&self) -> Vec<u8> {
        let mut rest: Vec<u8> = match &self.at {
            At::Value if self.open.is_empty() => b"{}".to_vec(),
            At::Value => b"null".to_vec(),
            At::Key => self.new_key(),
            At::Colon => b":null".to_vec(),
            At::FirstKey | At::FirstValue | At::After => Vec::new(),
            At::Bare(since) => rest_of_bare(since),
            At::Text { key, since } => {
                let mut rest = rest_of_text(since);
                if *key {
                    let whole = unescaped(&[&since[..], &rest].concat());
                    rest.extend(self.other_than(&whole));
                }
                rest.push(b'"');
                rest.extend_from_slice(if *key { b":null" } else { b"" });
                rest
            }
        };
        rest.extend(self.open.iter().rev().map(|keys| if keys.is_some() { b'}' } else { b']' }));
        rest
    }

    fn new_key(&self) -> Vec<u8> {
        let mut key = vec![b'"'];
        key.extend(self.other_than(""));
        key.extend_from_slice(b"\":null");
        key
    }

    /// Letters that make a partial key unique in its object.
    fn other_than(&self, key: &str) -> Vec<u8> {
        let Some(Some(keys)) = self.open.last() else { return Vec::new() };
        let mut letters = String::new();
        while keys.contains(&format!("{key}{letters}")) {
            letters.push('_');
        }
        letters.into_bytes()
    }
}

/// An incomplete escape at the end of a string.
fn escape(since: &[u8]) -> Option<&[u8]> {
    let mut at = 0;
    while let Some(&byte) = since.get(at) {
        let length = match (byte, since.get(at + 1)) {
            (b'\\', Some(b'u')) => 6,
            (b'\\', _) => 2,
            _ => 1,
        };
        if at + length > since.len() {
            return since.get(at..);
        }
        at += length;
    }
    None
}

/// A string's value, from its text without quotes.
fn unescaped(text: &[u8]) -> String {
    let quoted = [b"\"", text, b"\""].concat();
    serde_json::from_slice(&quoted).unwrap_or_else(|_| String::from_utf8_lossy(text).into_owned())
}

/// Bytes that complete an escape or a character.
fn rest_of_text(since: &[u8]) -> Vec<u8> {
    if let Some(escape) = escape(since) {
        return match escape.len() {
            1 => b"n".to_vec(),
            // After up to two digits zeros give no surrogate except for D8 to DF, which are never started.
            n => b"0000".get(n.min(6) - 2..).unwrap_or_default().to_vec(),
        };
    }
    let last =
        since.iter().rposition(|&byte| byte >= 0xC0).and_then(|at| since.get(at..)).unwrap_or_default();
    let (first, had) = (last.first().copied().unwrap_or(0), last.len());
    let length = match first {
        0xF0.. => 4,
        0xE0.. => 3,
        0xC0.. => 2,
        _ => 0,
    };
    let second = match first {
        0xE0 => 0xA0,
        0xF0 => 0x90,
        _ => 0x80,
    };
    (had..length).map(|i| if i == 1 { second } else { 0x80 }).collect()
}

fn rest_of_bare(since: &[u8]) -> Vec<u8> {
    let literal = ["true", "false", "null"].into_iter().find(|word| word.as_bytes().starts_with(since));
    match (literal, since.last()) {
        (Some(word), _) => word.as_bytes().get(since.len()..).unwrap_or_default().to_vec(),
        (None, Some(last)) if last.is_ascii_digit() => Vec::new(),
        (None, _) => b"0".to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn wherever_an_object_is_cut_its_rest_makes_it_whole() {
        let text = "{\"a \\\"\\u00e9\": [1, -2.5e+3, true, {}, [], \"\u{20ac}\u{1f600}\\n\"], \"\": {\"b\" : null},\n \"c\": [[0]]}";
        assert!(serde_json::from_str::<Value>(text).is_ok());
        for cut in 0..=text.len() {
            let mut json = JsonText::default();
            json.push(&text.as_bytes()[..cut]);
            let whole = [&text.as_bytes()[..cut], &json.rest()].concat();
            let read = serde_json::from_slice::<Value>(&whole);
            assert!(read.is_ok_and(|value| value.is_object()), "{cut}: {}", String::from_utf8_lossy(&whole));
            assert_eq!(json.doubled, 0);
        }
    }

    #[test]
    fn keys_that_come_twice_are_seen_by_object_and_by_value() {
        for (text, doubled) in [
            (r#"{"a": 1, "a": 2}"#, 1),
            (r#"{"a": 1, "b": {"a": 2}, "c": "a"}"#, 0),
            (r#"{"a": 1, "\u0061": 2}"#, 1),
            (r#"[{"a": 1}, {"a": 1}]"#, 0),
        ] {
            let mut json = JsonText::default();
            json.push(text.as_bytes());
            assert_eq!(json.doubled, doubled, "{text}");
        }
        for text in [r#"{"": 1, "#, r#"{"a": 1, "a"#] {
            let mut json = JsonText::default();
            json.push(text.as_bytes());
            let rest = json.rest();
            json.push(&rest);
            assert_eq!(json.doubled, 0, "{text}");
        }
    }
}
