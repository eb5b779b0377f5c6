//! Builders of the JSON schemas of replies.
//!
//! Every property is required and no other is allowed, as strict servers want it; an absent value is `null`. Numbers are not bounded here, as
//! servers differ in what they enforce: they are clamped where they are read.

use serde::Serialize;
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

/// Are the words of a reply those that its shape allows? Servers that enforce no schema are held to the same words here; types are serde's to check.
pub fn check(reply: &Value, shape: &Value) -> Result<(), String> {
    match (reply, shape.get("enum"), shape.get("properties"), shape.get("items")) {
        (Value::String(word), Some(Value::Array(words)), ..) => match words.contains(reply) {
            true => Ok(()),
            false => Err(format!("`{word}` is none of {}", Value::from(words.clone()))),
        },
        (Value::Object(fields), _, Some(shapes), _) => fields
            .iter()
            .filter_map(|(name, field)| Some((field, shapes.get(name)?)))
            .try_for_each(|(field, shape)| check(field, shape)),
        (Value::Array(elements), .., Some(shape)) => elements.iter().try_for_each(|e| check(e, shape)),
        _ => Ok(()),
    }
}

/// A word of a reply as it stands there.
pub fn word(decision: impl Serialize) -> String {
    let word = serde_json::to_value(decision).unwrap_or_default();
    word.as_str().unwrap_or_default().to_owned()
}

/// A number of a reply as a share.
pub fn clamped(number: f64) -> f64 {
    if number.is_finite() { number.clamp(0.0, 1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_the_shape_does_not_know_is_refused_wherever_it_stands() {
        let shape = object([("list", array(object([("word", one_of(&["a", "b"]))]), 2))]);
        assert_eq!(check(&json!({"list": [{"word": "a"}, {"word": "b", "more": "c"}]}), &shape), Ok(()));
        let refused = check(&json!({"list": [{"word": "c"}]}), &shape).unwrap_err();
        assert!(refused.contains("`c`") && refused.contains(r#"["a","b"]"#), "{refused}");
    }
}
