//! An answer that a request brings, to be measured in the place of a generated one.

use std::sync::Arc;

use super::app::App;
use super::attention_request::{AttentionRequest, GivenAnswer};
use super::common::{Common, room};
use super::error::ApiError;
use super::fields::Fields;
use super::sent::Sent;
use super::text_limit::TextLimit;
use crate::prompt::{PromptError, Speaker, Tokenizer};

/// The field.
const FIELD: &str = "palimpsest.answer";

/// Tokens at the end of a prompt that decide how the text after it is cut.
const BEFORE: usize = 8;

/// The last message, taken off the conversation, where it is the answer; what else the answer is stays as it is.
///
/// # Errors
/// A last message that is no answer.
pub fn take_last(asked: Option<&mut AttentionRequest>, sent: &mut Vec<Sent>) -> Result<(), ApiError> {
    let Some(answer) = asked.and_then(|asked| asked.answer.as_mut()) else { return Ok(()) };
    if *answer != GivenAnswer::LastMessage {
        return Ok(());
    }
    let text = match sent.split_last() {
        Some((last, [_, ..])) if last.role == Speaker::Assistant => last.message(),
        _ => None,
    };
    let Some(message) = text else {
        let message = "`palimpsest.answer` is true, and the last message is no text of the assistant's after others; send the \
                       answer as such a message, or give its text";
        return Err(ApiError::field(FIELD, message));
    };
    sent.pop();
    *answer = GivenAnswer::Text(message.content);
    Ok(())
}

/// The answer's tokens after a prompt; `None` where it is to be generated. Text is cut into tokens as behind the prompt's end.
///
/// # Errors
/// An answer that cannot be measured, and one of several choices.
pub fn tokens(
    asked: Option<&AttentionRequest>,
    (tokenizer, limit): (&Tokenizer, TextLimit),
    prompt: &[u32],
    common: &Common,
) -> Result<Option<Arc<[u32]>>, ApiError> {
    let Some(answer) = asked.and_then(|asked| asked.answer.as_ref()) else { return Ok(None) };
    if common.n > 1 {
        return Err(ApiError::field(
            "n",
            "`n` is for answers that are generated; with `palimpsest.answer` leave it out",
        ));
    }
    let tokens = match answer {
        GivenAnswer::Tokens(tokens) => tokens.clone(),
        GivenAnswer::Text(text) => {
            limit.check(FIELD, text.len())?;
            text_tokens(tokenizer, prompt, text).map_err(|error| ApiError::from(error).of(FIELD))?
        }
        GivenAnswer::LastMessage => {
            let message = "`palimpsest.answer` is true, and there is no last message; give the answer's text";
            return Err(ApiError::field(FIELD, message));
        }
    };
    if tokens.is_empty() {
        let message = "`palimpsest.answer` has no tokens; give at least one";
        return Err(ApiError::field(FIELD, message));
    }
    Ok(Some(tokens.into()))
}

fn text_tokens(tokenizer: &Tokenizer, prompt: &[u32], text: &str) -> Result<Vec<u32>, PromptError> {
    let before = prompt.get(prompt.len().saturating_sub(BEFORE)..).unwrap_or_default();
    let before = tokenizer.decode(before, false)?;
    let both = tokenizer.encode(&format!("{before}{text}"))?;
    match both.strip_prefix(tokenizer.encode(&before)?.as_slice()) {
        Some(tokens) => Ok(tokens.to_vec()),
        // A token reaches across the border: the answer by itself.
        None => tokenizer.encode(text),
    }
}

/// Tokens that are read behind the prompt: those of the answer, within what a request lets be generated and the context.
///
/// # Errors
/// An answer that does not fit.
pub fn check_room(
    answer: &[u32],
    app: &App,
    fields: &Fields<'_>,
    prompt: (&str, usize),
    names: &[&str],
) -> Result<usize, ApiError> {
    let most = room(app, fields, prompt, 0, names, usize::MAX)?;
    if answer.len() > most {
        let message = format!(
            "`palimpsest.answer` has {} tokens, and {most} fit behind the prompt; shorten it, or raise {}",
            answer.len(),
            names.join(" or ")
        );
        return Err(ApiError::field(FIELD, message));
    }
    Ok(answer.len())
}
