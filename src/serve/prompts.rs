//! Texts of a request as they may be sent: a text, an array of texts, an array of token ids, or an array of such arrays.

use serde::Deserialize;

use super::error::ApiError;

/// The field `prompt`, or `input`.
#[derive(Debug, Deserialize)]
pub enum Prompts {
    #[serde(rename = "a string")]
    Text(String),
    /// Several of one kind, or token ids of one.
    #[serde(rename = "an array of texts, of token ids or of arrays of token ids")]
    Many(Vec<Entry>),
}

/// An entry of the array.
#[derive(Debug, Deserialize)]
pub enum Entry {
    #[serde(rename = "a string")]
    Text(String),
    /// A token of the only text.
    #[serde(rename = "a number")]
    Token(u32),
    #[serde(rename = "an array of token ids")]
    Tokens(Vec<u32>),
}

/// A text as it was sent.
#[derive(Debug, PartialEq)]
pub enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

impl Prompt {
    /// The text, where it is one.
    pub fn text(&self) -> Option<&str> {
        if let Prompt::Text(text) = self { Some(text) } else { None }
    }

    /// The tokens, where it is none.
    pub fn tokens(self) -> Option<Vec<u32>> {
        if let Prompt::Tokens(tokens) = self { Some(tokens) } else { None }
    }
}

/// Refuses token ids that the model has not.
pub fn check_tokens(at: &str, ids: &[u32], vocab: usize) -> Result<(), ApiError> {
    match ids.iter().enumerate().find(|(_, id)| **id as usize >= vocab) {
        None => Ok(()),
        Some((i, id)) => {
            let reason = format!("is {id}; the model's token ids are 0 to {}", vocab.saturating_sub(1));
            Err(ApiError::at(format!("{at}[{i}]"), reason))
        }
    }
}

impl Prompts {
    /// True if it holds token ids.
    pub fn has_tokens(&self) -> bool {
        let Prompts::Many(list) = self else { return false };
        list.iter().any(|entry| !matches!(entry, Entry::Text(_)))
    }

    /// Each text, at most 2,048 of them, with the name that it has in errors.
    pub fn all(self, field: &str, vocab: usize) -> Result<Vec<(String, Prompt)>, ApiError> {
        let list = match self {
            Prompts::Text(text) => return Ok(vec![(field.to_owned(), Prompt::Text(text))]),
            Prompts::Many(list) => list,
        };
        let other = |i: usize| {
            let reason =
                "is of another kind than the first entry; give texts alone, token ids, or arrays of them";
            ApiError::at(format!("{field}[{i}]"), reason)
        };
        if let Some(Entry::Token(_)) = list.first() {
            let id = |(i, entry): (usize, &Entry)| match entry {
                Entry::Token(id) => Ok(*id),
                _ => Err(other(i)),
            };
            let ids = list.iter().enumerate().map(id).collect::<Result<Vec<_>, _>>()?;
            check_tokens(field, &ids, vocab)?;
            return Ok(vec![(field.to_owned(), Prompt::Tokens(ids))]);
        }
        if !(1..=2048).contains(&list.len()) {
            return Err(ApiError::at(field, format!("has {} entries; give 1 to 2048", list.len())));
        }
        let one = |(i, entry): (usize, Entry)| {
            let name = format!("{field}[{i}]");
            let prompt = match entry {
                Entry::Text(text) => Prompt::Text(text),
                Entry::Tokens(ids) => check_tokens(&name, &ids, vocab).map(|()| Prompt::Tokens(ids))?,
                Entry::Token(_) => return Err(other(i)),
            };
            Ok((name, prompt))
        };
        list.into_iter().enumerate().map(one).collect()
    }
}
