//! A request's JSON becomes typed structs by serde; an error names the field's path, what was found and what may stand there.
//!
//! [`read`] differs from serde_json in five things. `null` counts as absent, as in OpenAI's API. A field that no struct has is
//! refused, but for those of [`NEUTRAL`] that ask for nothing. Fields are read in the order of the struct, so that of several errors
//! always the same one is told. The field `""` is a struct whose fields stand beside those of its own, as with `flatten`, which knows
//! no paths. And an enum takes values of several kinds: its variant `an array of parts` takes arrays, a variant that begins with no
//! kind takes the string of that name.

use std::fmt::Display;

use axum::http::StatusCode;
use serde::de::value::{BorrowedStrDeserializer, MapAccessDeserializer};
use serde::de::{DeserializeSeed, Deserializer, Error, Expected, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};
use serde_json::{Value, json};

use super::error::ApiError;

/// True if a value asks for nothing.
type Test = fn(&Value) -> bool;

/// Fields without effect where their value passes the test, by struct. With other values they are refused as not served.
static NEUTRAL: [(&str, &[&str], Test); 12] = [
    // They tell a server about its client.
    ("Shared", &IGNORED, |_| true),
    ("EmbeddingRequest", &IGNORED, |_| true),
    ("ChatRequest", &["functions"], empty),
    ("ChatRequest", &["function_call", "service_tier"], none_or_auto),
    ("ChatRequest", &["modalities"], |value| *value == json!(["text"])),
    ("ChatRequest", &["store"], |value| *value == Value::Bool(false)),
    ("ChatRequest", &["audio", "prediction", "web_search_options", "verbosity", "moderation"], |_| false),
    ("CompletionRequest", &["suffix"], empty),
    ("CompletionRequest", &["best_of"], |value| value.as_f64() == Some(1.0)),
    ("Message", &["function_call", "audio", "refusal"], empty),
    // A client gives back what it was given.
    ("Message", &["annotations"], |_| true),
    ("Call", &["index"], |_| true),
];

/// The field whose `null` is not absent: as OpenAI has it, an answer of calls, a refusal or a cut thought comes back without content.
const NULLABLE: (&str, &str) = ("Message", "content");

const IGNORED: [&str; 4] = ["user", "metadata", "safety_identifier", "prompt_cache_key"];

fn empty(value: &Value) -> bool {
    [json!(""), json!([]), json!({})].contains(value)
}

fn none_or_auto(value: &Value) -> bool {
    ["none", "auto", "default"].iter().any(|word| value == word)
}

/// Reads the body of a request.
pub fn read<'de, T: Deserialize<'de>>(body: &'de Value) -> Result<T, ApiError> {
    let node = Node { value: body, beside: None };
    T::deserialize(node).map_err(|fault| fault.of(body).told())
}

/// Why a value is not read, and where: `.messages[0].role`; empty for the value itself.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {why:?}")]
struct Fault {
    path: String,
    why: Why,
}

#[derive(Debug)]
enum Why {
    Missing,
    Unknown,
    NotServed,
    Refused(String),
    Wrong { found: Option<String>, wanted: String },
}

impl From<Why> for Fault {
    fn from(why: Why) -> Self {
        Fault { path: String::new(), why }
    }
}

impl Fault {
    fn wrong(wanted: impl Display) -> Self {
        let wanted = match wanted.to_string().as_str() {
            "usize" | "u32" => "a whole number of at least 0".to_owned(),
            wanted => wanted.to_owned(),
        };
        Why::Wrong { found: None, wanted }.into()
    }

    /// The fault of this value, where it is of none yet.
    fn of(mut self, value: &Value) -> Self {
        if let Why::Wrong { found: none @ None, .. } = &mut self.why {
            *none = Some(found(value));
        }
        self
    }

    fn within(mut self, segment: impl Display) -> Self {
        self.path.insert_str(0, &segment.to_string());
        self
    }

    fn told(self) -> ApiError {
        let path = self.path.trim_start_matches('.');
        match self.why {
            Why::Missing => ApiError::missing(path),
            Why::Unknown => ApiError::unknown(path),
            Why::NotServed => ApiError::not_yet(path),
            Why::Refused(why) => ApiError::at(path, why),
            Why::Wrong { found, wanted } => {
                let why = format!("is {}; give {wanted}", found.unwrap_or_default());
                match path {
                    "" => ApiError::new(StatusCode::BAD_REQUEST, None, format!("the request's body {why}")),
                    path => ApiError::at(path, why),
                }
            }
        }
    }
}

impl Error for Fault {
    fn custom<T: Display>(message: T) -> Self {
        Why::Refused(message.to_string()).into()
    }

    fn invalid_type(_: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        Fault::wrong(wanted)
    }

    fn invalid_value(_: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        Fault::wrong(wanted)
    }

    fn missing_field(name: &'static str) -> Self {
        Fault::from(Why::Missing).within(format_args!(".{name}"))
    }
}

/// A value as errors name it.
pub fn found(value: &Value) -> String {
    match value {
        Value::String(text) => shown(text),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        plain => plain.to_string(),
    }
}

/// The beginning of a text, in quotes.
pub fn shown(text: &str) -> String {
    format!("{:?}", text.chars().take(40).collect::<String>())
}

/// The kinds of JSON's values, as names of variants begin.
const KINDS: [&str; 6] = ["null", "a boolean", "a number", "a string", "an array", "an object"];

/// A value that is read.
#[derive(Clone, Copy)]
struct Node<'de> {
    value: &'de Value,
    /// The struct whose fields stand beside those of this one, and these fields.
    beside: Option<(&'static str, &'static [&'static str])>,
}

impl<'de> Deserializer<'de> for Node<'de> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(flag) => visitor.visit_bool(*flag),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(n), _) => visitor.visit_u64(n),
                (_, Some(n)) => visitor.visit_i64(n),
                _ => visitor.visit_f64(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Array(_) => self.deserialize_seq(visitor),
            Value::Object(_) => self.deserialize_map(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        if self.value.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let list = self.value.as_array().ok_or_else(|| Fault::wrong("an array"))?;
        visitor.visit_seq(Items(list.iter().enumerate()))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let map = self.value.as_object().ok_or_else(|| Fault::wrong("an object"))?;
        let entries = map.iter().map(|(key, value)| (key.as_str(), Node { value, beside: None }));
        visitor.visit_map(Entries { entries, next: None })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let map = self.value.as_object().ok_or_else(|| Fault::wrong("an object"))?;
        let (beside, own) = self.beside.unwrap_or_default();
        let fault = |(key, value): (&String, &Value)| {
            let key = key.as_str();
            let neutral =
                |of: &str| NEUTRAL.iter().find(|(name, keys, _)| *name == of && keys.contains(&key));
            let why = match neutral(name).or_else(|| neutral(beside)) {
                _ if value.is_null() || fields.contains(&key) || own.contains(&key) => return None,
                Some((_, _, asks_nothing)) if asks_nothing(value) => return None,
                Some(_) => Why::NotServed,
                // Of the struct beside, or of none.
                None if fields.contains(&"") => return None,
                None => Why::Unknown,
            };
            let key: String = key.chars().take(64).collect();
            Some(Fault::from(why).within(format_args!(".{key}")))
        };
        let fault = map.iter().find_map(fault);
        let entries = fields.iter().filter_map(|&field| match field {
            "" => Some((field, Node { value: self.value, beside: Some((name, fields)) })),
            field => {
                let value = map.get(field).filter(|value| !value.is_null() || (name, field) == NULLABLE)?;
                Some((field, Node { value, beside: None }))
            }
        });
        match (visitor.visit_map(Entries { entries, next: None }), fault) {
            // Which fields there are depends on it.
            (Err(of_type), Some(_)) if of_type.path == ".type" => Err(of_type),
            (_, Some(fault)) => Err(fault),
            (read, None) => read,
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let kind = KINDS[match self.value {
            Value::Null => 0,
            Value::Bool(_) => 1,
            Value::Number(_) => 2,
            Value::String(_) => 3,
            Value::Array(_) => 4,
            Value::Object(_) => 5,
        }];
        let of_kind = variants.iter().find(|variant| variant.starts_with(kind));
        match of_kind.or_else(|| variants.iter().find(|&&variant| self.value == variant)) {
            Some(variant) if of_kind.is_some() && *variant != "null" => {
                let entries = std::iter::once((*variant, Node { beside: None, ..self }));
                visitor.visit_enum(MapAccessDeserializer::new(Entries { entries, next: None }))
            }
            Some(word) => visitor.visit_enum(BorrowedStrDeserializer::new(word)),
            None => Err(Fault::wrong(one_of(variants))),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct tuple
        tuple_struct newtype_struct identifier ignored_any
    }
}

/// Variants as a remedy: `"low", "high" or an array of parts`.
fn one_of(variants: &[&str]) -> String {
    let is_kind = |variant: &str| KINDS.iter().any(|kind| variant.starts_with(kind));
    let told = |&variant: &&str| if is_kind(variant) { variant.to_owned() } else { format!("{variant:?}") };
    let told: Vec<String> = variants.iter().filter(|variant| **variant != "null").map(told).collect();
    match told.split_last() {
        Some((last, before @ [_, ..])) => format!("{} or {last}", before.join(", ")),
        _ => told.concat(),
    }
}

struct Items<'de>(std::iter::Enumerate<std::slice::Iter<'de, Value>>);

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Fault> {
        let Some((i, value)) = self.0.next() else { return Ok(None) };
        let read = seed.deserialize(Node { value, beside: None }).map(Some);
        read.map_err(|fault| fault.of(value).within(format_args!("[{i}]")))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

struct Entries<'de, I> {
    entries: I,
    next: Option<(&'de str, Node<'de>)>,
}

impl<'de, I: Iterator<Item = (&'de str, Node<'de>)>> MapAccess<'de> for Entries<'de, I> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Fault> {
        self.next = self.entries.next();
        self.next.map(|(key, _)| seed.deserialize(BorrowedStrDeserializer::new(key))).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Fault> {
        let Some((key, node)) = self.next else { return Err(Fault::wrong("a value")) };
        seed.deserialize(node).map_err(|fault| match key {
            // No fields of their own.
            "" => fault,
            kind if KINDS.iter().any(|known| kind.starts_with(known)) => fault,
            key => fault.of(node.value).within(format_args!(".{key}")),
        })
    }
}

/// The error of a value that should be something else.
pub fn wrong<E: Error>(wanted: impl Display) -> E {
    E::invalid_value(Unexpected::Other("this"), &wanted.to_string().as_str())
}

/// `deserialize_with` of a text for which `fits` holds.
pub fn text<'de, D: Deserializer<'de>, T: From<String>>(
    from: D,
    wanted: &str,
    fits: impl Fn(&str) -> bool,
) -> Result<T, D::Error> {
    let text = String::deserialize(from)?;
    if fits(&text) { Ok(text.into()) } else { Err(wrong(wanted)) }
}

/// `deserialize_with` of a whole number in a range.
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

/// `deserialize_with` of an array of so many values.
pub fn list<'de, const LEAST: usize, const MOST: usize, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    let list = Vec::deserialize(from)?;
    match (LEAST..=MOST).contains(&list.len()) {
        true => Ok(list),
        false => Err(D::Error::custom(format_args!("has {} entries; give {LEAST} to {MOST}", list.len()))),
    }
}

#[cfg(test)]
pub mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The names of a struct's fields, those of [`NEUTRAL`] among them.
    pub fn names_of<'de, T: Deserialize<'de>>() -> BTreeSet<&'static str> {
        struct Names<'n>(&'n mut BTreeSet<&'static str>);

        impl<'de> Deserializer<'de> for Names<'_> {
            type Error = Fault;

            fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Fault> {
                Err(Why::Missing.into())
            }

            fn deserialize_struct<V: Visitor<'de>>(
                self,
                name: &'static str,
                fields: &'static [&'static str],
                visitor: V,
            ) -> Result<V::Value, Fault> {
                let neutral = NEUTRAL.iter().filter(|(of, _, _)| *of == name).flat_map(|(_, keys, _)| *keys);
                self.0.extend(fields.iter().chain(neutral).filter(|name| !name.is_empty()));
                self.deserialize_any(visitor)
            }

            forward_to_deserialize_any! {
                bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
                unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
            }
        }

        let mut names = BTreeSet::new();
        // It ends when they are known.
        let _ = T::deserialize(Names(&mut names));
        names
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Outer {
        #[serde(rename = "")]
        shared: Side,
        word: Option<Word>,
        list: Option<Vec<Inner>>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Side {
        maybe: Option<bool>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Inner {
        text: String,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    enum Word {
        #[serde(rename = "low")]
        Low,
        #[serde(rename = "an array of texts")]
        Texts(Vec<String>),
    }

    #[test]
    fn a_refusal_names_the_path_the_value_and_the_remedy() {
        let texts = "give \"low\" or an array of texts";
        for (value, param, message) in [
            (json!([]), None, "the request's body is an array; give an object"),
            (json!({"word": 3}), Some("word"), &format!("`word` is 3; {texts}")),
            (json!({"word": "high"}), Some("word"), &format!("`word` is \"high\"; {texts}")),
            (json!({"word": ["a", null]}), Some("word[1]"), "`word[1]` is null; give a string"),
            (json!({"list": [{"text": "a"}, {}]}), Some("list[1].text"), "`list[1].text` is missing"),
            (json!({"list": [{"text": null}]}), Some("list[0].text"), "`list[0].text` is missing"),
            (json!({"list": [{"text": "a", "b": 1}]}), Some("list[0].b"), "`list[0].b` is no field that"),
            (json!({"list": {}}), Some("list"), "`list` is an object; give an array"),
            (json!({"maybe": "x"}), Some("maybe"), "`maybe` is \"x\"; give a boolean"),
            (json!({"colour": "x"}), Some("colour"), "`colour` is no field that"),
        ] {
            let Err(error) = read::<Outer>(&value) else { panic!("{value} is read") };
            assert_eq!(error.param.as_deref(), param, "{value}");
            assert!(error.message.starts_with(message), "{}", error.message);
        }
    }

    #[test]
    fn null_is_absent_and_kinds_are_told_apart() {
        let read = |value: Value| read::<Outer>(&value).ok();
        let outer = |maybe, word| Some(Outer { shared: Side { maybe }, word, list: None });
        assert_eq!(read(json!({"word": null, "colour": null})), outer(None, None));
        let texts = Word::Texts(vec!["a".to_owned()]);
        assert_eq!(read(json!({"word": ["a"], "maybe": true})), outer(Some(true), Some(texts)));
        assert_eq!(read(json!({"word": "low"})), outer(None, Some(Word::Low)));
    }
}
