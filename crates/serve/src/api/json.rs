//! Deserialises request JSON with serde; errors name the field's path, its value and the accepted values.
//!
//! Unknown fields are refused. `null` counts as absent, as in OpenAI's API ([`drop_nulls`]); OpenAI fields without effect are accepted at
//! neutral values ([`drop_neutral`]).

use std::fmt::Display;

use axum::http::StatusCode;
use serde::Deserialize;
use serde::de::{Deserializer, Error, Unexpected};
use serde_json::{Value, json};
use serde_path_to_error::{Path, Segment};

use super::error::ApiError;

/// Ignored fields, and the test for values without effect.
pub type Neutral = (&'static [&'static str], fn(&Value) -> bool);

pub const OF_CLIENTS: Neutral = (&["user", "metadata", "safety_identifier", "prompt_cache_key"], |_| true);

pub fn is_empty(value: &Value) -> bool {
    [json!(""), json!([]), json!({})].contains(value)
}

/// Drops nulls except within schemas. An assistant message without content (refusal, or a cut thought) gets empty content.
pub fn drop_nulls(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        Value::Object(map) => {
            let calls =
                map.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty());
            let is_answer = map.get("role").is_some_and(|role| role == "assistant") && !calls;
            if let Some(content) = map.get_mut("content").filter(|content| content.is_null() && is_answer) {
                *content = "".into();
            }
            map.retain(|_, value| !value.is_null());
            let of_api = |key: &str| !["parameters", "schema"].contains(&key);
            map.iter_mut().filter(|(key, _)| of_api(key)).for_each(|(_, value)| drop_nulls(value));
        }
        _ => {}
    }
}

/// Drops neutral fields of the object at path `at`; refuses them at other values.
pub fn drop_neutral(object: &mut Value, at: &str, neutral: &[Neutral]) -> Result<(), ApiError> {
    let Some(map) = object.as_object_mut() else { return Ok(()) };
    for (keys, asks_nothing) in neutral {
        for key in *keys {
            if map.shift_remove(*key).is_some_and(|value| !asks_nothing(&value)) {
                return Err(ApiError::not_yet(format!("{at}{key}")));
            }
        }
    }
    Ok(())
}

pub fn read<'de, T: Deserialize<'de>>(body: &'de Value) -> Result<T, ApiError> {
    if !body.is_object() {
        let message = format!("the request's body is {}; give an object", found(body));
        return Err(ApiError::new(StatusCode::BAD_REQUEST, None, message));
    }
    read_at("", body)
}

/// Reads the value at a path of the body.
pub fn read_at<'de, T: Deserialize<'de>>(at: &str, value: &'de Value) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let inner = error.path().to_string();
        let path = match inner.trim_start_matches('.') {
            "" => at.to_owned(),
            index if index.starts_with('[') => format!("{at}{index}"),
            name => [at, name].join(".").trim_start_matches('.').to_owned(),
        };
        refusal(&path, value_at(value, error.path()), &error.inner().to_string())
    })
}

/// Reads the fields of `T` out of an object and leaves the others.
pub fn read_part<T: for<'de> Deserialize<'de>>(body: &mut Value) -> Result<T, ApiError> {
    let Some(map) = body.as_object_mut() else { return read(body) };
    let own = names_of::<T>().into_iter().filter_map(|name| map.shift_remove_entry(&name));
    read(&Value::Object(own.collect()))
}

fn refusal(path: &str, value: &Value, why: &str) -> ApiError {
    if let Some(name) = why.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        return ApiError::missing([path, name].join(".").trim_start_matches('.'));
    }
    if why.starts_with("unknown field `") {
        return ApiError::unknown(path.chars().take(200).collect::<String>());
    }
    let of_kind = ["invalid ", "unknown variant "].iter().any(|kind| why.starts_with(kind));
    match why.rsplit_once(", expected ").filter(|_| of_kind) {
        Some((_, wanted)) => ApiError::wrong(path, found(value), &in_words(wanted)),
        None => ApiError::at(path, why),
    }
}

/// serde's expectation in JSON terms.
fn in_words(wanted: &str) -> String {
    match wanted {
        "usize" | "u32" | "u64" => "a whole number of at least 0".to_owned(),
        "a sequence" => "an array".to_owned(),
        "string or map" => "a string".to_owned(),
        "a map" => "an object".to_owned(),
        wanted if wanted.starts_with("struct ") => "an object".to_owned(),
        wanted if wanted.starts_with("a tuple of size 2") => {
            "a pair of whole numbers, [layer, head]".to_owned()
        }
        wanted => wanted.replace('`', "\""),
    }
}

fn value_at<'v>(body: &'v Value, path: &Path) -> &'v Value {
    path.iter().fold(body, |value, segment| match segment {
        Segment::Seq { index } => value.get(index).unwrap_or(&Value::Null),
        Segment::Map { key } => value.get(key).unwrap_or(&Value::Null),
        Segment::Enum { .. } | Segment::Unknown => value,
    })
}

pub fn found(value: &Value) -> String {
    match value {
        Value::String(text) => shown(text),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        plain => plain.to_string(),
    }
}

pub fn shown(text: &str) -> String {
    format!("{:?}", text.chars().take(40).collect::<String>())
}

pub fn wrong<E: Error>(wanted: impl Display) -> E {
    E::invalid_value(Unexpected::Other("this"), &wanted.to_string().as_str())
}

/// `deserialize_with` of a text accepted by `fits`.
pub fn text<'de, D: Deserializer<'de>, T: From<String>>(
    from: D,
    wanted: &str,
    fits: impl Fn(&str) -> bool,
) -> Result<T, D::Error> {
    let text = String::deserialize(from)?;
    if fits(&text) { Ok(text.into()) } else { Err(wrong(wanted)) }
}

/// `deserialize_with` of an integer in a range.
pub fn count<'de, const LEAST: usize, const MOST: usize, D: Deserializer<'de>, T: From<usize>>(
    from: D,
) -> Result<T, D::Error> {
    let n = Value::deserialize(from)?.as_u64().and_then(|n| usize::try_from(n).ok());
    n.filter(|n| (LEAST..=MOST).contains(n)).map(T::from).ok_or_else(|| match MOST {
        usize::MAX => wrong(format_args!("a whole number of at least {LEAST}")),
        _ => wrong(format_args!("a whole number from {LEAST} to {MOST}")),
    })
}

/// `deserialize_with` of a number in a range of hundredths.
pub fn real<'de, const LEAST: i32, const MOST: i32, D: Deserializer<'de>, T: From<f64>>(
    from: D,
) -> Result<T, D::Error> {
    let (least, most) = (f64::from(LEAST) / 100.0, f64::from(MOST) / 100.0);
    let x = Value::deserialize(from)?.as_f64().filter(|x| (least..=most).contains(x));
    x.map(T::from).ok_or_else(|| wrong(format_args!("a number from {least} to {most}")))
}

/// `deserialize_with` of an array with a length in a range.
pub fn list<'de, const LEAST: usize, const MOST: usize, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    let list = Vec::deserialize(from)?;
    match (LEAST..=MOST).contains(&list.len()) {
        true => Ok(list),
        false => Err(D::Error::custom(format_args!("has {} entries; give {LEAST} to {MOST}", list.len()))),
    }
}

/// Names of the fields of a type that refuses others.
pub fn names_of<T: for<'de> Deserialize<'de>>() -> Vec<String> {
    let refused = T::deserialize(&json!({"": null})).err().map(|error| error.to_string());
    // "unknown field ``, expected one of `a`, `b`"
    refused.unwrap_or_default().split('`').skip(3).step_by(2).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        maybe: Option<bool>,
        words: Option<Vec<String>>,
        list: Option<Vec<Inner>>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        text: String,
    }

    #[test]
    fn a_refusal_names_the_path_the_value_and_the_remedy() {
        for (value, param, message) in [
            (json!([]), None, "the request's body is an array; give an object"),
            (json!({"words": ["a", null]}), Some("words[1]"), "`words[1]` is null; give a string"),
            (json!({"list": [{"text": "a"}, {}]}), Some("list[1].text"), "`list[1].text` is missing"),
            (json!({"list": [{"text": "a", "b": 1}]}), Some("list[0].b"), "`list[0].b` is no field that"),
            (json!({"list": {}}), Some("list"), "`list` is an object; give an array"),
            (json!({"list": ["a"]}), Some("list[0]"), "`list[0]` is \"a\"; give an object"),
            (json!({"maybe": "x"}), Some("maybe"), "`maybe` is \"x\"; give a boolean"),
            (json!({"colour": "x"}), Some("colour"), "`colour` is no field that"),
        ] {
            let Err(error) = read::<Outer>(&value) else { panic!("{value} is read") };
            assert_eq!(error.param.as_deref(), param, "{value}");
            assert!(error.message.starts_with(message), "{}", error.message);
        }
    }

    #[test]
    fn null_is_absent_but_in_schemas() {
        let kept = json!({"parameters": {"const": null}, "messages": [{"role": "assistant", "content": ""}]});
        let mut body = json!({
            "parameters": {"const": null}, "colour": null,
            "messages": [{"role": "assistant", "content": null, "name": null}]
        });
        drop_nulls(&mut body);
        assert_eq!(body, kept);
    }
}
