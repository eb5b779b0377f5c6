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

/// Other names of fields, as data sets 2 and 3 write them.
const ALSO: [(&str, &str); 2] = [("mind", "inner_thought"), ("evidence_ids", "evidence")];

/// The name under which a key is known: in lower case, with `_` for spaces and hyphens.
pub(super) fn known_as(key: &str) -> String {
    let plain = key.trim().to_lowercase().replace([' ', '-'], "_");
    ALSO.iter().find(|(other, _)| *other == plain).map_or(plain, |(_, name)| (*name).to_owned())
}

impl Row {
    /// A field, whatever the case of its name; `None` where there is none or it is null.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        let of_name = |(key, value): &&(String, Value)| !value.is_null() && known_as(key) == name;
        self.0.iter().find(of_name).map(|(_, value)| value)
    }

    /// True if there is such a field, be it null.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(key, _)| known_as(key) == name)
    }

    /// A key that stands twice, or under two of its names of which each says something.
    pub(super) fn doubled(&self) -> Option<&str> {
        let fields = || self.0.iter().enumerate();
        let twice = |(at, (key, value)): &(usize, &(String, Value))| {
            fields().take(*at).any(|(_, (before, earlier))| {
                before == key || (known_as(before) == known_as(key) && !is_blank(value) && !is_blank(earlier))
            })
        };
        fields().find(twice).map(|(_, (key, _))| key.as_str())
    }
}

/// True if a value says nothing.
pub(super) fn is_blank(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.trim().is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
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
