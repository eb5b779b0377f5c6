//! `/v1/chat/completions`.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::answers::{Collected, Finished, Order, Shape, Token};
use super::app::App;
use super::attention_reply::Asked;
use super::attention_request::AttentionRequest;
use super::common::{Common, IGNORED, SHARED, identifier, now, room};
use super::error::ApiError;
use super::fields::{self, Fields, NotServed};
use super::logprobs;
use super::prompt::{Sent, chat_spans, chat_tokens};
use super::writer::Writer;
use crate::engine::thread::{Chosen, Request};
use crate::prompt::ReasoningEffort;

/// Fields of this endpoint alone.
pub const OWN: [&str; 7] = [
    "messages",
    "max_completion_tokens",
    "max_tokens",
    "logprobs",
    "top_logprobs",
    "reasoning_effort",
    "chat_template_kwargs",
];

/// Fields of OpenAI's API that are not served yet, with the values that ask for nothing.
pub const NOT_YET: [NotServed; 18] = [
    ("tools", fields::empty),
    ("tool_choice", none_or_auto),
    ("parallel_tool_calls", fields::anything),
    ("functions", fields::empty),
    ("function_call", none_or_auto),
    ("response_format", plain_text),
    ("frequency_penalty", fields::zero),
    ("presence_penalty", fields::zero),
    ("logit_bias", fields::empty),
    ("audio", fields::never),
    ("modalities", text_alone),
    ("prediction", fields::never),
    ("web_search_options", fields::never),
    ("store", fields::no),
    ("service_tier", none_or_auto),
    ("verbosity", fields::never),
    ("moderation", fields::never),
    ("top_k", fields::never),
];

fn none_or_auto(value: &Value) -> bool {
    ["none", "auto", "default"].iter().any(|word| value == word)
}

fn plain_text(value: &Value) -> bool {
    *value == json!({"type": "text"})
}

fn text_alone(value: &Value) -> bool {
    *value == json!(["text"])
}

/// What a request came to.
pub struct Job {
    /// One an answer.
    pub orders: Vec<Order>,
    /// How they look.
    pub shape: ChatShape,
    /// How they are sent.
    pub common: Common,
}

/// Reads a request.
///
/// # Errors
/// What cannot be served, with its field.
pub fn prepare(app: &Arc<App>, body: &Value) -> Result<Job, ApiError> {
    let fields = Fields::of_body(body)?;
    fields.neutral(&NOT_YET)?;
    let not_yet: Vec<&str> = NOT_YET.iter().map(|(key, _)| *key).collect();
    fields.only(&[&SHARED[..], &OWN, &IGNORED, &not_yet].concat())?;
    let common = Common::read(app, &fields)?;
    let likeliest = match (fields.flag("logprobs")?.unwrap_or(false), fields.count("top_logprobs", 0..=20)?) {
        (true, most) => Some(most.unwrap_or(0)),
        (false, None | Some(0)) => None,
        (false, Some(_)) => {
            let message = "`top_logprobs` needs `logprobs`: true; set both, or leave both out";
            return Err(ApiError::field("top_logprobs", message));
        }
    };
    let model = &app.model;
    let voice = model.voice(thinking(&fields)?, effort(&fields)?)?;
    let sent = Sent::read_all(&fields)?;
    let asked = match fields.get("palimpsest") {
        None => None,
        Some(value) => Some(AttentionRequest::read(value, model)?),
    };
    let tokenizer = &model.text.tokenizer;
    let (tokens, asked) = match asked {
        None => (chat_tokens(&voice.template, tokenizer, &sent)?, None),
        Some(attention) => {
            let prompt = chat_spans(&voice.template, tokenizer, &sent, &attention)?;
            (prompt.tokens.clone(), Some(Asked::new(attention, prompt, &model.spec)))
        }
    };
    let names = ["max_completion_tokens", "max_tokens"];
    let most = room(app, &fields, ("messages", tokens.len()), 1, &names, None)?;
    let (mut rows, mut keys) = Default::default();
    if let Some(asked) = &asked {
        (rows, keys) = (asked.rows()?, asked.keys());
        asked.attention.check_size(model, keys.len(), most)?;
    }
    let thinker = model.thinker(voice.thoughts, most);
    let thinks = thinker.is_some();
    let order = |choice: usize| Order {
        request: Request {
            rows: rows.clone(),
            keys: keys.clone(),
            thinker: thinker.clone(),
            most: Some(most),
            likeliest,
            tell_rows: common.stream && asked.as_ref().is_some_and(|asked| asked.attention.each()),
            ..Request::new(tokens.clone(), common.sampling(choice, most), model.text.stop.clone())
        },
        writer: Writer::of_chat(tokenizer, voice.thoughts, common.stops.clone()),
        counted: choice == 0,
    };
    let orders = (0..common.n).map(order).collect();
    let shape = ChatShape {
        app: Arc::clone(app),
        id: identifier("chatcmpl"),
        created: now(),
        logprobs: likeliest.is_some(),
        thinks,
        asked,
    };
    Ok(Job { orders, shape, common })
}

/// What `chat_template_kwargs` say; only the switch of thoughts is known.
fn thinking(fields: &Fields<'_>) -> Result<Option<bool>, ApiError> {
    let Some(kwargs) = fields.get("chat_template_kwargs") else { return Ok(None) };
    let kwargs = Fields::of(kwargs, "chat_template_kwargs")?;
    kwargs.only(&["enable_thinking", "thinking"])?;
    Ok(kwargs.flag("enable_thinking")?.or(kwargs.flag("thinking")?))
}

fn effort(fields: &Fields<'_>) -> Result<Option<ReasoningEffort>, ApiError> {
    match fields.text("reasoning_effort")? {
        None => Ok(None),
        Some("low") => Ok(Some(ReasoningEffort::Low)),
        Some("medium") => Ok(Some(ReasoningEffort::Medium)),
        Some("high") => Ok(Some(ReasoningEffort::High)),
        Some(other) => {
            let other: String = other.chars().take(40).collect();
            let message = format!("`reasoning_effort` is {other:?}; give low, medium or high");
            Err(ApiError::field("reasoning_effort", message))
        }
    }
}

/// How chat completions look.
pub struct ChatShape {
    app: Arc<App>,
    id: String,
    created: u64,
    logprobs: bool,
    thinks: bool,
    asked: Option<Asked>,
}

impl ChatShape {
    fn logprobs(&self, tokens: &[Chosen]) -> Value {
        if !self.logprobs {
            return Value::Null;
        }
        let likelihoods = tokens.iter().filter_map(|chosen| chosen.likelihood.as_ref());
        let content: Vec<Value> = likelihoods.map(|one| logprobs::of_chat(&self.app.model, one)).collect();
        json!({"content": content, "refusal": null})
    }

    fn attention(&self, finished: &Finished, told: bool) -> Result<Option<Value>, ApiError> {
        let Some(asked) = &self.asked else { return Ok(None) };
        let generated = &finished.measured.generated;
        let thought = if self.thinks { generated.thought } else { 0 };
        let reply = asked.reply(&finished.measured.masses, generated.tokens.len(), thought, told)?;
        Ok(Some(asked.with_tokens(reply, &generated.tokens)))
    }

    fn chunk(choice: usize, delta: Value, reason: Option<&str>) -> Value {
        json!({"index": choice, "delta": delta, "logprobs": null, "finish_reason": reason})
    }
}

impl Shape for ChatShape {
    fn envelope(&self, stream: bool) -> Map<String, Value> {
        let object = if stream { "chat.completion.chunk" } else { "chat.completion" };
        Map::from_iter([
            ("id".to_owned(), self.id.clone().into()),
            ("object".to_owned(), object.into()),
            ("created".to_owned(), self.created.into()),
            ("model".to_owned(), self.app.model.name().into()),
        ])
    }

    fn open(&mut self, choice: usize) -> Option<Value> {
        Some(ChatShape::chunk(choice, json!({"role": "assistant", "content": ""}), None))
    }

    fn token(&mut self, choice: usize, token: &Token) -> Result<Option<Value>, ApiError> {
        let Token { piece, chosen } = token;
        let mut delta = Map::new();
        if !piece.thought.is_empty() {
            delta.insert("reasoning_content".to_owned(), piece.thought.as_str().into());
        }
        if !piece.text.is_empty() {
            delta.insert("content".to_owned(), piece.text.as_str().into());
        }
        if delta.is_empty() && !self.logprobs && chosen.rows.is_empty() {
            return Ok(None);
        }
        if delta.is_empty() {
            delta.insert("content".to_owned(), "".into());
        }
        let mut said = ChatShape::chunk(choice, delta.into(), None);
        said["logprobs"] = self.logprobs(std::slice::from_ref(chosen));
        if let Some(asked) = self.asked.as_ref().filter(|_| !chosen.rows.is_empty()) {
            said["palimpsest"] = asked.reply_rows(&chosen.rows)?;
        }
        Ok(Some(said))
    }

    fn close(&mut self, choice: usize, finished: &Finished) -> Result<Value, ApiError> {
        let mut delta = Map::new();
        if !finished.piece.thought.is_empty() {
            delta.insert("reasoning_content".to_owned(), finished.piece.thought.as_str().into());
        }
        if !finished.piece.text.is_empty() {
            delta.insert("content".to_owned(), finished.piece.text.as_str().into());
        }
        let mut said = ChatShape::chunk(choice, delta.into(), Some(finished.reason));
        if let Some(attention) = self.attention(finished, true)? {
            said["palimpsest"] = attention;
        }
        Ok(said)
    }

    fn whole(&mut self, choice: usize, collected: Collected) -> Result<Value, ApiError> {
        let Collected { thought, text, tokens, finished } = collected;
        let content = (finished.has_answer || thought.is_empty()).then_some(text);
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !thought.is_empty() {
            message["reasoning_content"] = thought.into();
        }
        let mut said = json!({
            "index": choice, "message": message, "logprobs": self.logprobs(&tokens), "finish_reason": finished.reason
        });
        if let Some(attention) = self.attention(&finished, false)? {
            said["palimpsest"] = attention;
        }
        Ok(said)
    }
}
