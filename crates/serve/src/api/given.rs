//! Lengths of answers, and answers given by the request, which are measured instead of generated.

use std::sync::Arc;

use serde_json::Value;

use super::app::App;
use super::attention_request::AttentionRequest;
use super::common::Common;
use super::error::{ApiError, ensure};
use super::json::read_at;
use super::sent::Sent;
use palimpsest_core::text::{Speaker, TextError, Tokenizer};

const FIELD: &str = "palimpsest.answer";

/// Prompt tokens whose context determines how following text is tokenised.
const BEFORE: usize = 8;

/// Moves the last message out of the conversation if it is the given answer.
pub fn take_last(asked: Option<&mut AttentionRequest>, sent: &mut Vec<Sent>) -> Result<(), ApiError> {
    let Some(answer @ Value::Bool(true)) = asked.and_then(|asked| asked.answer.as_mut()) else {
        return Ok(());
    };
    let text = match sent.split_last() {
        Some((last, [_, ..])) if last.turn.role == Speaker::Assistant && !last.of_tools() => last.content(),
        _ => {
            let reason = "is true, and the last message is no text of the assistant's after others; send the answer as such a message, \
                          or give its text";
            return Err(ApiError::at(FIELD, reason));
        }
    };
    sent.pop();
    *answer = text.into();
    Ok(())
}

/// Limit of an answer's tokens.
#[derive(Clone, Copy)]
pub struct Limit<'a> {
    /// Fields that may set it, with their values.
    pub asked: &'a [(&'static str, Option<usize>)],
    /// Without one, within the context.
    pub usual: usize,
}

/// The given answer, if any, and the limit.
type Given = (Option<Arc<[u32]>>, usize);

/// Tokens of the given answer, tokenised in the prompt's context, and its length; or none, and the limit of generated tokens.
pub fn answer(
    app: &App,
    asked: Option<&AttentionRequest>,
    common: &Common,
    prompt: (&str, &[u32]),
    limit: &Limit<'_>,
) -> Result<Given, ApiError> {
    let (field, tokens) = prompt;
    let Some(answer) = asked.and_then(|asked| asked.answer.as_ref()) else {
        return Ok((None, room(app, (field, tokens.len()), limit)?));
    };
    ensure(common.n == 1, "n", "is for answers that are generated; with `palimpsest.answer` leave it out")?;
    let answer: Arc<[u32]> = match answer {
        Value::String(text) => {
            app.model.limit.check(FIELD, text.len())?;
            let encoded = text_tokens(&app.model.text.tokenizer, tokens, text);
            encoded.map_err(|error| ApiError::from(error).of(FIELD))?.into()
        }
        Value::Array(_) => read_at::<Vec<u32>>(FIELD, answer)?.into(),
        _ => {
            let reason = "is true, and there is no last message; give the answer's text";
            return Err(ApiError::at(FIELD, reason));
        }
    };
    ensure(!answer.is_empty(), FIELD, "has no tokens; give at least one")?;
    let most = room(app, (field, tokens.len()), &Limit { usual: usize::MAX, ..*limit })?;
    let names: Vec<&str> = limit.asked.iter().map(|(name, _)| *name).collect();
    let (length, names) = (answer.len(), names.join(" or "));
    let reason =
        format_args!("has {length} tokens, and {most} fit behind the prompt; shorten it, or raise {names}");
    ensure(length <= most, FIELD, reason)?;
    Ok((Some(answer), length))
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

/// Tokens that may be generated after a prompt, given by its field and length.
fn room(app: &App, (field, tokens): (&str, usize), limit: &Limit<'_>) -> Result<usize, ApiError> {
    let context = app.model.text.context;
    let asked: Vec<(&str, usize)> =
        limit.asked.iter().filter_map(|&(name, most)| Some((name, most?))).collect();
    if let [(other, before), (name, most)] = asked[..] {
        let reason = format_args!("is {most} and `{other}` is {before}; give one of them");
        ensure(before == most, name, reason)?;
    }
    let (asked, free) = (asked.last(), context.saturating_sub(tokens));
    let (param, message) = match asked {
        // At least one token must be predictable.
        _ if tokens > context || (free == 0 && asked.is_none_or(|&(_, most)| most > 0)) => {
            (field, format!("the prompt has {tokens} tokens and the context holds {context}; shorten it"))
        }
        Some(&(name, most)) if most > free => {
            let message = format!(
                "the prompt has {tokens} tokens, `{name}` asks for {most} more and the context holds {context}; ask for at \
                 most {free}, or shorten the prompt"
            );
            (name, message)
        }
        _ => return Ok(asked.map_or(limit.usual.min(free), |&(_, most)| most)),
    };
    Err(ApiError::field(param, message).with_code("context_length_exceeded"))
}
