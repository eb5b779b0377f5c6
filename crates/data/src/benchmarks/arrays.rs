//! Parses JSON array files and locates errors by row.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, DeserializeOwned, DeserializeSeed, Deserializer, SeqAccess, Visitor};

use super::reading::ReadError;
use crate::ground::json::{Fault, mended};

pub(super) struct Rows<T> {
    pub rows: Vec<T>,
    pub faults: BTreeMap<usize, Vec<Fault>>,
}

pub(super) fn rows<T: DeserializeOwned>(text: &[u8], file: &str) -> Result<Rows<T>, ReadError> {
    let error = match array(text, file) {
        Ok(rows) => return Ok(Rows { rows, faults: BTreeMap::new() }),
        Err(error) => error,
    };
    let (mended, found) = mended(text);
    let mut faults: BTreeMap<usize, Vec<Fault>> = BTreeMap::new();
    for (row, fault) in found.into_iter().filter_map(Fault::of_element) {
        faults.entry(row).or_default().push(fault);
    }
    match array(&mended, file) {
        Ok(rows) if !faults.is_empty() => Ok(Rows { rows, faults }),
        _ => Err(error),
    }
}

fn array<T: DeserializeOwned>(text: &[u8], file: &str) -> Result<Vec<T>, ReadError> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let read = Cell::new(0);
    let array = CountedArray { read: &read, element: PhantomData };
    let rows = array.deserialize(&mut json).and_then(|rows| json.end().map(|()| rows));
    rows.map_err(|error| {
        let (file, row) = (Some(file.to_owned()), read.get());
        let (line, column) = (error.line(), error.column());
        let remedy = match error.is_eof() {
            true => "the file ends before its array does; fetch the file again",
            false => "put it right or fetch the file again",
        };
        let what = format!("not a JSON array of objects: {}; {remedy}", without_place(&error));
        ReadError::Syntax { file, row, line, column, what }
    })
}

/// Strips serde's trailing ` at line ...`.
pub(super) fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what).to_owned()
}

/// Counts elements while deserialising.
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
    use crate::benchmarks::shape::Node;

    fn rows(text: &str) -> Result<Vec<Node>, ReadError> {
        super::rows(text.as_bytes(), "f").map(|read| read.rows)
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
