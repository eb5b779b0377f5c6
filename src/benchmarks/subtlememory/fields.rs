//! The form of both files of a history: JSON arrays of objects, every field checked and every problem named by file,
//! row, id and field.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, SeqAccess, Visitor};

use crate::benchmarks::node::Node;
use crate::benchmarks::reading::ReadError;

/// The rows of a file.
///
/// # Errors
/// [`ReadError::Syntax`] where the text is no JSON array: how many rows there are is then unknown.
pub(super) fn rows(file: &str, bytes: &[u8]) -> Result<Vec<Node>, ReadError> {
    let read = Cell::new(0);
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let parsed = Counted(&read).deserialize(&mut json).and_then(|rows| json.end().map(|()| rows));
    parsed.map_err(|error| {
        // serde_json repeats its own place at the end of the message.
        let text = error.to_string();
        let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
        ReadError::Syntax {
            file: Some(file.to_owned()),
            row: read.get(),
            line: error.line(),
            column: error.column(),
            what: format!("not a JSON array of objects: {what}; fetch the file again"),
        }
    })
}

/// Reads an array and counts its elements while it does.
struct Counted<'a>(&'a Cell<usize>);

impl<'de> DeserializeSeed<'de> for Counted<'_> {
    type Value = Vec<Node>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<Node>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Counted<'_> {
    type Value = Vec<Node>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<Node>, A::Error> {
        let mut rows = Vec::new();
        while let Some(row) = seq.next_element()? {
            rows.push(row);
            self.0.set(rows.len());
        }
        Ok(rows)
    }
}

/// The text of a field of a row that need not be sound.
pub(super) fn peek<'n>(node: &'n Node, name: &str) -> Option<&'n Node> {
    match node {
        Node::Object(fields) => fields.iter().find(|(field, _)| field == name).map(|(_, value)| value),
        _ => None,
    }
}

/// The same where it is a string that is not blank.
pub(super) fn peek_text<'n>(node: &'n Node, name: &str) -> Option<&'n str> {
    match peek(node, name) {
        Some(Node::String(text)) if !text.trim().is_empty() => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_text_is_placed_by_file_row_line_and_column() {
        assert_eq!(rows("f", b"[1, {\"a\": 2}]").unwrap().len(), 2);
        for (text, row) in [("[1,\n 2,\n x]", 2), ("[1] 2", 1), ("{}", 0), ("[{\"a\": 1}", 1), ("", 0)] {
            match rows("f", text.as_bytes()) {
                Err(ReadError::Syntax { file, row: at, line, .. }) => {
                    assert_eq!((file.as_deref(), at), (Some("f"), row), "{text}");
                    assert_eq!(line, text.lines().count().max(1), "{text}");
                }
                other => panic!("{text}: {other:?}"),
            }
        }
    }
}
