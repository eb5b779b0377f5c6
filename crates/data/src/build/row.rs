//! Rows between stages.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::error::RowError;

/// A JSON object with an id that no other row of its stage has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub id: String,
    /// Rows of the earlier stage that it was made of.
    pub parents: Vec<String>,
    pub fields: Map<String, Value>,
}

impl Row {
    /// The row as a row of the next stage.
    pub fn copy(&self) -> Row {
        Row { parents: vec![self.id.clone()], ..self.clone() }
    }

    /// A row made of this one, with fields of its own; its id is this one's with `.part`.
    pub fn part(&self, part: impl std::fmt::Display, fields: Map<String, Value>) -> Row {
        Row { id: format!("{}.{part}", self.id), parents: vec![self.id.clone()], fields }
    }

    /// With the fields of an object over those that it has.
    pub fn with(mut self, fields: Value) -> Row {
        self.fields.extend(object(fields));
        self
    }

    /// Without these fields; the order of the others stays.
    pub fn without(mut self, names: &[&str]) -> Row {
        names.iter().for_each(|name| drop(self.fields.shift_remove(*name)));
        self
    }

    /// The value at a path of fields: `pair.old`.
    pub fn get(&self, path: &str) -> Option<&Value> {
        let mut names = path.split('.');
        let first = self.fields.get(names.next()?)?;
        names.try_fold(first, |value, name| match value {
            Value::Array(list) => list.get(name.parse::<usize>().ok()?),
            other => other.get(name),
        })
    }

    /// The text at a path. A fault if there is none.
    pub fn text(&self, path: &str) -> Result<&str, RowError> {
        self.get(path).and_then(Value::as_str).ok_or_else(|| self.lacks(path, "a text"))
    }

    /// The list at a path. A fault if there is none.
    pub fn list(&self, path: &str) -> Result<&[Value], RowError> {
        let list = self.get(path).and_then(Value::as_array);
        list.map(Vec::as_slice).ok_or_else(|| self.lacks(path, "a list"))
    }

    /// The whole number at a path. A fault if there is none.
    pub fn number(&self, path: &str) -> Result<usize, RowError> {
        let number = self.get(path).and_then(Value::as_u64).and_then(|number| usize::try_from(number).ok());
        number.ok_or_else(|| self.lacks(path, "a whole number"))
    }

    /// The value at a path as a type. A fault if there is none, or another one.
    pub fn read<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<T, RowError> {
        let value = self.get(path).ok_or_else(|| self.lacks(path, "a value"))?;
        T::deserialize(value)
            .map_err(|error| RowError::Fault(format!("row {}: the field `{path}`: {error}", self.id)))
    }

    /// Replaces the text at a path. A fault if there is none.
    pub fn set_text(&mut self, path: &str, text: &str) -> Result<(), RowError> {
        self.text(path)?;
        let mut names = path.split('.');
        let first = names.next().and_then(|name| self.fields.get_mut(name));
        let place = first.and_then(|first| {
            names.try_fold(first, |value, name| match value {
                Value::Array(list) => list.get_mut(name.parse::<usize>().ok()?),
                other => other.get_mut(name),
            })
        });
        if let Some(place) = place {
            *place = text.into();
        }
        Ok(())
    }

    /// The value at a path as a type, if there is one. A fault if it is of another type.
    pub fn given<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<Option<T>, RowError> {
        self.get(path).map(|_| self.read(path)).transpose()
    }

    fn lacks(&self, path: &str, what: &str) -> RowError {
        RowError::Fault(format!(
            "row {} has no field `{path}` that is {what}; an earlier stage makes it",
            self.id
        ))
    }
}

/// Fields of an object; none of another value.
pub fn object(value: Value) -> Map<String, Value> {
    let Value::Object(fields) = value else { return Map::new() };
    fields
}
