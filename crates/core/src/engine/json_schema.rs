//! JSON schemas rewritten so that llguidance enforces them in full, as rules of a grammar.
//!
//! llguidance resolves reference segments literally and stores numbers as f64. References are rewritten accordingly (RFC 6901 in a URI
//! fragment, RFC 3986), and numbers that would change are refused or left to the model. Follows the schema locations of JSON Schema 2020-12
//! and draft 7; constants and defaults are no schemas.

use std::collections::BTreeSet;

use percent_encoding::percent_decode_str;
use serde_json::{Map, Number, Value, json};

use super::schema_limits::escaped;
pub use super::schema_limits::exceeded;

/// JSON whitespace: none, a space, or a newline with indent. Bounded, so that a model cannot emit it for ever.
const SPACE: &str = "( |\\n {0,64})";

/// Lark rule `name` of the JSON values that fit a schema, for [`GrammarVocabulary::compile`](super::GrammarVocabulary::compile).
pub fn grammar_rule(name: &str, schema: Value, strict: bool) -> String {
    format!("{name}: %json {}\n", with_options(schema, strict))
}

/// Adds compiler options: without `strict`, unsupported keywords are left to the model.
pub fn with_options(schema: Value, strict: bool) -> Value {
    let mut schema = match prepared(schema) {
        Value::Object(schema) => schema,
        // `true` and `false` are schemas.
        other => Map::from_iter([("allOf".to_owned(), json!([other]))]),
    };
    let options = json!({"whitespace_flexible": true, "whitespace_pattern": SPACE, "lenient": !strict});
    schema.insert("x-guidance".to_owned(), options);
    schema.into()
}

/// Keywords with a schema or a list of schemas.
const SCHEMAS: [&str; 16] = [
    "items",
    "additionalItems",
    "additionalProperties",
    "unevaluatedItems",
    "unevaluatedProperties",
    "prefixItems",
    "contains",
    "propertyNames",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "contentSchema",
];

/// Keywords with an object of named schemas.
const NAMED: [&str; 6] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"];

const BOUNDS: [&str; 4] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];

const MOST_COPIED: usize = 1 << 20;

/// First part that cannot be enforced: an exceeded limit or, if `strict`, a number in bounds or constants that would change.
pub fn fault(schema: &Value, strict: bool) -> Option<String> {
    let places = places(schema);
    let reference = |place: &String| schema.pointer(place)?.get("$ref")?.as_str();
    let targets: BTreeSet<String> = places
        .iter()
        .filter_map(reference)
        .flat_map(|of| target(schema, of).or_else(|| literal(schema, of)))
        .collect();
    let exceeded = exceeded(schema, &targets);
    if exceeded.is_some() || !strict {
        return exceeded;
    }
    places.into_iter().find_map(|place| {
        let (key, number) = lost(schema.pointer(&place)?)?;
        let place = if place.is_empty() { "/" } else { &place };
        Some(format!(
            "holds `{key}` {number} at `{place}`, which is kept only roughly: give numbers up to 9007199254740991 (2^53 - 1), or leave \
             `strict` out"
        ))
    })
}

/// Schema with resolvable references, without numbers that would change. Definitions whose names contain a slash are copied under
/// resolvable names; references to them stay if the copies would be too large.
fn prepared(mut schema: Value) -> Value {
    let places = places(&schema);
    let free = |key: &String| schema.get(key).is_none();
    let key = (0..).map(|i| format!("x-referenced-{i}")).find(free).unwrap_or_default();
    let (mut copied, mut bytes, mut told) = (Vec::<String>::new(), 0, Vec::new());
    for place in &places {
        let reference = schema.pointer(place).and_then(|of| of.get("$ref")?.as_str());
        let Some((old, pointer)) = reference.and_then(|old| Some((old, target(&schema, old)?))) else {
            continue;
        };
        let segments: Vec<String> =
            pointer.split('/').skip(1).map(|segment| segment.replace("~1", "/").replace("~0", "~")).collect();
        // A single empty segment would name the root.
        let new = if segments != [""] && !segments.iter().any(|segment| segment.contains('/')) {
            [&["#".to_owned()][..], &segments].concat().join("/")
        } else {
            let number = copied.iter().position(|of| *of == pointer).unwrap_or(copied.len());
            if number == copied.len() {
                bytes += schema.pointer(&pointer).map_or(0, |of| of.to_string().len());
                if bytes > MOST_COPIED {
                    continue;
                }
                copied.push(pointer);
            }
            format!("#/{key}/{number}")
        };
        if new != old {
            told.push((place, new));
        }
    }
    for (place, new) in told {
        if let Some(Value::Object(of)) = schema.pointer_mut(place) {
            of.insert("$ref".to_owned(), new.into());
        }
    }
    for place in &places {
        while let Some((key, _)) = schema.pointer(place).and_then(lost) {
            if let Some(Value::Object(of)) = schema.pointer_mut(place) {
                of.shift_remove(key);
            }
        }
    }
    let copy =
        |(number, pointer): (usize, &String)| Some((number.to_string(), schema.pointer(pointer)?.clone()));
    let copies: Map<String, Value> = copied.iter().enumerate().filter_map(copy).collect();
    if let (false, Value::Object(root)) = (copies.is_empty(), &mut schema) {
        root.insert(key, copies.into());
    }
    schema
}

/// JSON pointers of all subschemas, the root first, including targets of references.
fn places(root: &Value) -> Vec<String> {
    let (mut places, mut seen, mut next) = (Vec::new(), BTreeSet::new(), vec![String::new()]);
    while let Some(place) = next.pop() {
        let Some(Value::Object(schema)) = root.pointer(&place).filter(|_| seen.insert(place.clone())) else {
            continue;
        };
        for (key, value) in schema {
            match (key.as_str(), value) {
                ("$ref", Value::String(reference)) => {
                    next.extend(target(root, reference).or_else(|| literal(root, reference)));
                }
                (key, Value::Object(named)) if NAMED.contains(&key) => {
                    next.extend(named.keys().map(|name| format!("{place}/{key}/{}", escaped(name))));
                }
                (key, Value::Array(list)) if SCHEMAS.contains(&key) => {
                    next.extend((0..list.len()).map(|i| format!("{place}/{key}/{i}")));
                }
                (key, Value::Object(_)) if SCHEMAS.contains(&key) => next.push(format!("{place}/{key}")),
                _ => {}
            }
        }
        places.push(place);
    }
    places
}

/// JSON pointer of a local reference's target, if it exists.
fn target(root: &Value, reference: &str) -> Option<String> {
    let own = root["$id"].as_str().and_then(|id| reference.strip_prefix(id.trim_end_matches('#')));
    let fragment = own.unwrap_or(reference).strip_prefix('#')?;
    let pointer = percent_decode_str(fragment).decode_utf8().ok()?.into_owned();
    root.pointer(&pointer).map(|_| pointer)
}

/// JSON pointer of what llguidance takes a reference for that is left as it is.
fn literal(root: &Value, reference: &str) -> Option<String> {
    let (mut pointer, mut at) = (String::new(), root);
    for segment in reference.strip_prefix("#/")?.split('/') {
        pointer += "/";
        pointer += &match at {
            Value::Array(_) => segment.parse::<usize>().ok()?.to_string(),
            _ => escaped(segment),
        };
        at = root.pointer(&pointer)?;
    }
    Some(pointer)
}

/// First keyword of a schema with a number that would change.
fn lost(schema: &Value) -> Option<(&'static str, &Number)> {
    let bound = |key: &&'static str| match schema.get(*key)? {
        Value::Number(number) if !is_kept(key, number) => Some((*key, number)),
        _ => None,
    };
    let constant = |key: &'static str| Some((key, lost_constant(schema.get(key)?)?));
    BOUNDS.iter().find_map(bound).or_else(|| constant("const")).or_else(|| constant("enum"))
}

fn lost_constant(value: &Value) -> Option<&Number> {
    match value {
        Value::Number(number) => (!is_kept("const", number)).then_some(number),
        Value::Array(list) => list.iter().find_map(lost_constant),
        Value::Object(fields) => fields.values().find_map(lost_constant),
        _ => None,
    }
}

/// True if a number survives llguidance's conversion from JSON via f64 (plus a step for exclusive bounds) to i64.
fn is_kept(key: &str, number: &Number) -> bool {
    let Some(float) = number.as_f64() else { return false };
    let whole = number.as_i64().map(i128::from).or(number.as_u64().map(i128::from));
    let whole = whole.or_else(|| (float.fract() == 0.0 && float.abs() < 1e30).then_some(float as i128));
    let Some(exact) = whole else { return float.abs() < 1e18 };
    let step = match key {
        "exclusiveMinimum" => 1,
        "exclusiveMaximum" => -1,
        _ => 0,
    };
    let read = (float + f64::from(step)) as i64;
    // i64::MIN has no negation.
    read != i64::MIN && i128::from(read) == exact + i128::from(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Resolves the `$ref` of property `p` as llguidance does.
    fn found(schema: &Value) -> Option<Value> {
        let prepared = prepared(schema.clone());
        let reference = prepared["properties"]["p"]["$ref"].as_str()?;
        let mut at = &prepared;
        for segment in reference.strip_prefix("#/")?.split('/') {
            at = match at {
                Value::Array(list) => list.get(segment.parse::<usize>().ok()?)?,
                other => other.get(segment)?,
            };
        }
        Some(at.clone())
    }

    #[test]
    fn m12_a_reference_is_a_json_pointer_in_a_uris_fragment() {
        let definitions = json!({
            "x/y": {"const": 1}, "x y": {"const": 3}, "G<T>": {"const": 4}, "G[T]": {"const": 6},
            "a/b~c d": {"const": 8}, "": {"const": 9}, "~1": {"const": 10},
            "plain": {"const": 11}, "list": {"prefixItems": [{"const": 12}, {"const": 13}]}, "%25": {"const": 14}
        });
        // Expected values: PyPI's jsonpointer on the percent-decoded fragment.
        for (reference, value) in [
            ("#/$defs/x y", 3),
            ("#/$defs/G<T>", 4),
            ("#/$defs/G%5BT%5D", 6),
            ("#/%24defs/a~1b~0c%20d", 8),
            ("#/$defs/", 9),
            ("#/$defs/~01", 10),
            ("#/$defs/plain", 11),
            ("#/$defs/list/prefixItems/1", 13),
            ("#/$defs/%2525", 14),
            ("http://example.com/s#/$defs/x~1y", 1),
        ] {
            let schema = json!({
                "$id": "http://example.com/s#", "$defs": definitions, "properties": {"p": {"$ref": reference}}
            });
            assert_eq!(found(&schema), Some(json!({"const": value})), "{reference}");
        }
        // The decoded pointer finds nothing, the raw name does; below -2^63 the compiler would not return.
        let bounds: Value =
            serde_json::from_str("{\"minimum\": -9223372036854775811, \"type\": \"integer\"}").unwrap();
        for reference in ["#/x/a%20b", "#/y/01"] {
            let raw =
                json!({"x": {"a%20b": bounds}, "y": [1, bounds], "properties": {"p": {"$ref": reference}}});
            assert_eq!(found(&raw), Some(json!({"type": "integer"})), "{reference}");
        }
        for reference in ["#/$defs/none", "#/$defs/x~1z", "other.json#/$defs/x", "#anchor", "#/$defs/%FF"] {
            let schema = json!({"$defs": definitions, "properties": {"p": {"$ref": reference}}});
            assert_eq!(prepared(schema.clone()), schema, "{reference}");
        }
    }

    #[test]
    fn copies_lead_on_recursion_ends_and_constants_are_no_schemas() {
        let schema = json!({
            "$defs": {
                "tree/node": {"properties": {"next": {"$ref": "#/$defs/tree~1node"}, "of": {"$ref": "#/$defs/a~1b/items"}}},
                "a/b": {"items": {"type": "null"}}
            },
            "x-referenced-0": 1,
            "properties": {
                "p": {"$ref": "#/$defs/tree~1node"},
                "$ref": {"type": "string"},
                "kept": {"const": {"$ref": "#/$defs/a~1b"}, "default": {"$ref": "#/$defs/a~1b"}}
            }
        });
        let prepared = prepared(schema.clone());
        assert_eq!(prepared["properties"]["kept"], schema["properties"]["kept"]);
        assert_eq!(prepared["properties"]["$ref"], schema["properties"]["$ref"]);
        let node = found(&schema).unwrap();
        let next = node["properties"]["next"]["$ref"].as_str().unwrap();
        assert_eq!(Some(next), prepared["properties"]["p"]["$ref"].as_str());
        let items = node["properties"]["of"]["$ref"].as_str().unwrap();
        assert_eq!(prepared.pointer(items.trim_start_matches('#')), Some(&json!({"type": "null"})));
        // Above the limit the reference stays, and llguidance refuses it.
        let long = "x".repeat(MOST_COPIED);
        let schema =
            json!({"$defs": {"a/b": {"description": long}}, "properties": {"p": {"$ref": "#/$defs/a~1b"}}});
        assert_eq!(super::prepared(schema.clone()), schema);
    }

    #[test]
    fn numbers_that_a_float_would_change_are_named_and_others_kept() {
        let number = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        for (key, text, is_kept) in [
            ("minimum", "-9007199254740993", false),
            ("exclusiveMinimum", "9007199254740991", true),
            ("exclusiveMaximum", "9007199254740993", false),
            ("exclusiveMaximum", "9223372036854775808", true),
            ("maximum", "9223372036854775807", true),
            ("maximum", "9223372036854775806", false),
            ("maximum", "1e300", false),
            ("minimum", "0.1", true),
            ("const", "-9007199254740993", false),
            ("const", "1e3", true),
            ("const", "[1, {\"a\": 9007199254740993}]", false),
            ("enum", "[1, 2, 9007199254740993]", false),
            ("enum", "[1, \"9007199254740993\"]", true),
        ] {
            let inner = json!({"type": "integer", key: number(text)});
            let schema = json!({"properties": {"a/b": {"items": inner}}});
            let told = fault(&schema, true);
            assert_eq!(told.is_none(), is_kept, "{key} {text}");
            assert!(told.is_none_or(|told| told.contains("`/properties/a~1b/items`") && told.contains(key)));
            let left = &prepared(schema.clone())["properties"]["a/b"]["items"];
            assert_eq!(left.get(key).is_some(), is_kept, "{key} {text}");
        }
    }
}
