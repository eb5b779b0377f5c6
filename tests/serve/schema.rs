//! A plain JSON schema validator for the keywords of these tests.

use serde_json::{Map, Value};

/// Why `value` does not fit `schema`; references resolve in `root`.
pub fn misfit(value: &Value, schema: &Value, root: &Value) -> Option<String> {
    let wrong = |why: &str| Some(format!("{value} {why}: {schema}"));
    if let Some(path) = schema["$ref"].as_str() {
        return misfit(value, root.pointer(path.trim_start_matches('#')).unwrap(), root);
    }
    if let Some(one) = schema.get("const")
        && one != value
    {
        return wrong("is another constant");
    }
    if let Some(list) = schema["enum"].as_array()
        && !list.contains(value)
    {
        return wrong("is not listed");
    }
    if let Some(any) = schema["anyOf"].as_array()
        && any.iter().all(|schema| misfit(value, schema, root).is_some())
    {
        return wrong("fits none");
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().map(|kind| kind.as_str().unwrap()).collect(),
        _ => Vec::new(),
    };
    let is = |kind: &&str| match *kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("the tests know no type {other}"),
    };
    if !kinds.is_empty() && !kinds.iter().any(is) {
        return wrong("is of another type");
    }
    let bound = |key: &str, n: f64, fits: fn(f64, f64) -> bool| {
        schema[key].as_f64().is_some_and(|bound| !fits(n, bound))
    };
    if let Some(n) = value.as_f64()
        && (bound("minimum", n, |n, bound| n >= bound) || bound("maximum", n, |n, bound| n <= bound))
    {
        return wrong("is out of range");
    }
    let length = value.as_str().map(|text| text.chars().count() as f64);
    if let Some(n) = length
        && (bound("minLength", n, |n, bound| n >= bound) || bound("maxLength", n, |n, bound| n <= bound))
    {
        return wrong("is too short or too long");
    }
    if let Some(items) = value.as_array() {
        let n = items.len() as f64;
        if bound("minItems", n, |n, bound| n >= bound) || bound("maxItems", n, |n, bound| n <= bound) {
            return wrong("has too few items or too many");
        }
        return items.iter().find_map(|item| misfit(item, schema.get("items")?, root));
    }
    let members = value.as_object()?;
    let none = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&none);
    let required = schema["required"].as_array().into_iter().flatten();
    for name in required {
        if !members.contains_key(name.as_str().unwrap()) {
            return wrong(&format!("lacks {name}"));
        }
    }
    members.iter().find_map(|(name, member)| match properties.get(name) {
        Some(schema) => misfit(member, schema, root),
        None if schema["additionalProperties"] == false => wrong(&format!("has {name:?}")),
        None => None,
    })
}
