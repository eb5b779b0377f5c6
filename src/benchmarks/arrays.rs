//! Files that are one JSON array, read with the count of the rows before what is wrong.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, DeserializeOwned, DeserializeSeed, Deserializer, SeqAccess, Visitor};
use serde_json::de::Read;

use super::reading::ReadError;

/// The rows of a file that is one JSON array of objects.
///
/// # Errors
/// [`ReadError::Syntax`] with the row that was being read, or [`ReadError::Read`]: how many rows there are is then unknown.
pub(super) fn rows<'de, T: DeserializeOwned>(
    mut json: serde_json::Deserializer<impl Read<'de>>,
    file: &str,
) -> Result<Vec<T>, ReadError> {
    let read = Cell::new(0);
    let array = CountedArray { read: &read, element: PhantomData };
    let rows = array.deserialize(&mut json).and_then(|rows| json.end().map(|()| rows));
    rows.map_err(|error| {
        let (file, row) = (Some(file.to_owned()), read.get());
        if error.is_io() {
            return ReadError::Read { file, row, source: error.into() };
        }
        let (line, column) = (error.line(), error.column());
        let remedy = match error.is_eof() {
            true => "the file ends before its array does; fetch the file again",
            false => "put it right or fetch the file again",
        };
        let what = format!("not a JSON array of objects: {}; {remedy}", without_place(&error));
        ReadError::Syntax { file, row, line, column, what }
    })
}

/// A parser's complaint without the place at its end.
pub(super) fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what).to_owned()
}

/// An array whose elements are counted while they are read.
struct CountedArray<'a, T> {
    read: &'a Cell<usize>,
    element: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for CountedArray<'_, T> {
    type Value = Vec<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<T>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for CountedArray<'_, T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = items.next_element()? {
            elements.push(element);
            self.read.set(elements.len());
        }
        Ok(elements)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmarks::node::Node;

    fn rows(text: &str) -> Result<Vec<Node>, ReadError> {
        super::rows(serde_json::Deserializer::from_str(text), "f")
    }

    #[test]
    fn broken_text_is_placed_by_file_row_line_and_column() {
        assert_eq!(rows("[1, {\"a\": 2}]").unwrap().len(), 2);
        for (text, row) in [("[1,\n 2,\n x]", 2), ("[1] 2", 1), ("{}", 0), ("[{\"a\": 1}", 1), ("", 0)] {
            match rows(text) {
                Err(ReadError::Syntax { file, row: at, line, .. }) => {
                    assert_eq!((file.as_deref(), at), (Some("f"), row), "{text}");
                    assert_eq!(line, text.lines().count().max(1), "{text}");
                }
                other => panic!("{text}: {other:?}"),
            }
        }
    }
}
