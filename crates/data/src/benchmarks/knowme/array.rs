//! Rows of a JSON array of objects, with error locations.

use serde::de::{Deserialize, Deserializer};
use serde_json::Value;

use crate::benchmarks::shape::Pairs;
use crate::ground::json::Fault;

/// (fields in file order with repeated keys, invalid JSON values)
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row(pub Vec<(String, Value)>, pub Vec<Fault>);

/// Field aliases in data sets 2 and 3.
const ALSO: [(&str, &str); 2] = [("mind", "inner_thought"), ("evidence_ids", "evidence")];

/// Normalised key: lower case, `_` for spaces and hyphens, aliases resolved.
pub(super) fn known_as(key: &str) -> String {
    let plain = key.trim().to_lowercase().replace([' ', '-'], "_");
    ALSO.iter().find(|(other, _)| *other == plain).map_or(plain, |(_, name)| (*name).to_owned())
}

impl Row {
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        let of_name = |(key, value): &&(String, Value)| !value.is_null() && known_as(key) == name;
        self.0.iter().find(of_name).map(|(_, value)| value)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(key, _)| known_as(key) == name)
    }

    /// A repeated key, or two non-null aliases.
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

pub(super) fn is_blank(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.trim().is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

impl<'de> Deserialize<'de> for Row {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Row, D::Error> {
        Ok(Row(Pairs::deserialize(deserializer)?.0, Vec::new()))
    }
}
