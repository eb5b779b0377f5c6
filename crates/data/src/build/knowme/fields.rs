//! Values of rows and of parameters.

use serde_json::{Map, Value};

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

/// Fields with these names, in their order, of those that are there.
pub(super) fn taken(fields: &Map<String, Value>, names: &[&str]) -> Map<String, Value> {
    names.iter().filter_map(|name| Some(((*name).to_owned(), fields.get(*name)?.clone()))).collect()
}
