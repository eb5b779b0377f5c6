//! Objects of replies, from which fields without a value are left out.

use serde::Serialize;
use serde_json::{Value, json};

/// An object that is put together field by field.
pub trait Fields {
    /// This object with one more field, where there is a value for it.
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
