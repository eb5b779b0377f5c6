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
use super::format::Format;
use super::logprobs;
use super::prompt::{Conversation, chat_spans};
use super::sent::Sent;
use super::tools::ToolRequest;
use super::writer::{Piece, Writer};
use crate::engine::TokenRules;
use crate::engine::thread::{Chosen, Request};
use crate::prompt::{CallPiece, ReasoningEffort};

/// Fields of this endpoint alone.
pub const OWN: [&str; 11] = [
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "max_completion_tokens",
    "max_tokens",
    "logprobs",
    "top_logprobs",
    "reasoning_effort",
    "chat_template_kwargs",
];

/// Fields of OpenAI's API that are not served yet, with the values that ask for nothing.
pub const NOT_YET: [NotServed; 11] = [
    ("functions", fields::empty),
    ("function_call", none_or_auto),
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
    let (format, tools) = (Format::read(&fields)?, ToolRequest::read(&fields)?);
    let sent = Sent::read_all(&fields)?;
    let conversation = Conversation::new(model, &sent, tools.told());
    let asked = match fields.get("palimpsest") {
        None => None,
        Some(value) => Some(AttentionRequest::read(value, model)?),
    };
    let tokenizer = &model.text.tokenizer;
    let (tokens, asked) = match asked {
        None => (conversation.tokens(&voice.template, tokenizer)?, None),
        Some(attention) => {
            let prompt = chat_spans(&voice.template, tokenizer, &conversation, &attention)?;
            (prompt.tokens.clone(), Some(Asked::new(attention, prompt, &model.spec)))
        }
    };
    let names = ["max_completion_tokens", "max_tokens"];
    let most = room(app, &fields, ("messages", tokens.len()), 1, &names, None)?;
    let (mut rows, mut keys, mut top_keys) = Default::default();
    if let Some(asked) = &asked {
        (rows, keys) = (asked.rows()?, asked.keys());
        asked.attention.check_size(model, keys.len(), most)?;
        top_keys = asked.attention.top_keys(model, &rows, most)?;
    }
    let rules = TokenRules { constraint: tools.constraint(model, &format)?, ..common.rules.clone() };
    let reader = tools.reader(model);
    let thinker = model.thinker(voice.thoughts, most);
    let thinks = thinker.is_some();
    let order = |choice: usize| Order {
        request: Request {
            rows: rows.clone(),
            keys: keys.clone(),
            top_keys,
            rules: rules.clone(),
            thinker: thinker.clone(),
            most: Some(most),
            likeliest,
            tell_rows: common.stream && asked.as_ref().is_some_and(|asked| asked.attention.each()),
            ..Request::new(tokens.clone(), common.sampling(choice, most), model.text.stop.clone())
        },
        writer: Writer::of_chat(tokenizer, voice.thoughts, common.stops.clone(), reader.clone()),
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

/// A piece of a call as a stream has it: the first one names the function.
fn call_delta(piece: &CallPiece) -> Value {
    let CallPiece { index, name, arguments } = piece;
    match name {
        None => json!({"index": index, "function": {"arguments": arguments}}),
        Some(name) => json!({
            "index": index, "id": call_identifier(), "type": "function",
            "function": {"name": name, "arguments": arguments}
        }),
    }
}

/// Whole calls.
fn joined(pieces: &[CallPiece]) -> Vec<Value> {
    let mut calls: Vec<(&str, String)> = Vec::new();
    for CallPiece { name, arguments, .. } in pieces {
        match (name, calls.last_mut()) {
            (Some(name), _) => calls.push((name, arguments.clone())),
            (None, Some((_, all))) => all.push_str(arguments),
            (None, None) => {}
        }
    }
    let call = |(name, arguments)| {
        json!({
            "id": call_identifier(), "type": "function", "function": {"name": name, "arguments": arguments}
        })
    };
    calls.into_iter().map(call).collect()
}

fn call_identifier() -> String {
    identifier("call").replace('-', "_")
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
        let reply = asked.reply(&finished.measured, thought, told)?;
        Ok(Some(asked.with_tokens(reply, &generated.tokens)))
    }

    /// What a piece adds to a message, in a stream.
    fn delta(piece: &Piece) -> Map<String, Value> {
        let mut delta = Map::new();
        for (key, text) in [("reasoning_content", &piece.thought), ("content", &piece.text)] {
            if !text.is_empty() {
                delta.insert(key.to_owned(), text.as_str().into());
            }
        }
        if !piece.calls.is_empty() {
            let calls: Vec<Value> = piece.calls.iter().map(call_delta).collect();
            delta.insert("tool_calls".to_owned(), calls.into());
        }
        delta
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
        let mut delta = ChatShape::delta(piece);
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
        let delta = ChatShape::delta(&finished.piece);
        let mut said = ChatShape::chunk(choice, delta.into(), Some(finished.reason));
        if let Some(attention) = self.attention(finished, true)? {
            said["palimpsest"] = attention;
        }
        Ok(said)
    }

    fn whole(&mut self, choice: usize, collected: Collected) -> Result<Value, ApiError> {
        let Collected { thought, text, calls, tokens, finished } = collected;
        let only_calls = text.is_empty() && !calls.is_empty();
        let content = ((finished.has_answer || thought.is_empty()) && !only_calls).then_some(text);
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !thought.is_empty() {
            message["reasoning_content"] = thought.into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = joined(&calls).into();
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
