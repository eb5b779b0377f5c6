//! `/tokenize`, `/detokenize` and `/tokenizer_info` as in vLLM, and `/tokenizer.json`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::app::App;
use super::error::ApiError;
use super::json::{list, read};
use super::memory::Held;
use super::prompts::check_tokens;
use super::sent::{Message, Sent, drop_neutral_of_messages};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizeRequest {
    model: Option<String>,
    prompt: Option<String>,
    #[serde(default, deserialize_with = "list::<1, 4096, _, _>")]
    messages: Vec<Message>,
    /// Ignored: the chat template writes special tokens; plain text contains only those it spells.
    #[serde(rename = "add_special_tokens")]
    _add_special_tokens: Option<bool>,
    add_generation_prompt: Option<bool>,
    #[serde(default)]
    return_token_strs: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DetokenizeRequest {
    model: Option<String>,
    tokens: Vec<u32>,
}

#[derive(Debug, Serialize)]
pub struct Tokens {
    count: usize,
    max_model_len: usize,
    tokens: Vec<u32>,
    token_strs: Option<Vec<String>>,
}

/// Bytes per token of a reply, built and serialised.
const TOKEN: u64 = 4 + 16;
const TEXT: u64 = 128;

pub fn tokenize(app: &Arc<App>, mut body: Value) -> Result<(Tokens, Held), ApiError> {
    drop_neutral_of_messages(&mut body)?;
    let fields: TokenizeRequest = read(&body)?;
    check_model(app, fields.model)?;
    let model = &app.model;
    let tokenizer = &model.text.tokenizer;
    let (field, text) = match (fields.prompt, fields.messages) {
        (None, messages) if messages.is_empty() => return Err(ApiError::missing("prompt")),
        (Some(text), messages) if messages.is_empty() => ("prompt", text),
        (Some(_), _) => {
            let message = "`prompt` and `messages` say the same; give one of them";
            return Err(ApiError::field("messages", message));
        }
        (None, messages) => {
            let sent = Sent::all(messages)?;
            if sent.iter().any(Sent::of_tools) {
                let message = "messages with calls of functions and results are not tokenised by this path; leave them out";
                return Err(ApiError::field("messages", message));
            }
            let turns: Vec<_> = sent.iter().map(Sent::turn).collect();
            let opening = fields.add_generation_prompt.unwrap_or(true);
            ("messages", model.text.template.render_turns(&turns, &[], &[], opening)?)
        }
    };
    let strings = fields.return_token_strs;
    model.limit.check(field, text.len())?;
    let tokens = tokenizer.encode(&text).map_err(|error| ApiError::from(error).of("prompt"))?;
    let count = tokens.len();
    let takes = count as u64 * if strings { TOKEN + TEXT } else { TOKEN };
    let held = app.memory.take(takes).map_err(|full| full.error("the reply", Some("prompt"), "send less"))?;
    let token_strs =
        strings.then(|| tokens.iter().map(|&id| tokenizer.token(id).unwrap_or_default()).collect());
    Ok((Tokens { count, max_model_len: model.text.context, tokens, token_strs }, held))
}

/// Includes special tokens.
pub fn detokenize(app: &Arc<App>, body: Value) -> Result<Value, ApiError> {
    let DetokenizeRequest { model, tokens } = read(&body)?;
    check_model(app, model)?;
    check_tokens("tokens", &tokens, app.model.spec.vocab)?;
    let text = app.model.text.tokenizer.decode(&tokens, false);
    Ok(json!({"prompt": text.map_err(ApiError::internal)?}))
}

fn check_model(app: &App, name: Option<String>) -> Result<(), ApiError> {
    name.map_or(Ok(()), |name| app.check_model(&name))
}

pub fn file(app: &App) -> Result<(String, Held), ApiError> {
    let file = app.model.text.tokenizer.to_json().map_err(ApiError::internal)?;
    let held = app.memory.take(file.len() as u64);
    Ok((file, held.map_err(|full| full.error("the reply", None, "try again later"))?))
}

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
