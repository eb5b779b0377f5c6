//! `/v1/completions`: texts that are continued, and the probabilities of their tokens.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::answers::{Collected, Finished, Order, Shape, Token};
use super::app::App;
use super::attention_reply::Asked;
use super::attention_request::AttentionRequest;
use super::common::{Common, IGNORED, SHARED, identifier, now, room};
use super::error::ApiError;
use super::fields::{self, Fields, NotServed, wrong};
use super::logprobs::CompletionLogprobs;
use super::prompt::{TokenPrompt, text_spans, token_spans};
use super::writer::Writer;
use crate::engine::Likelihood;
use crate::engine::thread::{Chosen, Request};

/// Fields of this endpoint alone.
pub const OWN: [&str; 4] = ["prompt", "max_tokens", "logprobs", "echo"];

/// Fields of OpenAI's API that are not served yet, with the values that ask for nothing.
pub const NOT_YET: [NotServed; 3] =
    [("suffix", fields::empty), ("best_of", fields::one), ("top_k", fields::never)];

/// Most prompts of a request.
const MOST_PROMPTS: usize = 2048;

/// Most new tokens, unless told otherwise, as at OpenAI.
const USUAL: usize = 16;

/// What a request came to.
pub struct Job {
    /// One an answer.
    pub orders: Vec<Order>,
    /// How they look.
    pub shape: CompletionShape,
    /// How they are sent.
    pub common: Common,
}

/// A prompt as it was sent.
enum Sent {
    Text(String),
    Tokens(Vec<u32>),
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
    let likeliest = fields.count("logprobs", 0..=20)?;
    let echo = fields.flag("echo")?.unwrap_or(false);
    let model = &app.model;
    let tokenizer = &model.text.tokenizer;
    let asked = match fields.get("palimpsest") {
        None => None,
        Some(value) => Some(AttentionRequest::read(value, model)?),
    };
    let mut orders = Vec::new();
    let mut prompts = Vec::new();
    for sent in read_prompts(&fields, model.spec.vocab)? {
        let text = match (&sent, echo) {
            (_, false) => String::new(),
            (Sent::Text(text), true) => text.clone(),
            (Sent::Tokens(tokens), true) => {
                tokenizer.decode(tokens, false).map_err(|error| ApiError::internal(error.to_string()))?
            }
        };
        let (tokens, measured) = match (sent, &asked) {
            (Sent::Text(text), None) => {
                let tokens = tokenizer.encode(&text);
                (tokens.map_err(|error| ApiError::from(error).of("prompt"))?, None)
            }
            (Sent::Tokens(tokens), None) => (tokens, None),
            (sent, Some(attention)) => {
                let prompt: TokenPrompt = match sent {
                    Sent::Text(text) => text_spans(tokenizer, &text, attention)?,
                    Sent::Tokens(tokens) => token_spans(tokens, attention)?,
                };
                (prompt.tokens.clone(), Some(Asked::new(attention.clone(), prompt, &model.spec)))
            }
        };
        if tokens.is_empty() {
            let message = "`prompt` has no tokens; a model needs at least one to say anything";
            return Err(ApiError::field("prompt", message));
        }
        let most = room(app, &fields, ("prompt", tokens.len()), 0, &["max_tokens"], Some(USUAL))?;
        let (mut rows, mut keys, mut top_keys) = Default::default();
        if let Some(asked) = &measured {
            (rows, keys) = (asked.rows()?, asked.keys());
            asked.attention.check_size(model, keys.len(), most)?;
            top_keys = asked.attention.top_keys(model, &rows, most)?;
        }
        for choice in 0..common.n {
            let sampling = common.sampling(orders.len(), most);
            orders.push(Order {
                request: Request {
                    rows: rows.clone(),
                    keys: keys.clone(),
                    top_keys,
                    rules: common.rules.clone(),
                    likeliest,
                    prompt_likeliest: likeliest.filter(|_| echo),
                    tell_rows: common.stream && measured.as_ref().is_some_and(|asked| asked.attention.each()),
                    ..Request::new(tokens.clone(), sampling, model.text.stop.clone())
                },
                writer: Writer::of_completion(tokenizer, common.stops.clone()),
                counted: choice == 0,
            });
        }
        prompts.push(Prompt { text, first: tokens.first().copied(), asked: measured });
    }
    let shape = CompletionShape {
        app: Arc::clone(app),
        id: identifier("cmpl"),
        created: now(),
        logprobs: likeliest.is_some(),
        echo,
        n: common.n,
        prompts,
        offset: 0,
    };
    Ok(Job { orders, shape, common })
}

/// A text, an array of texts, an array of token ids, or an array of such arrays.
fn read_prompts(fields: &Fields<'_>, vocab: usize) -> Result<Vec<Sent>, ApiError> {
    let wanted = "a text, an array of texts, an array of token ids, or an array of such arrays";
    let one = |at: &str, value: &Value| match value {
        Value::String(text) => Ok(Sent::Text(text.clone())),
        Value::Array(tokens) => read_tokens(at, tokens, vocab).map(Sent::Tokens),
        value => Err(wrong(at, value, wanted)),
    };
    match fields.required("prompt")? {
        Value::Array(list) if list.is_empty() || list.len() > MOST_PROMPTS && !list[0].is_number() => {
            let message = format!("`prompt` has {} prompts; give 1 to {MOST_PROMPTS}", list.len());
            Err(ApiError::field("prompt", message))
        }
        Value::Array(list) if !list[0].is_number() => {
            list.iter().enumerate().map(|(i, value)| one(&format!("prompt[{i}]"), value)).collect()
        }
        value => Ok(vec![one("prompt", value)?]),
    }
}

/// Token ids of the model's.
///
/// # Errors
/// The first value that is none.
pub fn read_tokens(at: &str, values: &[Value], vocab: usize) -> Result<Vec<u32>, ApiError> {
    let mut tokens = Vec::with_capacity(values.len());
    for (i, value) in values.iter().enumerate() {
        let id = value.as_u64().filter(|&id| id < vocab as u64).and_then(|id| u32::try_from(id).ok());
        let Some(id) = id else {
            let name = format!("{at}[{i}]");
            return Err(match value {
                Value::Number(found) => {
                    let message =
                        format!("`{name}` is {found}; the model's token ids are 0 to {}", vocab - 1);
                    ApiError::field(name, message)
                }
                value => wrong(&name, value, "a token id"),
            });
        };
        tokens.push(id);
    }
    Ok(tokens)
}

/// What is known of a prompt when its answers come.
struct Prompt {
    /// Where it is given back.
    text: String,
    first: Option<u32>,
    asked: Option<Asked>,
}

/// How completions look.
pub struct CompletionShape {
    app: Arc<App>,
    id: String,
    created: u64,
    logprobs: bool,
    echo: bool,
    /// Choices a prompt.
    n: usize,
    prompts: Vec<Prompt>,
    /// Characters of the choice under way, of a stream.
    offset: usize,
}

impl CompletionShape {
    fn prompt(&self, choice: usize) -> Option<&Prompt> {
        self.prompts.get(choice / self.n.max(1))
    }

    fn logprobs(&self, chosen: &[Chosen], offset: &mut usize) -> Value {
        if !self.logprobs {
            return Value::Null;
        }
        let mut lists = CompletionLogprobs::default();
        for likelihood in chosen.iter().filter_map(|chosen| chosen.likelihood.as_ref()) {
            lists.push(&self.app.model, likelihood, offset);
        }
        lists.json()
    }

    fn attention(&self, choice: usize, finished: &Finished, told: bool) -> Result<Option<Value>, ApiError> {
        let Some(asked) = self.prompt(choice).and_then(|prompt| prompt.asked.as_ref()) else {
            return Ok(None);
        };
        let generated = &finished.measured.generated.tokens;
        let reply = asked.reply(&finished.measured, 0, told)?;
        Ok(Some(asked.with_tokens(reply, generated)))
    }

    fn chunk(choice: usize, text: &str, logprobs: Value, reason: Option<&str>) -> Value {
        json!({"index": choice, "text": text, "logprobs": logprobs, "finish_reason": reason})
    }
}

impl Shape for CompletionShape {
    fn envelope(&self, _stream: bool) -> Map<String, Value> {
        Map::from_iter([
            ("id".to_owned(), self.id.clone().into()),
            ("object".to_owned(), "text_completion".into()),
            ("created".to_owned(), self.created.into()),
            ("model".to_owned(), self.app.model.name().into()),
        ])
    }

    fn open(&mut self, choice: usize) -> Option<Value> {
        self.offset = 0;
        if !self.echo {
            return None;
        }
        if self.logprobs {
            // It comes with the prompt's probabilities.
            return None;
        }
        let text = self.prompt(choice).map(|prompt| prompt.text.clone()).unwrap_or_default();
        self.offset = text.chars().count();
        Some(CompletionShape::chunk(choice, &text, Value::Null, None))
    }

    fn scored(&mut self, choice: usize, prompt: &[Likelihood]) -> Option<Value> {
        let mut lists = CompletionLogprobs::default();
        let mut offset = 0;
        let of = self.prompt(choice)?;
        lists.push_first(&self.app.model, of.first?, &mut offset);
        for likelihood in prompt {
            lists.push(&self.app.model, likelihood, &mut offset);
        }
        let said = CompletionShape::chunk(choice, &of.text, lists.json(), None);
        self.offset = offset;
        Some(said)
    }

    fn token(&mut self, choice: usize, token: &Token) -> Result<Option<Value>, ApiError> {
        let Token { piece, chosen } = token;
        if piece.text.is_empty() && !self.logprobs && chosen.rows.is_empty() {
            return Ok(None);
        }
        let mut offset = self.offset;
        let logprobs = self.logprobs(std::slice::from_ref(chosen), &mut offset);
        self.offset = offset;
        let mut said = CompletionShape::chunk(choice, &piece.text, logprobs, None);
        let asked = self.prompt(choice).and_then(|prompt| prompt.asked.as_ref());
        if let Some(asked) = asked.filter(|_| !chosen.rows.is_empty()) {
            said["palimpsest"] = asked.reply_rows(&chosen.rows)?;
        }
        Ok(Some(said))
    }

    fn close(&mut self, choice: usize, finished: &Finished) -> Result<Value, ApiError> {
        let logprobs = match &finished.measured.end {
            Some(end) if self.logprobs => {
                let mut lists = CompletionLogprobs::default();
                lists.push(&self.app.model, end, &mut self.offset);
                lists.json()
            }
            _ => Value::Null,
        };
        let mut said = CompletionShape::chunk(choice, &finished.piece.text, logprobs, Some(finished.reason));
        if let Some(attention) = self.attention(choice, finished, true)? {
            said["palimpsest"] = attention;
        }
        Ok(said)
    }

    fn whole(&mut self, choice: usize, collected: Collected) -> Result<Value, ApiError> {
        let Collected { text, tokens, finished, .. } = collected;
        let prompt = self.prompt(choice);
        let echoed = prompt.filter(|_| self.echo).map(|prompt| prompt.text.as_str()).unwrap_or_default();
        let mut logprobs = Value::Null;
        if self.logprobs {
            let (mut lists, mut offset) = (CompletionLogprobs::default(), 0);
            let model = &self.app.model;
            if let Some(first) = prompt.filter(|_| self.echo).and_then(|prompt| prompt.first) {
                lists.push_first(model, first, &mut offset);
            }
            let generated = tokens.iter().filter_map(|chosen| chosen.likelihood.as_ref());
            // The token that ended the text is one of those predicted, though none of the text.
            for likelihood in finished.measured.prompt.iter().chain(generated).chain(&finished.measured.end) {
                lists.push(model, likelihood, &mut offset);
            }
            logprobs = lists.json();
        }
        let said = format!("{echoed}{text}");
        let mut said = CompletionShape::chunk(choice, &said, logprobs, Some(finished.reason));
        if let Some(attention) = self.attention(choice, &finished, false)? {
            said["palimpsest"] = attention;
        }
        Ok(said)
    }
}
