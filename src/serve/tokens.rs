//! `/tokenize`, `/detokenize` and `/tokenizer_info`, as vLLM names them.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};

use super::app::App;
use super::error::ApiError;
use super::fields::Fields;
use super::fields::read_tokens;
use super::memory::Held;
use super::sent::Sent;
use super::text_limit::{messages_fit, texts_fit};
use palimpsest_core::text::Message;

/// Fields of `/tokenize`.
pub const TOKENIZE_FIELDS: [&str; 6] =
    ["model", "prompt", "messages", "add_special_tokens", "add_generation_prompt", "return_token_strs"];

/// Fields of `/detokenize`.
pub const DETOKENIZE_FIELDS: [&str; 2] = ["model", "tokens"];

/// A text as tokens.
#[derive(Debug, Serialize)]
pub struct Tokens {
    count: usize,
    max_model_len: usize,
    tokens: Vec<u32>,
    token_strs: Option<Vec<String>>,
}

/// Bytes of a token of a reply, and of its text, as they are made and written.
const TOKEN: u64 = 4 + 16;
const TEXT: u64 = 128;

/// Refuses what cannot fit the context by far.
///
/// # Errors
/// Why, with the field.
pub fn fits(app: &Arc<App>, body: &Value) -> Result<(), ApiError> {
    messages_fit(app, body)?;
    texts_fit(app, body, "prompt")
}

/// A text or a conversation as tokens, and what they take.
///
/// # Errors
/// What cannot be served, with its field.
pub fn tokenize(app: &Arc<App>, body: &Value) -> Result<(Tokens, Held), ApiError> {
    let fields = Fields::of_body(body)?;
    fields.only(&TOKENIZE_FIELDS)?;
    check_model(app, &fields)?;
    let model = &app.model;
    let tokenizer = &model.text.tokenizer;
    let strings = fields.flag("return_token_strs")?.unwrap_or(false);
    // The chat template writes the special tokens of a conversation; a text has those that it spells.
    fields.flag("add_special_tokens")?;
    let opening = fields.flag("add_generation_prompt")?.unwrap_or(true);
    let (field, text) = match (fields.text("prompt")?, fields.get("messages")) {
        (Some(_), Some(_)) => {
            return Err(ApiError::field(
                "messages",
                "`prompt` and `messages` say the same; give one of them",
            ));
        }
        (None, Some(_)) => {
            let sent = Sent::read_all(&fields)?;
            let messages: Option<Vec<Message>> = sent.iter().map(Sent::message).collect();
            let Some(messages) = messages else {
                let message = "messages with calls of functions and results are not tokenised by this path; leave them out";
                return Err(ApiError::field("messages", message));
            };
            ("messages", model.text.template.render(&messages, opening)?)
        }
        (text, None) => {
            fields.required("prompt")?;
            ("prompt", text.unwrap_or_default().to_owned())
        }
    };
    model.limit.check(field, text.len())?;
    let tokens = tokenizer.encode(&text).map_err(|error| ApiError::from(error).of("prompt"))?;
    let count = tokens.len();
    let takes = count as u64 * if strings { TOKEN + TEXT } else { TOKEN };
    let held = app.memory.take(takes).map_err(|full| full.error("the reply", Some("prompt"), "send less"))?;
    let token_strs =
        strings.then(|| tokens.iter().map(|&id| tokenizer.token(id).unwrap_or_default()).collect());
    Ok((Tokens { count, max_model_len: model.text.context, tokens, token_strs }, held))
}

/// Tokens as a text, special ones included.
///
/// # Errors
/// What cannot be served, with its field.
pub fn detokenize(app: &App, body: &Value) -> Result<Value, ApiError> {
    let fields = Fields::of_body(body)?;
    fields.only(&DETOKENIZE_FIELDS)?;
    check_model(app, &fields)?;
    fields.required("tokens")?;
    let tokens = read_tokens("tokens", fields.list("tokens")?.unwrap_or_default(), app.model.spec.vocab)?;
    let text = app.model.text.tokenizer.decode(&tokens, false);
    Ok(json!({"prompt": text.map_err(|error| ApiError::internal(error.to_string()))?}))
}

fn check_model(app: &App, fields: &Fields<'_>) -> Result<(), ApiError> {
    fields.text("model")?.map_or(Ok(()), |name| app.check_model(name))
}

/// What a client needs to know of the tokeniser.
pub fn info(app: &App) -> Value {
    let text = &app.model.text;
    let bos = Some(text.template.bos()).filter(|bos| !bos.is_empty());
    let eos = text.template.eos();
    json!({
        "tokenizer_class": "palimpsest", "model_max_length": text.context, "vocab_size": text.tokenizer.vocab_size(),
        "bos_token": bos, "eos_token": eos, "pad_token": eos, "chat_template": text.template.source(),
        "add_bos_token": false, "add_eos_token": false
    })
}
