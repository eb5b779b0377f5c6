//! Fields of a request's JSON, each read by name and type.
//!
//! A field of the wrong type or range is refused with its name; so is one that nobody reads, since a client who sends it wants
//! something by it. `null` counts as absent, as in OpenAI's API.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::error::ApiError;

/// A field that is not served, and which of its values ask for nothing.
pub type NotServed = (&'static str, fn(&Value) -> bool);

/// An object of a request.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// What the names of its fields begin with: empty, or `palimpsest.`.
    at: String,
}

/// What a value is called in an error.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// The error of a value of the wrong type.
pub fn wrong(name: &str, value: &Value, wanted: &str) -> ApiError {
    ApiError::field(name, format!("`{name}` is {}; give {wanted}", kind(value)))
}

impl<'a> Fields<'a> {
    /// Those of the whole request.
    pub fn of_body(value: &'a Value) -> Result<Self, ApiError> {
        let Value::Object(map) = value else {
            let message = format!("the request's body is {}; give a JSON object", kind(value));
            return Err(ApiError::new(axum::http::StatusCode::BAD_REQUEST, None, message));
        };
        Ok(Fields { map, at: String::new() })
    }

    /// Those of the object `name`.
    pub fn of(value: &'a Value, name: &str) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Fields { map, at: format!("{name}.") }),
            value => Err(wrong(name, value, "an object")),
        }
    }

    /// A field's name in the whole request.
    pub fn name(&self, key: &str) -> String {
        format!("{}{key}", self.at)
    }

    /// Refuses fields other than these.
    pub fn only(&self, known: &[&str]) -> Result<(), ApiError> {
        match self.map.iter().find(|(key, value)| !value.is_null() && !known.contains(&key.as_str())) {
            None => Ok(()),
            Some((key, _)) => {
                let name = self.name(&key.chars().take(64).collect::<String>());
                let message =
                    format!("`{name}` is no field that this version of palimpsest knows; leave it out");
                Err(ApiError { code: Some("unknown_parameter"), ..ApiError::field(name, message) })
            }
        }
    }

    /// A field that is there.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Whether a field was sent, be it as `null`.
    pub fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// A field that must be there.
    pub fn required(&self, key: &str) -> Result<&'a Value, ApiError> {
        let name = self.name(key);
        self.get(key).ok_or_else(|| {
            let message = format!("`{name}` is missing; the request needs it");
            ApiError { code: Some("missing_required_parameter"), ..ApiError::field(name, message) }
        })
    }

    /// A string.
    pub fn text(&self, key: &str) -> Result<Option<&'a str>, ApiError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(value) => Err(wrong(&self.name(key), value, "a string")),
        }
    }

    /// A boolean.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, ApiError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(value) => Err(wrong(&self.name(key), value, "true or false")),
        }
    }

    /// A whole number in a range.
    pub fn count(&self, key: &str, range: RangeInclusive<usize>) -> Result<Option<usize>, ApiError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let name = self.name(key);
        let count = value.as_u64().and_then(|n| usize::try_from(n).ok());
        match count.filter(|n| range.contains(n)) {
            Some(n) => Ok(Some(n)),
            None => {
                let (least, most) = (range.start(), range.end());
                let wanted = match *most {
                    usize::MAX => format!("a whole number of at least {least}"),
                    _ => format!("a whole number from {least} to {most}"),
                };
                match value {
                    Value::Number(found) => {
                        Err(ApiError::field(name.clone(), format!("`{name}` is {found}; give {wanted}")))
                    }
                    value => Err(wrong(&name, value, &wanted)),
                }
            }
        }
    }

    /// A number in a range, whose lower end may be excluded.
    pub fn number(&self, key: &str, range: RangeInclusive<f64>, open: bool) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let name = self.name(key);
        let wanted = format!(
            "a number {} {} and at most {}",
            if open { "above" } else { "of at least" },
            range.start(),
            range.end()
        );
        let Some(x) = value.as_f64() else { return Err(wrong(&name, value, &wanted)) };
        if !range.contains(&x) || (open && x == *range.start()) {
            return Err(ApiError::field(name.clone(), format!("`{name}` is {x}; give {wanted}")));
        }
        Ok(Some(x))
    }

    /// An array.
    pub fn list(&self, key: &str) -> Result<Option<&'a [Value]>, ApiError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(value) => Err(wrong(&self.name(key), value, "an array")),
        }
    }

    /// Refuses fields that say something this version does not serve; a value that asks for nothing passes.
    pub fn neutral(&self, fields: &[NotServed]) -> Result<(), ApiError> {
        for (key, asks_nothing) in fields {
            if self.get(key).is_some_and(|value| !asks_nothing(value)) {
                return Err(ApiError::not_yet(self.name(key)));
            }
        }
        Ok(())
    }
}

/// A number of 1.
pub fn one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

/// `false`.
pub fn no(value: &Value) -> bool {
    *value == Value::Bool(false)
}

/// An empty string, array or object.
pub fn empty(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// Nothing.
pub fn never(_: &Value) -> bool {
    false
}

/// Token ids of the model's.
///
/// # Errors
/// The first value that is none.
pub fn read_tokens(at: &str, values: &[Value], vocab: usize) -> Result<Vec<u32>, ApiError> {
    let mut tokens = Vec::with_capacity(values.len());
    for (i, value) in values.iter().enumerate() {
        let id = value.as_u64().filter(|&id| id < vocab as u64).and_then(|id| u32::try_from(id).ok());
        let Some(id) = id else {
            let name = format!("{at}[{i}]");
            return Err(match value {
                Value::Number(found) => {
                    let message =
                        format!("`{name}` is {found}; the model's token ids are 0 to {}", vocab - 1);
                    ApiError::field(name, message)
                }
                value => wrong(&name, value, "a token id"),
            });
        };
        tokens.push(id);
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refusal_names_the_field_with_what_it_lies_in() {
        let value = json!({"n": 3, "rows": [1], "x": null, "temperature": 0.5});
        let Ok(fields) = Fields::of(&value, "palimpsest") else { panic!("it is an object") };
        let param = |error: Option<ApiError>| error.and_then(|error| error.param);
        assert_eq!(param(fields.count("n", 1..=2).err()).as_deref(), Some("palimpsest.n"));
        assert_eq!(param(fields.text("rows").err()).as_deref(), Some("palimpsest.rows"));
        assert_eq!(param(fields.only(&["n", "rows"]).err()).as_deref(), Some("palimpsest.temperature"));
        assert!(fields.only(&["n", "rows", "temperature"]).is_ok(), "null is absent");
        assert_eq!(param(fields.required("x").err()).as_deref(), Some("palimpsest.x"));
        assert!(fields.number("temperature", 0.5..=1.0, true).is_err());
        assert!(fields.number("temperature", 0.5..=1.0, false).is_ok());
    }
}
