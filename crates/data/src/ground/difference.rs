//! Differences of stored and asked settings, by field.

use serde_json::{Map, Value};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    pub field: String,
    pub stored: String,
    pub asked: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} in the folder, {} asked for", self.field, self.stored, self.asked)
    }
}

/// Fields in which two values differ, in the order of `stored`. A missing field is shown as null.
pub fn differences(stored: &Value, asked: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    compare("", stored, asked, &mut found);
    found
}

fn compare(path: &str, stored: &Value, asked: &Value, found: &mut Vec<Difference>) {
    if let (Value::Object(a), Value::Object(b)) = (stored, asked) {
        // A missing field is at its default, shown as nothing.
        for key in a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))) {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            let of = |map: &Map<String, Value>| map.get(key).cloned().unwrap_or_default();
            compare(&path, &of(a), &of(b), found);
        }
    } else if stored != asked {
        found.push(Difference {
            field: path.to_owned(),
            stored: stored.to_string(),
            asked: asked.to_string(),
        });
    }
}
