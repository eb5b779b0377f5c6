//! JSON objects without absent fields.

use serde::Serialize;
use serde_json::{Value, json};

pub trait Fields {
    /// Adds a field if there is a value.
    #[must_use]
    fn with(self, key: &str, value: Option<impl Serialize>) -> Self;
}

impl Fields for Value {
    fn with(mut self, key: &str, value: Option<impl Serialize>) -> Self {
        if let Some(value) = value {
            self[key] = json!(value);
        }
        self
    }
}
