//! Streaming parser of tool calls: separates text from calls and emits arguments as JSON in any layout. Emitted output is final: text that
//! may start a call is held back until that is decided.

use std::sync::Arc;

use serde_json::Value;

use super::grammar::is_text;
use super::{Arguments, CallLayout, Tool};

/// A streamed piece of a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallPiece {
    /// Index of the call in the answer.
    pub index: usize,
    /// Function name, in a call's first piece.
    pub name: Option<String>,
    /// More of the arguments' JSON.
    pub arguments: String,
}

/// Newly parsed text and calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Read {
    /// Text.
    pub text: String,
    /// Pieces of calls, in order.
    pub calls: Vec<CallPiece>,
}

/// Reason why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // said by the names
pub enum Ending {
    Turn,
    StopString,
    Limit,
}

/// Parser of one answer.
#[derive(Debug, Clone)]
pub struct CallReader {
    layout: &'static CallLayout,
    tools: Arc<[Tool]>,
    state: State,
    /// Unparsed text.
    rest: String,
    calls: usize,
    /// True after any text but white space.
    has_text: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Outside calls.
    Text,
    /// At the start of a call; `first` if `open` precedes it.
    Head {
        first: bool,
    },
    /// In a JSON object of arguments.
    Json {
        depth: usize,
        in_text: bool,
        escaped: bool,
    },
    /// Between tagged arguments of `tool`, `read` of which are done.
    Tags {
        tool: usize,
        read: usize,
    },
    End,
    /// Between calls within one pair of tags.
    Between,
}

/// Result of a prefix match.
enum Begins {
    /// Full match of this many bytes.
    Whole(usize),
    /// Text ends within the pattern.
    Partly,
    Otherwise,
}

/// Matches `pattern` at the start of `text`; its white space is optional.
fn begins(text: &str, pattern: &str) -> Begins {
    let mut rest = text.trim_start();
    for word in pattern.split_whitespace() {
        rest = rest.trim_start();
        match rest.strip_prefix(word) {
            Some(after) => rest = after,
            None if word.starts_with(rest) => return Begins::Partly,
            None => return Begins::Otherwise,
        }
    }
    Begins::Whole(text.len() - rest.len())
}

/// Bytes at the end of `text` that may start `marker`.
fn partial(text: &str, marker: &str) -> usize {
    let longest = marker.len().saturating_sub(1);
    let fits = |n: &usize| marker.get(..*n).is_some_and(|part| text.ends_with(part));
    (1..=longest).rev().find(fits).unwrap_or(0)
}

impl CallReader {
    /// A parser for answers that may call `tools`.
    pub fn new(layout: &'static CallLayout, tools: Arc<[Tool]>) -> Self {
        CallReader { layout, tools, state: State::Text, rest: String::new(), calls: 0, has_text: false }
    }

    /// Number of calls so far.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Parses more text.
    pub fn push(&mut self, text: &str) -> Read {
        self.rest.push_str(text);
        let mut read = Read::default();
        while self.step(&mut read) {}
        read
    }

    /// Flushes at the end. An incomplete call without a name is text if the model ended its turn, else truncated markup and dropped; at the
    /// token limit a partial marker is dropped too.
    pub fn finish(mut self, ending: Ending) -> Read {
        let mut read = Read::default();
        let is_text = match self.state {
            State::Text => ending != Ending::Limit,
            State::Head { .. } => ending == Ending::Turn,
            _ => false,
        };
        if is_text {
            read.text = std::mem::take(&mut self.rest);
        }
        read
    }

    fn take(&mut self, bytes: usize) -> String {
        let after = self.rest.split_off(bytes);
        std::mem::replace(&mut self.rest, after)
    }

    fn say(&mut self, bytes: usize, read: &mut Read) {
        let text = self.take(bytes);
        self.has_text |= !text.trim().is_empty();
        read.text.push_str(&text);
    }

    fn argue(&self, json: &str, read: &mut Read) {
        let index = self.calls.saturating_sub(1);
        match read.calls.last_mut().filter(|piece| piece.index == index) {
            Some(piece) => piece.arguments.push_str(json),
            None => read.calls.push(CallPiece { index, name: None, arguments: json.to_owned() }),
        }
    }

    /// Parses one step; returns whether more can be parsed.
    fn step(&mut self, read: &mut Read) -> bool {
        match self.state {
            State::Text => self.text(read),
            State::Head { first } => self.head(first, read),
            State::Json { depth, in_text, escaped } => self.json(depth, in_text, escaped, read),
            State::Tags { tool, read: count } => self.tags(tool, count, read),
            State::End => match begins(&self.rest, self.layout.end) {
                Begins::Whole(bytes) => {
                    self.take(bytes);
                    self.state = if self.layout.close.is_empty() { State::Text } else { State::Between };
                    true
                }
                Begins::Partly => false,
                Begins::Otherwise => self.give_up(),
            },
            State::Between => match begins(&self.rest, self.layout.close) {
                Begins::Whole(bytes) => {
                    self.take(bytes);
                    self.state = State::Text;
                    true
                }
                Begins::Partly => false,
                Begins::Otherwise => {
                    self.state = State::Head { first: false };
                    true
                }
            },
        }
    }

    fn text(&mut self, read: &mut Read) -> bool {
        let CallLayout { marker, at_start, .. } = *self.layout;
        let found = self.rest.find(marker);
        let begun = |at: usize| self.rest.get(..at).is_some_and(|before| before.trim().is_empty());
        match found {
            Some(at) if !at_start || (!self.has_text && self.calls == 0 && begun(at)) => {
                self.say(at, read);
                self.state = State::Head { first: true };
                true
            }
            _ => {
                let held = match at_start && (self.has_text || self.calls > 0) {
                    true => 0,
                    false => partial(&self.rest, marker),
                };
                self.say(self.rest.len() - held, read);
                false
            }
        }
    }

    /// The marker is plain text.
    fn no_call(&mut self, read: &mut Read) -> bool {
        let first = self.rest.chars().next().map_or(0, char::len_utf8);
        self.say(first, read);
        self.state = State::Text;
        first > 0
    }

    /// Drops text after a started call.
    fn give_up(&mut self) -> bool {
        self.state = State::Text;
        true
    }

    fn head(&mut self, first: bool, read: &mut Read) -> bool {
        let before = if first {
            format!("{}{}", self.layout.open, self.layout.call)
        } else {
            self.layout.call.to_owned()
        };
        let at = match begins(&self.rest, &before) {
            Begins::Whole(at) => at,
            Begins::Partly => return false,
            Begins::Otherwise => return self.no_call(read),
        };
        let after = self.rest.get(at..).unwrap_or_default();
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        let Some(length) = after.find(|c: char| !is_name(c)) else { return false };
        let (name, after) = after.split_at(length);
        let tool = self.tools.iter().position(|tool| tool.name == name);
        let (tool, length) = match (tool, begins(after, self.layout.after_name)) {
            (Some(tool), Begins::Whole(bytes)) => (tool, at + length + bytes),
            (Some(_), Begins::Partly) => return false,
            _ => return self.no_call(read),
        };
        let name = name.to_owned();
        self.take(length);
        read.calls.push(CallPiece { index: self.calls, name: Some(name), arguments: String::new() });
        self.calls += 1;
        self.state = match self.layout.arguments {
            Arguments::Json => State::Json { depth: 0, in_text: false, escaped: false },
            Arguments::Tags { .. } => {
                self.argue("{", read);
                State::Tags { tool, read: 0 }
            }
        };
        true
    }

    fn json(&mut self, mut depth: usize, mut in_text: bool, mut escaped: bool, read: &mut Read) -> bool {
        if depth == 0 {
            let space = self.rest.len() - self.rest.trim_start().len();
            self.take(space);
            if self.rest.is_empty() {
                return false;
            }
            if !self.rest.starts_with('{') {
                return self.give_up();
            }
        }
        let mut end = None;
        for (at, byte) in self.rest.bytes().enumerate() {
            match byte {
                _ if escaped => escaped = false,
                b'\\' if in_text => escaped = true,
                b'"' => in_text = !in_text,
                b'{' | b'[' if !in_text => depth += 1,
                b'}' | b']' if !in_text => {
                    depth -= 1;
                    if depth == 0 {
                        end = Some(at + 1);
                        break;
                    }
                }
                _ => {}
            }
        }
        let json = self.take(end.unwrap_or(self.rest.len()));
        if !json.is_empty() {
            self.argue(&json, read);
        }
        self.state = match end {
            Some(_) => State::End,
            None => State::Json { depth, in_text, escaped },
        };
        end.is_some()
    }

    fn tags(&mut self, tool: usize, count: usize, read: &mut Read) -> bool {
        let Arguments::Tags { key, after_key, after_value } = self.layout.arguments else {
            return self.give_up();
        };
        let at = match begins(&self.rest, key) {
            Begins::Whole(at) => at,
            Begins::Partly => return false,
            Begins::Otherwise => {
                self.argue("}", read);
                self.state = State::End;
                return true;
            }
        };
        let after = self.rest.get(at..).unwrap_or_default();
        let stop = after_key.trim_start().chars().next().unwrap_or('>');
        let Some(length) = after.find(stop) else { return false };
        let (name, after) = after.split_at(length);
        // White space around a value belongs to the layout if the layout has some there.
        let bytes = match begins(after, after_key.trim_end()) {
            Begins::Whole(bytes) => bytes,
            Begins::Partly => return false,
            Begins::Otherwise => return self.give_up(),
        };
        let value = after.get(bytes..).unwrap_or_default();
        let close = after_value.trim();
        let Some(length) = value.find(close) else { return false };
        let used = self.rest.len() - value.len() + length + close.len();
        let mut value = value.get(..length).unwrap_or_default();
        if after_key.ends_with('\n') {
            value = value.strip_prefix('\n').unwrap_or(value);
        }
        if after_value.starts_with('\n') {
            value = value.strip_suffix('\n').unwrap_or(value);
        }
        let schema = self.tools.get(tool).and_then(|tool| tool.parameters.get("properties")?.get(name));
        let value = match schema.is_none_or(is_text) {
            true => Value::from(value),
            false => serde_json::from_str(value.trim()).unwrap_or_else(|_| Value::from(value)),
        };
        let comma = if count > 0 { ", " } else { "" };
        let argument = format!("{comma}{}: {value}", Value::from(name));
        self.take(used);
        self.argue(&argument, read);
        self.state = State::Tags { tool, read: count + 1 };
        true
    }
}
