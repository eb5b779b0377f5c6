//! Values of rows and of parameters.

use serde_json::{Map, Value};

use crate::build::error::RowError;

/// A parameter of a check that is a path, or what it is if it is not given.
pub(super) fn path<'a>(
    with: &'a Map<String, Value>,
    name: &str,
    otherwise: &'a str,
) -> Result<&'a str, RowError> {
    match with.get(name) {
        None => Ok(otherwise),
        Some(Value::String(path)) => Ok(path),
        Some(other) => {
            Err(RowError::Fault(format!("the parameter `{name}` of a check is {other}; write a path")))
        }
    }
}

/// Texts of a value that is a text or a list of texts; blank ones are left out.
pub(super) fn texts(value: Option<&Value>) -> Vec<&str> {
    let all = match value {
        Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).collect(),
        Some(Value::String(text)) => vec![text.as_str()],
        _ => Vec::new(),
    };
    let nothing = |text: &str| ["", "none", "null", "n/a"].contains(&text.trim().to_lowercase().as_str());
    all.into_iter().filter(|text| !nothing(text)).collect()
}
