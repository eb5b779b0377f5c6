//! `/v1/chat/completions`.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::answers::{Collected, Finished, Order, Shape, Token};
use super::app::App;
use super::attention_reply::{Asked, Reply};
use super::attention_request::AttentionRequest;
use super::common::{Common, IGNORED, SHARED, identifier, now, room};
use super::costs::Cost;
use super::error::ApiError;
use super::fields::{self, Fields, NotServed};
use super::format::Format;
use super::given;
use super::logprobs;
use super::memory::Held;
use super::model::ServedModel;
use super::pieces::Said;
use super::prompt::{Conversation, chat_spans};
use super::score::ScoreRequest;
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
pub const NOT_YET: [NotServed; 10] = [
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
    /// What they take.
    pub held: Held,
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
    let (format, tools) = (Format::read(&fields)?, ToolRequest::read(&fields)?);
    let mut sent = Sent::read_all(&fields)?;
    let mut asked = AttentionRequest::of(&fields, model)?;
    given::take_last(asked.as_mut(), &mut sent)?;
    let is_given = asked.as_ref().is_some_and(|asked| asked.answer.is_some());
    let voice = match (thinking(&fields)?, effort(&fields)?) {
        // A given answer has no thought before it, where that can be.
        (None, effort) if is_given => {
            model.voice(Some(false), effort).or_else(|_| model.voice(None, effort))?
        }
        (thinking, effort) => model.voice(thinking, effort)?,
    };
    let conversation = Conversation::new(model, &sent, tools.told());
    let tokenizer = &model.text.tokenizer;
    let (tokens, asked) = match asked {
        None => (conversation.tokens(&voice.template, tokenizer)?, None),
        Some(attention) => {
            let spans = |sent: &[Sent], attention: &AttentionRequest| {
                let conversation = Conversation::new(model, sent, tools.told());
                chat_spans(&voice.template, tokenizer, &conversation, attention)
            };
            let prompt = chat_spans(&voice.template, tokenizer, &conversation, &attention)?;
            let of_score = |score: &ScoreRequest| score.of_chat(&attention, (model, &sent, &prompt), &spans);
            let scoring = attention.score.as_ref().map(of_score).transpose()?;
            (prompt.tokens.clone(), Some(Asked::new(attention, prompt, scoring, &model.spec)))
        }
    };
    let attention = asked.as_ref().map(|asked| &asked.attention);
    let forced = given::tokens(attention, (tokenizer, model.limit), &tokens, &common)?;
    let names = ["max_completion_tokens", "max_tokens"];
    let prompt = ("messages", tokens.len());
    let most = match &forced {
        None => room(app, &fields, prompt, 1, &names, app.settings.tokens)?,
        Some(answer) => given::check_room(answer, app, &fields, prompt, &names)?,
    };
    let (mut rows, mut keys, mut top_keys) = Default::default();
    if let Some(asked) = &asked {
        (rows, keys) = (asked.rows()?, asked.keys());
        asked.attention.check_size(model, keys.len(), most)?;
        top_keys = asked.attention.top_keys(model, &rows, most)?;
    }
    let rules = match forced {
        None => {
            let mut rules =
                TokenRules { constraint: tools.constraint(model, &format)?, ..common.rules.clone() };
            if format == Format::Object && tools.told().is_empty() {
                rules.closed_within = Some(closable(model, most)?);
            }
            rules
        }
        Some(_) => TokenRules { forced, ..TokenRules::default() },
    };
    let (likeliest, stop, stops) = match is_given {
        false => {
            let stops = [&common.stops[..], &app.settings.stops].concat();
            (likeliest, model.text.stop.clone(), stops)
        }
        // Nothing but its last token ends it, and its probabilities are what it is given for.
        true => (likeliest.or(Some(0)), Vec::new(), Vec::new()),
    };
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
            ..Request::new(tokens.clone(), common.sampling(choice, most), stop.clone())
        },
        writer: Writer::of_chat(tokenizer, voice.thoughts, stops.clone(), reader.clone()),
        counted: choice == 0,
    };
    let (first, mut held) =
        (order(0), app.memory.take(0).map_err(|full| full.error("the request", None, ""))?);
    let cost = Cost::of(&first.request, asked.as_ref(), &model.spec);
    cost.take(&mut held, common.n, first.request.room())?;
    let orders = std::iter::once(first).chain((1..common.n).map(order)).collect();
    let shape = ChatShape {
        app: Arc::clone(app),
        id: identifier("chatcmpl"),
        created: now(),
        logprobs: likeliest.is_some(),
        thinks,
        asked,
    };
    Ok(Job { orders, shape, common, held })
}

/// The room of an answer that is one JSON object.
///
/// # Errors
/// Less room than the least object takes.
fn closable(model: &ServedModel, most: usize) -> Result<usize, ApiError> {
    let least = model.text.tokenizer.encode("{}").map_or(1, |tokens| tokens.len());
    if most >= least {
        return Ok(most);
    }
    let name = "max_completion_tokens";
    let message = format!(
        "`{name}` leaves room for {most} tokens, and a JSON object takes at least {least}; ask for more"
    );
    Err(ApiError { code: Some("json_does_not_fit"), ..ApiError::field(name, message) })
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

    fn attention(&self, finished: &Finished, told: bool) -> Result<Option<Reply>, ApiError> {
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
    async fn settle(&mut self, _choice: usize) -> Result<(), ApiError> {
        match &mut self.asked {
            None => Ok(()),
            Some(asked) => asked.settle(&self.app).await,
        }
    }

    fn envelope(&self, stream: bool) -> Map<String, Value> {
        let object = if stream { "chat.completion.chunk" } else { "chat.completion" };
        Map::from_iter([
            ("id".to_owned(), self.id.clone().into()),
            ("object".to_owned(), object.into()),
            ("created".to_owned(), self.created.into()),
            ("model".to_owned(), self.app.model.name().into()),
        ])
    }

    fn open(&mut self, choice: usize) -> Option<Said> {
        Some(ChatShape::chunk(choice, json!({"role": "assistant", "content": ""}), None).into())
    }

    fn token(&mut self, choice: usize, token: &Token) -> Result<Option<Said>, ApiError> {
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
        let asked = self.asked.as_ref().filter(|_| !chosen.rows.is_empty());
        let attention = asked.map(|asked| asked.reply_rows(&chosen.rows)).transpose()?;
        Ok(Some(Said { fields: said, attention }))
    }

    fn close(&mut self, choice: usize, finished: &Finished) -> Result<Said, ApiError> {
        let delta = ChatShape::delta(&finished.piece);
        let fields = ChatShape::chunk(choice, delta.into(), Some(finished.reason));
        Ok(Said { fields, attention: self.attention(finished, true)? })
    }

    fn whole(&mut self, choice: usize, collected: Collected) -> Result<Said, ApiError> {
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
        let fields = json!({
            "index": choice, "message": message, "logprobs": self.logprobs(&tokens), "finish_reason": finished.reason
        });
        Ok(Said { fields, attention: self.attention(&finished, false)? })
    }
}
