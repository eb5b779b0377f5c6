//! Prompt fields: a text, an array of texts, token ids, or an array of token id arrays.

use serde_json::Value;

use super::error::{ApiError, ensure};
use super::json::{found, read_at};
use super::model::TextLimit;

#[derive(Debug, PartialEq)]
pub enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

pub fn check_tokens(at: &str, ids: &[u32], vocab: usize) -> Result<(), ApiError> {
    match ids.iter().enumerate().find(|(_, id)| **id as usize >= vocab) {
        None => Ok(()),
        Some((i, id)) => {
            let reason = format!("is {id}; the model's token ids are 0 to {}", vocab.saturating_sub(1));
            Err(ApiError::at(format!("{at}[{i}]"), reason))
        }
    }
}

/// Up to 2,048 prompts with their paths for errors.
pub fn all(
    field: &Value,
    name: &str,
    vocab: usize,
    limit: Option<&TextLimit>,
) -> Result<Vec<(String, Prompt)>, ApiError> {
    let text = |name: &str, text: &String| {
        limit.map_or(Ok(()), |limit| limit.check(name, text.len())).map(|()| Prompt::Text(text.clone()))
    };
    let tokens = |name: &str, ids: &Value| {
        let ids: Vec<u32> = read_at(name, ids)?;
        check_tokens(name, &ids, vocab).map(|()| Prompt::Tokens(ids))
    };
    let list = match field {
        Value::String(one) => return Ok(vec![(name.to_owned(), text(name, one)?)]),
        Value::Array(list) => list,
        other => {
            let wanted = "a string, or an array of texts, of token ids or of arrays of token ids";
            return Err(ApiError::wrong(name, found(other), wanted));
        }
    };
    if list.first().is_some_and(Value::is_number) {
        return Ok(vec![(name.to_owned(), tokens(name, field)?)]);
    }
    let reason = format_args!("has {} entries; give 1 to 2048", list.len());
    ensure((1..=2048).contains(&list.len()), name, reason)?;
    let one = |(i, entry): (usize, &Value)| {
        let name = format!("{name}[{i}]");
        let prompt = match entry {
            Value::String(one) => text(&name, one)?,
            Value::Array(_) => tokens(&name, entry)?,
            _ => {
                let reason =
                    "is of another kind than the first entry; give texts alone, token ids, or arrays of them";
                return Err(ApiError::at(name, reason));
            }
        };
        Ok((name, prompt))
    };
    list.iter().enumerate().map(one).collect()
}
