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

    fn lacks(&self, path: &str, what: &str) -> RowError {
        RowError::Fault(format!(
            "row {} has no field `{path}` that is {what}; an earlier stage makes it",
            self.id
        ))
    }
}
