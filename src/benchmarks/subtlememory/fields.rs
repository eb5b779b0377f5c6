//! The form of both files of a history: JSON arrays of objects, every field checked and every problem named by file,
//! row, id and field.

use crate::benchmarks::arrays::elements;
use crate::benchmarks::node::Node;
use crate::benchmarks::reading::ReadError;

/// The rows of a file.
///
/// # Errors
/// [`ReadError::Syntax`] where the text is no JSON array: how many rows there are is then unknown.
pub(super) fn rows(file: &str, bytes: &[u8]) -> Result<Vec<Node>, ReadError> {
    let json = serde_json::Deserializer::from_slice(bytes);
    elements(json, "an array").map_err(|(error, row)| {
        // serde_json repeats its own place at the end of the message.
        let text = error.to_string();
        let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
        ReadError::Syntax {
            file: Some(file.to_owned()),
            row,
            line: error.line(),
            column: error.column(),
            what: format!("not a JSON array of objects: {what}; fetch the file again"),
        }
    })
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
