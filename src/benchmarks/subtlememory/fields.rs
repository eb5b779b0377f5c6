//! What the two files of a history have in common: JSON arrays of objects, every field checked and every problem named by file,
//! row, id and field.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, SeqAccess, Visitor};

use crate::benchmarks::node::Node;
use crate::benchmarks::reading::{Problem, ReadError};

/// The path that stands for the row itself.
pub(super) const WHOLE_ROW: &str = "(row)";

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

/// One row of a file, taken apart. A `None` from its methods always comes with a problem.
#[derive(Debug)]
pub(super) struct Checker<'a> {
    file: &'a str,
    row: usize,
    /// The row's id, once it is known; and what stands in the place of it in a problem.
    pub(super) uid: Option<String>,
    /// Before the field in a problem.
    pub(super) within: String,
    pub(super) problems: Vec<Problem>,
}

/// The fields of an object that have not been taken yet.
pub(super) struct Fields(Vec<(String, Node)>);

impl Fields {
    pub(super) fn take(&mut self, name: &str) -> Option<Node> {
        let at = self.0.iter().position(|(field, _)| field == name)?;
        Some(self.0.swap_remove(at).1)
    }
}

impl<'a> Checker<'a> {
    pub(super) fn new(file: &'a str, row: usize) -> Self {
        Checker { file, row, uid: None, within: String::new(), problems: Vec::new() }
    }

    pub(super) fn problem(
        &mut self,
        field: impl AsRef<str>,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.problems.push(Problem {
            file: Some(self.file.to_owned()),
            row: self.row,
            uid: self.uid.clone(),
            field: format!("{}{}", self.within, field.as_ref()),
            found: found.into(),
            remedy: remedy.into(),
        });
    }

    /// The fields of an object; one that occurs twice is reported. Fields that nobody takes do no harm.
    pub(super) fn object(&mut self, path: &str, node: Node) -> Option<Fields> {
        let found = match node {
            Node::Object(fields) => fields,
            other => {
                self.problem(path, other.describe(), "write an object");
                return None;
            }
        };
        let prefix = if path == WHOLE_ROW { String::new() } else { format!("{path}.") };
        let mut fields = Fields(Vec::with_capacity(found.len()));
        for (name, value) in found {
            if fields.0.iter().any(|(seen, _)| *seen == name) {
                self.problem(format!("{prefix}{name}"), "the same key a second time", "keep one of them");
            } else {
                fields.0.push((name, value));
            }
        }
        Some(fields)
    }

    /// A field that must be there.
    pub(super) fn required(&mut self, fields: &mut Fields, path: &str, name: &str) -> Option<Node> {
        let node = fields.take(name);
        if node.is_none() {
            self.problem(path, "no such field", "add it");
        }
        node
    }

    /// A field that must be a string with something in it.
    pub(super) fn text(&mut self, fields: &mut Fields, path: &str, name: &str) -> Option<String> {
        let node = self.required(fields, path, name)?;
        self.string(path, node)
    }

    pub(super) fn string(&mut self, path: &str, node: Node) -> Option<String> {
        match node {
            Node::String(text) if text.trim().is_empty() => {
                self.problem(path, "an empty string", "write a text that is not blank");
                None
            }
            Node::String(text) => Some(text),
            other => {
                self.problem(path, other.describe(), "write a string");
                None
            }
        }
    }

    /// A field that must be an array with something in it.
    pub(super) fn array(
        &mut self,
        fields: &mut Fields,
        path: &str,
        name: &str,
        of: &str,
    ) -> Option<Vec<Node>> {
        match self.required(fields, path, name)? {
            Node::Array(items) if items.is_empty() => {
                self.problem(path, "an empty array", format!("give at least one {of}"));
                None
            }
            Node::Array(items) => Some(items),
            other => {
                self.problem(path, other.describe(), format!("write an array, one element a {of}"));
                None
            }
        }
    }

    /// A field that must be an array of strings, each with something in it.
    pub(super) fn texts(
        &mut self,
        fields: &mut Fields,
        path: &str,
        name: &str,
        of: &str,
    ) -> Option<Vec<String>> {
        let items = self.array(fields, path, name, of)?;
        let count = items.len();
        let texts = items.into_iter().enumerate();
        let texts: Vec<String> =
            texts.filter_map(|(at, item)| self.string(&format!("{path}[{at}]"), item)).collect();
        (texts.len() == count).then_some(texts)
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
