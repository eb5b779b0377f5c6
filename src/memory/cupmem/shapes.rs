//! Builders of the JSON schemas of replies.
//!
//! Every property is required and no other is allowed, as strict servers want it; an absent value is `null`. Numbers are not bounded here, as
//! servers differ in what they enforce: they are clamped where they are read.

use serde_json::{Map, Value, json};

/// An object with these properties.
pub fn object<const N: usize>(properties: [(&str, Value); N]) -> Value {
    let names: Vec<&str> = properties.iter().map(|(name, _)| *name).collect();
    let required = json!(names);
    let properties: Map<String, Value> =
        properties.into_iter().map(|(name, shape)| (name.to_owned(), shape)).collect();
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

/// An array of at most so many: a model that repeats itself is stopped.
pub fn array(items: Value, most: usize) -> Value {
    json!({ "type": "array", "items": items, "maxItems": most })
}

/// A text.
pub fn text() -> Value {
    json!({ "type": "string" })
}

/// A text, or null.
pub fn text_or_null() -> Value {
    json!({ "type": ["string", "null"] })
}

/// One of these words.
pub fn one_of<S: AsRef<str>>(words: &[S]) -> Value {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    json!({ "type": "string", "enum": words })
}

/// A number from 0 to 1.
pub fn share() -> Value {
    json!({ "type": "number" })
}

/// A whole number.
pub fn integer() -> Value {
    json!({ "type": "integer" })
}

/// True or false.
pub fn boolean() -> Value {
    json!({ "type": "boolean" })
}

/// A number of a reply as a share.
pub fn clamped(number: f64) -> f64 {
    if number.is_finite() { number.clamp(0.0, 1.0) } else { 0.0 }
}
