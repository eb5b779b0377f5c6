//! A JSON value that keeps repeated keys, so that they can be reported instead of silently lost.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

/// Longest piece of a string that a message quotes, in characters.
const QUOTED_CHARS: usize = 60;

/// Any JSON value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    Null,
    Bool(bool),
    Number(Number),
    String(String),
    Array(Vec<Node>),
    /// In file order, repeated keys included.
    Object(Vec<(String, Node)>),
}

impl Node {
    /// The value in a message.
    pub(super) fn describe(&self) -> String {
        match self {
            Node::Null => "null".to_owned(),
            Node::Bool(value) => value.to_string(),
            Node::Number(value) => value.to_string(),
            Node::String(value) => quote(value),
            Node::Array(items) => format!("an array of {}", items.len()),
            Node::Object(fields) => format!("an object of {} fields", fields.len()),
        }
    }

    /// A field of an object, which need not be sound; of a key that stands twice the first.
    pub(super) fn get(&self, name: &str) -> Option<&Node> {
        match self {
            Node::Object(fields) => fields.iter().find(|(field, _)| field == name).map(|(_, value)| value),
            _ => None,
        }
    }

    /// The same where it is a string that is not blank.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        match self.get(name) {
            Some(Node::String(text)) if !text.trim().is_empty() => Some(text),
            _ => None,
        }
    }
}

/// A string in quotes, cut after [`QUOTED_CHARS`] characters.
pub(super) fn quote(text: &str) -> String {
    quote_up_to(QUOTED_CHARS, text)
}

/// A string in quotes, cut after so many characters.
pub(super) fn quote_up_to(most: usize, text: &str) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        // JSON has no NaN and no infinity, so the second arm is for completeness.
        Ok(Number::from_f64(value).map_or(Node::Null, Node::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Node, E> {
        Ok(Node::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Node::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Node::Object(fields))
    }
}
