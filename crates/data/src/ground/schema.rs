//! JSON schemas of a small language: [`fits`] checks a value, [`known`] a schema. A keyword of any other is refused, since it would be
//! checked by no one.

use serde_json::Value;

const KEYWORDS: [&str; 14] = [
    "type",
    "properties",
    "required",
    "additionalProperties",
    "enum",
    "items",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "anyOf",
    "description",
];

const TYPES: [&str; 7] = ["object", "array", "string", "number", "integer", "boolean", "null"];

/// Err with the path and the fault if the schema has a keyword or a value that [`fits`] does not know.
pub fn known(schema: &Value) -> Result<(), String> {
    check_schema("", schema)
}

/// Err with the path and the fault if the value does not fit the schema.
pub fn fits(schema: &Value, value: &Value) -> Result<(), String> {
    check("", schema, value)
}

fn at<T>(path: &str, fault: String) -> Result<T, String> {
    Err(if path.is_empty() { fault } else { format!("`{path}`: {fault}") })
}

fn below(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn check_schema(path: &str, schema: &Value) -> Result<(), String> {
    let Value::Object(fields) = schema else { return at(path, format!("{schema} is no schema")) };
    for (key, value) in fields {
        let is_right = match key.as_str() {
            "type" => names(value).is_some_and(|names| names.iter().all(|name| TYPES.contains(name))),
            "required" => names(value).is_some() && value.is_array(),
            "enum" => value.as_array().is_some_and(|list| !list.is_empty()),
            "additionalProperties" => value.is_boolean(),
            "minItems" | "maxItems" | "minLength" | "maxLength" => value.is_u64(),
            "minimum" | "maximum" => value.is_number(),
            "properties" => value.is_object(),
            "anyOf" => value.as_array().is_some_and(|list| !list.is_empty()),
            "items" | "description" => true,
            _ => return at(path, format!("{key} is no keyword; write one of {}", KEYWORDS.join(", "))),
        };
        if !is_right {
            return at(path, format!("{key} is {value}, which is no value of it"));
        }
    }
    for (name, schema) in fields.get("properties").and_then(Value::as_object).into_iter().flatten() {
        check_schema(&below(path, name), schema)?;
    }
    fields.get("items").map_or(Ok(()), |items| check_schema(&format!("{path}[]"), items))?;
    let any = fields.get("anyOf").and_then(Value::as_array).into_iter().flatten();
    any.enumerate().try_for_each(|(nth, schema)| check_schema(&below(path, &format!("anyOf[{nth}]")), schema))
}

/// One name or a list of names.
fn names(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::String(name) => Some(vec![name]),
        Value::Array(list) => list.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

fn is_of(kind: &str, value: &Value) -> bool {
    match kind {
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        kind => kind_of(value) == kind,
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn check(path: &str, schema: &Value, value: &Value) -> Result<(), String> {
    if let Some(kinds) = schema.get("type").and_then(names)
        && !kinds.iter().any(|kind| is_of(kind, value))
    {
        return at(
            path,
            format!("a value of type {}, and {} belongs there", kind_of(value), kinds.join(" or ")),
        );
    }
    let words = schema.get("enum").and_then(Value::as_array);
    if let Some(words) = words.filter(|words| !words.contains(value)) {
        let words: Vec<String> = words.iter().map(Value::to_string).collect();
        return at(path, format!("{value} is none of {}", words.join(", ")));
    }
    if let Some(any) = schema.get("anyOf").and_then(Value::as_array) {
        let faults: Vec<String> = any.iter().filter_map(|schema| check(path, schema, value).err()).collect();
        if faults.len() == any.len() {
            return Err(faults.join("; or "));
        }
    }
    let number = |key: &str| schema.get(key).and_then(Value::as_f64);
    let bounded = |what: &str, size: f64, least: &str, most: &str| {
        let (least, most) = (number(least), number(most));
        if least.is_some_and(|least| size < least) || most.is_some_and(|most| size > most) {
            let of = |bound: Option<f64>| bound.map_or("any".to_owned(), |bound| bound.to_string());
            return at(path, format!("{size}{what}, and from {} to {} belong there", of(least), of(most)));
        }
        Ok(())
    };
    match value {
        Value::Object(fields) => {
            let properties = schema.get("properties").and_then(Value::as_object);
            let required = schema.get("required").and_then(names).unwrap_or_default();
            if let Some(missing) = required.into_iter().find(|name| !fields.contains_key(*name)) {
                return at(path, format!("the field `{missing}` is missing"));
            }
            for (name, value) in fields {
                match properties.and_then(|properties| properties.get(name)) {
                    Some(schema) => check(&below(path, name), schema, value)?,
                    None if schema.get("additionalProperties") == Some(&Value::Bool(false)) => {
                        return at(path, format!("the field `{name}` does not belong there"));
                    }
                    None => {}
                }
            }
            Ok(())
        }
        Value::Array(list) => {
            bounded(" elements", list.len() as f64, "minItems", "maxItems")?;
            let Some(items) = schema.get("items") else { return Ok(()) };
            let mut elements = list.iter().enumerate();
            elements.try_for_each(|(nth, element)| check(&format!("{path}[{nth}]"), items, element))
        }
        Value::String(text) => bounded(" characters", text.chars().count() as f64, "minLength", "maxLength"),
        Value::Number(size) => bounded("", size.as_f64().unwrap_or(f64::NAN), "minimum", "maximum"),
        Value::Null | Value::Bool(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_value_fits_or_the_fault_has_its_path() {
        let schema = json!({
            "type": "object", "required": ["verdict", "facts"], "additionalProperties": false,
            "properties": {
                "verdict": {"enum": ["yes", "no"]},
                "facts": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "string", "minLength": 2, "maxLength": 3}},
                "score": {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 1, "maximum": 5}]},
                "place": {"type": ["string", "null"]}
            }
        });
        known(&schema).unwrap();
        let fine = json!({"verdict": "yes", "facts": ["äöü"], "score": null, "place": null});
        fits(&schema, &fine).unwrap();
        for (field, value, said) in [
            ("verdict", json!("Yes"), "`verdict`: \"Yes\" is none of \"yes\", \"no\""),
            ("facts", json!([]), "`facts`: 0 elements, and from 1 to 2 belong there"),
            ("facts", json!(["ab", "abcd"]), "`facts[1]`: 4 characters, and from 2 to 3 belong there"),
            ("facts", json!("ab"), "`facts`: a value of type string, and array belongs there"),
            ("score", json!(6), "`score`: 6, and from 1 to 5 belong there"),
            ("score", json!(1.5), "`score`: a value of type number, and integer belongs there"),
            ("place", json!(1), "`place`: a value of type number, and string or null belongs there"),
            ("more", json!(1), "the field `more` does not belong there"),
        ] {
            let mut wrong = fine.clone();
            wrong[field] = value;
            let fault = fits(&schema, &wrong).unwrap_err();
            assert!(fault.ends_with(said), "{fault}");
        }
        let missing = fits(&schema, &json!({"verdict": "no"}));
        assert_eq!(missing, Err("the field `facts` is missing".to_owned()));
        assert!(fits(&schema, &json!([])).is_err());
        fits(&json!({"type": "integer"}), &json!(2.0)).unwrap();
    }

    #[test]
    fn a_keyword_or_value_that_is_not_checked_is_refused_with_its_path() {
        for (schema, said) in [
            (json!({"properties": {"a": {"items": {"pattern": "x"}}}}), "`a[]`: pattern is no keyword"),
            (json!({"type": "text"}), "type is \"text\""),
            (json!({"properties": {"a": true}}), "`a`: true is no schema"),
            (json!({"anyOf": [{"minItems": -1}]}), "`anyOf[0]`: minItems is -1"),
            (json!({"enum": []}), "enum is []"),
            (json!({"additionalProperties": {"type": "string"}}), "additionalProperties is"),
        ] {
            let fault = known(&schema).unwrap_err();
            assert!(fault.contains(said), "{fault}");
        }
    }
}
