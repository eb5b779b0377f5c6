//! `/v1/chat/completions`.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::answers::{PreparedCompletion, Shape};
use super::app::App;
use super::ask::{Finished, Plan};
use super::attention_reply::Asked;
use super::attention_request::AttentionRequest;
use super::common::Common;
use super::error::{ApiError, ensure};
use super::format::{Format, ResponseFormat};
use super::given::{self, Limit};
use super::json::{Neutral, OF_CLIENTS, count, drop_neutral, is_empty, list, read};
use super::log::identifier;
use super::logprobs;
use super::model::ServedModel;
use super::prompt::{Conversation, chat_spans};
use super::score;
use super::sent::{DocumentField, Documents, Message, Sent, drop_neutral_of_messages};
use super::tools::{ToolField, ToolRequest};
use super::writer::{Piece, Writer};
use palimpsest_core::engine::Chosen;
use palimpsest_core::text::{CallPiece, ReasoningEffort};

/// OpenAI fields accepted only at values without effect.
pub const NEUTRAL: [Neutral; 6] = [
    OF_CLIENTS,
    (&["functions"], is_empty),
    (&["function_call", "service_tier"], |value| {
        ["none", "auto", "default"].iter().any(|word| value == word)
    }),
    (&["modalities"], |value| *value == json!(["text"])),
    (&["store"], |value| *value == Value::Bool(false)),
    (&["audio", "prediction", "web_search_options", "verbosity", "moderation"], |_| false),
];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChatRequest {
    #[serde(default)]
    logprobs: bool,
    #[serde(default, deserialize_with = "count::<0, 20, _, _>")]
    top_logprobs: Option<usize>,
    response_format: Option<ResponseFormat>,
    #[serde(default, deserialize_with = "list::<0, 128, _, _>")]
    tools: Vec<ToolField>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    #[serde(deserialize_with = "list::<1, 4096, _, _>")]
    messages: Vec<Message>,
    #[serde(default, deserialize_with = "list::<0, 4096, _, _>")]
    documents: Vec<DocumentField>,
    chat_template_kwargs: Option<TemplateKwargs>,
    reasoning_effort: Option<ReasoningEffort>,
    #[serde(default, deserialize_with = "count::<1, { usize::MAX }, _, _>")]
    max_completion_tokens: Option<usize>,
    #[serde(default, deserialize_with = "count::<1, { usize::MAX }, _, _>")]
    max_tokens: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TemplateKwargs {
    enable_thinking: Option<bool>,
    thinking: Option<bool>,
}

pub fn prepare(app: &Arc<App>, mut body: Value) -> Result<PreparedCompletion<ChatShape>, ApiError> {
    drop_neutral(&mut body, "", &NEUTRAL)?;
    drop_neutral_of_messages(&mut body)?;
    let (common, mut asked) = Common::read(app, &mut body)?;
    let fields: ChatRequest = read(&body)?;
    let most = fields.top_logprobs.unwrap_or(0);
    let reason = "needs `logprobs`: true; set both, or leave both out";
    ensure(fields.logprobs || most == 0, "top_logprobs", reason)?;
    let likeliest = fields.logprobs.then_some(most);
    let model = &app.model;
    let format = Format::new(fields.response_format)?;
    let tools =
        ToolRequest::new(fields.tools, fields.tool_choice, fields.parallel_tool_calls.unwrap_or(true))?;
    let mut sent = Sent::all(fields.messages)?;
    given::take_last(asked.as_mut(), &mut sent)?;
    let is_given = asked.as_ref().is_some_and(|asked| asked.answer.is_some());
    let thinking = fields.chat_template_kwargs.and_then(|kwargs| kwargs.enable_thinking.or(kwargs.thinking));
    let effort = fields.reasoning_effort;
    let (template, thoughts) = match thinking {
        // A given answer has no thought, if thinking can be switched off.
        None if is_given => model.voice(Some(false), effort).or_else(|_| model.voice(None, effort))?,
        thinking => model.voice(thinking, effort)?,
    };
    let shows_documents = !fields.documents.is_empty() && template.takes_documents()?;
    let documents = Documents::new(fields.documents, shows_documents, &mut sent)?;
    let tokenizer = &model.text.tokenizer;
    let (tokens, asked) = match asked {
        None => (Conversation::new(model, &sent, tools.told(), &documents)?.tokens(&template)?, None),
        Some(attention) => {
            let spans = |sent: &[Sent], attention: &AttentionRequest| {
                let conversation = Conversation::new(model, sent, tools.told(), &documents)?;
                chat_spans(&template, &conversation, attention)
            };
            let prompt = spans(&sent, &attention)?;
            let scoring = score::of_chat(&attention, (model, &sent, &prompt), &spans)?;
            (prompt.tokens.clone(), Some(Asked::new(attention, prompt, scoring, &model.spec)?))
        }
    };
    let asks = [("max_completion_tokens", fields.max_completion_tokens), ("max_tokens", fields.max_tokens)];
    let limit = Limit { asked: &asks, usual: app.options.max_answer };
    let attention = asked.as_ref().map(|asked| &asked.attention);
    let (forced, most) = given::answer(app, attention, &common, ("messages", &tokens), &limit)?;
    let mut generate = common.generate(app, forced, most);
    if !is_given {
        generate.rules.constraint = tools.constraint(model, &format)?;
        if format == Format::Object && tools.told().is_empty() {
            generate.rules.closed_within = Some(closable(model, most)?);
        }
    }
    // Given answers always return logprobs.
    generate.likeliest = likeliest.or(is_given.then_some(0));
    generate.thinker = model.thinker(thoughts, most);
    let logprobs = generate.likeliest.is_some();
    let stops: Vec<String> = match is_given {
        false => common.stops.iter().chain(app.options.stops.iter().flatten()).cloned().collect(),
        true => Vec::new(),
    };
    let reader = tools.reader(model)?;
    let writer = |_| Writer::of_chat(tokenizer, thoughts, stops.clone(), reader.clone());
    let writers = (0..common.n).map(writer).collect();
    let plan = Plan { tokens, generate, scores_prompt: false, writers };
    let mut held = app.memory.hold();
    let order = plan.order(app, &common, asked.as_ref(), &mut held)?;
    let shape = ChatShape { app: Arc::clone(app), logprobs, asked };
    Ok(PreparedCompletion { orders: [order].into(), shape, common, held })
}

/// Token limit of a JSON object answer; fails below the tokens of `{}`.
fn closable(model: &ServedModel, most: usize) -> Result<usize, ApiError> {
    let least = model.text.tokenizer.encode("{}").map_or(1, |tokens| tokens.len());
    if most >= least {
        return Ok(most);
    }
    let reason =
        format!("leaves room for {most} tokens, and a JSON object takes at least {least}; ask for more");
    Err(ApiError::at("max_completion_tokens", reason).with_code("json_does_not_fit"))
}

/// Call of an answer, or in a stream the delta of a call, whose first piece names the function.
fn call(piece: &CallPiece, streams: bool) -> Value {
    let CallPiece { index, name, arguments } = piece;
    let mut call = if streams { json!({"index": index}) } else { json!({}) };
    if name.is_some() {
        call["id"] = identifier("call").replace('-', "_").into();
        call["type"] = "function".into();
    }
    call["function"] = match name {
        None => json!({"arguments": arguments}),
        Some(name) => json!({"name": name, "arguments": arguments}),
    };
    call
}

/// Whole calls of their pieces.
fn joined(pieces: Vec<CallPiece>) -> Vec<Value> {
    let mut calls: Vec<CallPiece> = Vec::new();
    for piece in pieces {
        match calls.last_mut() {
            Some(call) if piece.name.is_none() => call.arguments.push_str(&piece.arguments),
            _ => calls.push(piece),
        }
    }
    calls.iter().map(|piece| call(piece, false)).collect()
}

pub struct ChatShape {
    app: Arc<App>,
    logprobs: bool,
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

    fn annotations(&self) -> Option<Value> {
        Some(self.asked.as_ref()?.annotations()?.into())
    }

    fn delta(piece: &Piece) -> Map<String, Value> {
        let mut delta = Map::new();
        for (key, text) in [("reasoning_content", &piece.thought), ("content", &piece.text)] {
            if !text.is_empty() {
                delta.insert(key.to_owned(), text.as_str().into());
            }
        }
        if !piece.calls.is_empty() {
            delta
                .insert("tool_calls".to_owned(), piece.calls.iter().map(|piece| call(piece, true)).collect());
        }
        delta
    }
}

impl Shape for ChatShape {
    const ID: &'static str = "chatcmpl";
    const OBJECTS: [&'static str; 2] = ["chat.completion", "chat.completion.chunk"];

    fn asked(&mut self, _choice: usize) -> Option<&mut Asked> {
        self.asked.as_mut()
    }

    fn open(&mut self, _choice: usize) -> Option<Value> {
        Some(json!({"delta": {"role": "assistant", "content": ""}, "logprobs": null}))
    }

    fn token(&mut self, piece: &Piece, chosen: &Chosen) -> Option<Value> {
        let mut delta = ChatShape::delta(piece);
        if delta.is_empty() && !self.logprobs && chosen.rows.is_empty() {
            return None;
        }
        if delta.is_empty() {
            delta.insert("content".to_owned(), "".into());
        }
        Some(json!({"delta": delta, "logprobs": self.logprobs(std::slice::from_ref(chosen))}))
    }

    fn close(&mut self, finished: &Finished) -> Value {
        let mut delta = ChatShape::delta(&finished.piece);
        if let Some(annotations) = self.annotations() {
            delta.insert("annotations".to_owned(), annotations);
        }
        json!({"delta": delta, "logprobs": null})
    }

    fn whole(&mut self, _choice: usize, said: Piece, tokens: &[Chosen], finished: &Finished) -> Value {
        let Piece { thought, text, calls } = said;
        let only_calls = text.is_empty() && !calls.is_empty();
        let content = ((finished.has_answer || thought.is_empty()) && !only_calls).then_some(text);
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !thought.is_empty() {
            message["reasoning_content"] = thought.into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = joined(calls).into();
        }
        if let Some(annotations) = self.annotations() {
            message["annotations"] = annotations;
        }
        json!({"message": message, "logprobs": self.logprobs(tokens)})
    }
}
