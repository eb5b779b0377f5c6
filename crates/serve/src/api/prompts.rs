//! Prompt fields: a text, an array of texts, token ids, or an array of token id arrays.

use super::error::ApiError;
use super::json::OneOf;

pub type Prompts = OneOf<Vec<OneOf<Vec<u32>>>>;

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

pub fn has_tokens(field: &Prompts) -> bool {
    matches!(field, OneOf::Other(list) if list.iter().any(|entry| !matches!(entry, OneOf::Text(_))))
}

/// Up to 2,048 prompts with their paths for errors.
pub fn all(field: Prompts, name: &str, vocab: usize) -> Result<Vec<(String, Prompt)>, ApiError> {
    let list = match field {
        OneOf::Text(text) => return Ok(vec![(name.to_owned(), Prompt::Text(text))]),
        OneOf::Other(list) => list,
        other => {
            let wanted = "a string, or an array of texts, of token ids or of arrays of token ids";
            return Err(other.wrong(name, wanted));
        }
    };
    let other = |i: usize| {
        let reason =
            "is of another kind than the first entry; give texts alone, token ids, or arrays of them";
        ApiError::at(format!("{name}[{i}]"), reason)
    };
    if let Some(OneOf::Number(_)) = list.first() {
        let id = |(i, entry): (usize, &OneOf<Vec<u32>>)| match entry {
            OneOf::Number(number) => {
                let id = number.as_u64().and_then(|id| u32::try_from(id).ok());
                id.ok_or_else(|| entry.wrong(format!("{name}[{i}]"), "a token id"))
            }
            _ => Err(other(i)),
        };
        let ids = list.iter().enumerate().map(id).collect::<Result<Vec<_>, _>>()?;
        check_tokens(name, &ids, vocab)?;
        return Ok(vec![(name.to_owned(), Prompt::Tokens(ids))]);
    }
    if !(1..=2048).contains(&list.len()) {
        return Err(ApiError::at(name, format!("has {} entries; give 1 to 2048", list.len())));
    }
    let one = |(i, entry): (usize, OneOf<Vec<u32>>)| {
        let name = format!("{name}[{i}]");
        let prompt = match entry {
            OneOf::Text(text) => Prompt::Text(text),
            OneOf::Other(ids) => check_tokens(&name, &ids, vocab).map(|()| Prompt::Tokens(ids))?,
            OneOf::Bool(_) | OneOf::Number(_) => return Err(other(i)),
        };
        Ok((name, prompt))
    };
    list.into_iter().enumerate().map(one).collect()
}
