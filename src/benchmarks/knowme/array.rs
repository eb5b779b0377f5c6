//! A JSON array of objects, one a row, with the place of what is wrong in it.

use std::cell::Cell;
use std::fmt;
use std::io::BufRead;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::benchmarks::reading::ReadError;

/// A row's fields in file order. A key that stands twice is there twice.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row(pub Vec<(String, Value)>);

impl Row {
    /// A field; `None` where there is none or it is null.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value).filter(|value| !value.is_null())
    }

    /// A key that stands twice.
    pub(super) fn doubled(&self) -> Option<&str> {
        let keys = || self.0.iter().map(|(key, _)| key.as_str());
        keys().enumerate().find(|(at, key)| keys().take(*at).any(|before| before == *key)).map(|(_, key)| key)
    }
}

/// All rows of a file.
///
/// # Errors
/// [`ReadError::Syntax`] with the row that was being read, or [`ReadError::Read`].
pub(super) fn rows(reader: impl BufRead, file: &str) -> Result<Vec<Row>, ReadError> {
    let done = Cell::new(0);
    let mut reading = serde_json::Deserializer::from_reader(reader);
    let all = Rows(&done).deserialize(&mut reading).and_then(|rows| reading.end().map(|()| rows));
    all.map_err(|error| {
        let (file, row) = (Some(file.to_owned()), done.get());
        if error.is_io() {
            return ReadError::Read { file, row, source: error.into() };
        }
        let why = error.to_string();
        let why = why.split(" at line ").next().unwrap_or_default();
        let remedy = if error.is_eof() {
            "the file ends before its array does; fetch it again"
        } else {
            "a file here is one JSON array of objects; put it right or fetch it again"
        };
        let what = format!("{why}; {remedy}");
        ReadError::Syntax { file, row, line: error.line(), column: error.column(), what }
    })
}

struct Rows<'a>(&'a Cell<usize>);

impl<'de> DeserializeSeed<'de> for Rows<'_> {
    type Value = Vec<Row>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Rows<'_> {
    type Value = Vec<Row>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut rows = Vec::new();
        while let Some(row) = items.next_element_seed(OneRow)? {
            rows.push(row);
            self.0.set(rows.len());
        }
        Ok(rows)
    }
}

struct OneRow;

impl<'de> DeserializeSeed<'de> for OneRow {
    type Value = Row;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Row, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for OneRow {
    type Value = Row;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Row, A::Error> {
        let mut fields = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            fields.push(entry);
        }
        Ok(Row(fields))
    }
}
