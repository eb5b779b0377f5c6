//! Answers given by the request, measured instead of generated.

use std::sync::Arc;

use super::app::App;
use super::attention_request::AttentionRequest;
use super::common::{Common, room};
use super::error::ApiError;
use super::json::OneOf;
use super::model::ServedModel;
use super::sent::Sent;
use palimpsest_core::text::{Speaker, TextError, Tokenizer};

const FIELD: &str = "palimpsest.answer";

/// Prompt tokens whose context determines how following text is tokenised.
const BEFORE: usize = 8;

/// Moves the last message out of the conversation if it is the given answer.
pub fn take_last(asked: Option<&mut AttentionRequest>, sent: &mut Vec<Sent>) -> Result<(), ApiError> {
    let Some(answer) = asked.and_then(|asked| asked.answer.as_mut()) else { return Ok(()) };
    if *answer != OneOf::Bool(true) {
        return Ok(());
    }
    let text = match sent.split_last() {
        Some((last, [_, ..])) if last.role == Speaker::Assistant && !last.of_tools() => last.content(),
        _ => {
            let reason = "is true, and the last message is no text of the assistant's after others; send the answer as such a message, \
                          or give its text";
            return Err(ApiError::at(FIELD, reason));
        }
    };
    sent.pop();
    *answer = OneOf::Text(text);
    Ok(())
}

/// Tokens of the given answer, tokenised in the prompt's context; `None` if it is to be generated.
pub fn tokens(
    asked: Option<&AttentionRequest>,
    model: &ServedModel,
    prompt: &[u32],
    common: &Common,
) -> Result<Option<Arc<[u32]>>, ApiError> {
    let Some(answer) = asked.and_then(|asked| asked.answer.as_ref()) else { return Ok(None) };
    if common.n > 1 {
        let reason = "is for answers that are generated; with `palimpsest.answer` leave it out";
        return Err(ApiError::at("n", reason));
    }
    let tokens = match answer {
        OneOf::Other(tokens) => tokens.clone(),
        OneOf::Text(text) => {
            model.limit.check(FIELD, text.len())?;
            text_tokens(&model.text.tokenizer, prompt, text)
                .map_err(|error| ApiError::from(error).of(FIELD))?
        }
        OneOf::Bool(_) | OneOf::Number(_) => {
            let reason = "is true, and there is no last message; give the answer's text";
            return Err(ApiError::at(FIELD, reason));
        }
    };
    if tokens.is_empty() {
        return Err(ApiError::at(FIELD, "has no tokens; give at least one"));
    }
    Ok(Some(tokens.into()))
}

fn text_tokens(tokenizer: &Tokenizer, prompt: &[u32], text: &str) -> Result<Vec<u32>, TextError> {
    let before = prompt.get(prompt.len().saturating_sub(BEFORE)..).unwrap_or_default();
    let before = tokenizer.decode(before, false)?;
    let both = tokenizer.encode(&format!("{before}{text}"))?;
    match both.strip_prefix(tokenizer.encode(&before)?.as_slice()) {
        Some(tokens) => Ok(tokens.to_vec()),
        // A token crosses the border: tokenise the answer alone.
        None => tokenizer.encode(text),
    }
}

/// Checks the answer's length against the request's limit and the context, and returns it.
pub fn check_room(
    answer: &[u32],
    app: &App,
    prompt: (&str, usize),
    asked: &[(&'static str, Option<usize>)],
) -> Result<usize, ApiError> {
    let most = room(app, prompt, asked, usize::MAX)?;
    if answer.len() > most {
        let names: Vec<&str> = asked.iter().map(|(name, _)| *name).collect();
        let reason = format!(
            "has {} tokens, and {most} fit behind the prompt; shorten it, or raise {}",
            answer.len(),
            names.join(" or ")
        );
        return Err(ApiError::at(FIELD, reason));
    }
    Ok(answer.len())
}
