//! Checks that all kinds have. Paths are those of [`Row::get`]; a text may also be a list of texts or of turns. What is not there is found,
//! as a model may have left it out. Words are those of `data check` ([`crate::case::check::words`]).

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::expression::{self, UNDEFINED, parse_expression};
use super::kind::Check;
use super::setting::parameter;
use super::{Ask, Found, Row, RowError, Setting, With};
use crate::case::Turn;
use crate::case::check::is_stray;
use crate::case::check::words::{change_words, content_words, is_of_time, listed_words};
use crate::construct::session::{ASSISTANT, USER};
use crate::ground::words::{counted, folded, phrase, words};

pub const CHECKS: &[(&str, Check)] = &[
    ("filled", filled),
    ("distinct", distinct),
    ("no-words-of", no_words_of),
    ("no-phrases", no_phrases),
    ("has", has),
    ("no-change-words", no_change_words),
    ("sentences", sentences),
    ("size", size),
    ("one-of", one_of),
    ("equals", equals),
    ("turns", turns),
    ("holds", holds),
];

/// Parameters of a check that all kinds have.
pub fn parameters(check: &str) -> Option<&'static [&'static str]> {
    Some(match check {
        "filled" | "distinct" | "sentences" => &["fields"],
        "no-words-of" => &["text", "of", "except"],
        "no-phrases" => &["text", "phrases"],
        "has" => &["text", "value"],
        "no-change-words" => &["text"],
        "size" | "turns" => &["field", "least", "most"],
        "one-of" => &["field", "of"],
        "equals" => &["field", "to"],
        "holds" => &["expression"],
        _ => return None,
    })
}

/// Replies that stand for no value, beside [`is_stray`]'s.
const NO_VALUE: [&str; 3] = ["null", "none", "n/a"];

/// A parameter of a check; a fault if it is of another type.
pub fn given<T: DeserializeOwned>(with: &With, name: &str) -> Result<Option<T>, RowError> {
    parameter(with, "check's parameter", name, "correct it in the spec")
}

/// A parameter that the check needs.
pub fn needed<T: DeserializeOwned>(with: &With, name: &str) -> Result<T, RowError> {
    let missing =
        || RowError::Fault(format!("the check's parameter `{name}` is missing; write it beside the check"));
    given(with, name)?.ok_or_else(missing)
}

/// Texts of a value: itself, or its elements', or what turns say.
fn texts(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(list) => list.iter().flat_map(texts).collect(),
        Value::Object(turn) => turn.get("content").map(texts).unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// Texts at a path, joined; empty if there are none.
fn text(row: &Row, path: &str) -> String {
    row.get(path).map(texts).unwrap_or_default().join("\n")
}

/// The first path at which `fault` finds something.
fn first(row: &Row, with: &With, mut fault: impl FnMut(&str, &Value) -> Option<String>) -> Found {
    for path in needed::<Vec<String>>(with, "fields")? {
        let found = match row.get(&path) {
            Some(value) => fault(&path, value),
            None => Some("is not there".to_owned()),
        };
        if let Some(found) = found {
            return Ok(Some(format!("`{path}` {found}")));
        }
    }
    Ok(None)
}

/// `fields`: texts that say something, and lists with elements.
fn filled(_: &Setting<'_>, with: &With, row: &Row) -> Found {
    let no_text = |text: &str| is_stray(text) || NO_VALUE.contains(&text.trim().to_lowercase().as_str());
    first(row, with, |_, value| match value {
        Value::Null => Some("is null".to_owned()),
        Value::Array(list) if list.is_empty() => Some("is an empty list".to_owned()),
        other => texts(other).into_iter().find(|text| no_text(text)).map(|text| format!("has {text:?}")),
    })
}

/// `fields`: no two texts are equal but for letter case and white space.
fn distinct(_: &Setting<'_>, with: &With, row: &Row) -> Found {
    let mut known = BTreeMap::new();
    first(row, with, |path, value| {
        texts(value).into_iter().find_map(|text| {
            let before = known.insert(folded(text), path.to_owned())?;
            Some(format!("has {text:?}, as `{before}` has"))
        })
    })
}

/// `text`: has no content word of the texts at `of` that those at `except` lack. Words of two letters and words for times do not count.
fn no_words_of(_: &Setting<'_>, with: &With, row: &Row) -> Found {
    let of = |paths: Vec<String>| paths.iter().flat_map(|path| content_words(&text(row, path))).collect();
    let forbidden: BTreeSet<String> = of(needed(with, "of")?);
    let except: BTreeSet<String> = of(given(with, "except")?.unwrap_or_default());
    let said = content_words(&text(row, &needed::<String>(with, "text")?));
    let counts = |word: &&String| {
        word.chars().count() >= 3
            && !is_of_time(word)
            && forbidden.contains(word.as_str())
            && !except.contains(word.as_str())
    };
    let given: Vec<&String> = said.iter().filter(counts).collect();
    Ok((!given.is_empty()).then(|| format!("it says: {}", listed_words(given))))
}

/// `text`: has none of the `phrases`.
fn no_phrases(_: &Setting<'_>, with: &With, row: &Row) -> Found {
    let said = phrase(&text(row, &needed::<String>(with, "text")?));
    let phrases: Vec<String> = needed(with, "phrases")?;
    let found = phrases.into_iter().find(|one| said.contains(&phrase(one)));
    Ok(found.map(|one| format!("it says {one:?}")))
}

/// `text`: has the text at `value`, which may be empty.
fn has(_: &Setting<'_>, with: &With, row: &Row) -> Found {
    let value = text(row, &needed::<String>(with, "value")?);
    let said = phrase(&text(row, &needed::<String>(with, "text")?));
    Ok((!value.trim().is_empty() && !said.contains(&phrase(&value))).then(|| format!("it lacks {value:?}")))
}

/// `text`: has no word of negation or change ([`crate::case::check::words::CHANGE_WORDS`]).
fn no_change_words(_: &Setting<'_>, with: &With, row: &Row) -> Found {
    let said = change_words(&text(row, &needed::<String>(with, "text")?));
    Ok((!said.is_empty()).then(|| format!("it says: {}", listed_words(&said))))
}

/// `fields`: each text ends as a sentence does.
fn sentences(_: &Setting<'_>, with: &With, row: &Row) -> Found {
    let closing = |c: char| c.is_whitespace() || "\"'”’»)]*_".contains(c);
    let is_open =
        |text: &&str| !text.trim_end_matches(closing).ends_with(['.', '!', '?', '…', '。', '！', '？']);
    first(row, with, |_, value| texts(value).into_iter().find(is_open).map(|text| format!("has {text:?}")))
}

/// `field`: has `least` to `most` words, or elements if it is a list.
fn size(_: &Setting<'_>, with: &With, row: &Row) -> Found {
    let path: String = needed(with, "field")?;
    let (size, unit) = match row.get(&path) {
        Some(Value::Array(list)) => (list.len(), "element"),
        _ => (words(&text(row, &path)).len(), "word"),
    };
    beyond(with, 0, &path, size, unit)
}

/// A number of units beyond the parameters `least` and `most`.
fn beyond(with: &With, usual: usize, path: &str, number: usize, unit: &str) -> Found {
    let (least, most) = (given(with, "least")?.unwrap_or(usual), given(with, "most")?.unwrap_or(usize::MAX));
    Ok((!(least..=most).contains(&number)).then(|| format!("`{path}` has {}", counted(number, unit))))
}

/// `field`: is one of the values `of`; letter case and white space of texts do not count.
fn one_of(_: &Setting<'_>, with: &With, row: &Row) -> Found {
    let path: String = needed(with, "field")?;
    let value = row.get(&path).unwrap_or(&Value::Null);
    let all: Vec<Value> = needed(with, "of")?;
    Ok((!all.iter().any(|one| same(one, value))).then(|| format!("`{path}` is {value}")))
}

/// `field`: has the value at the path `to`.
fn equals(_: &Setting<'_>, with: &With, row: &Row) -> Found {
    let (path, to): (String, String) = (needed(with, "field")?, needed(with, "to")?);
    let [value, other] = [&path, &to].map(|path| row.get(path).unwrap_or(&Value::Null));
    Ok((!same(value, other)).then(|| format!("`{path}` is {value}, `{to}` is {other}")))
}

fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::String(a), Value::String(b)) => folded(a) == folded(b),
        (a, b) => a == b,
    }
}

/// `field`: `least` to `most` turns with texts, by user and assistant in turn.
fn turns(_: &Setting<'_>, with: &With, row: &Row) -> Found {
    let path: String = needed(with, "field")?;
    let Ok(turns) = row.read::<Vec<Turn>>(&path) else {
        return Ok(Some(format!("`{path}` is no list of turns with role and content")));
    };
    let beyond = beyond(with, 1, &path, turns.len(), "turn")?;
    if beyond.is_some() {
        return Ok(beyond);
    }
    let speakers = [USER, ASSISTANT].into_iter().cycle();
    let wrong =
        turns.iter().zip(speakers).position(|(turn, role)| turn.role != role || is_stray(&turn.content));
    Ok(wrong.map(|nth| format!("turn {nth} of `{path}` is {:?} by {}", turns[nth].content, turns[nth].role)))
}

/// `expression`: a Jinja expression over the row's fields that is true. A fault if it cannot be evaluated, unless it reads a field that a
/// reply of the stage may lack.
fn holds(setting: &Setting<'_>, with: &With, row: &Row) -> Found {
    let expression: String = needed(with, "expression")?;
    let stage = setting.spec.stages.iter().find(|stage| stage.name == setting.stage);
    let ask = stage.and_then(|stage| stage.ask.as_ref());
    let may_lack = |ask: &Ask| {
        let replied = ask.fields();
        let mut read = parse_expression(&expression).unwrap_or_default().into_iter();
        read.all(|name| {
            row.fields.contains_key(&name) || replied.as_ref().is_none_or(|fields| fields.contains(&name))
        })
    };
    match expression::holds(&expression, &row.fields) {
        Ok(true) => Ok(None),
        Ok(false) => Ok(Some(format!("`{expression}` does not hold"))),
        Err(why) if why.contains(UNDEFINED) && ask.is_some_and(may_lack) => Ok(Some(why)),
        Err(why) => Err(RowError::Fault(format!("row {}: {why}", row.id))),
    }
}
