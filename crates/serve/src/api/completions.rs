//! `/v1/completions`: text continuation and token logprobs.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::answers::{Collected, PreparedCompletion, Shape};
use super::app::App;
use super::ask::{Finished, Plan};
use super::attention_reply::Asked;
use super::attention_request::AttentionRequest;
use super::common::{Common, room};
use super::error::ApiError;
use super::given;
use super::json::{Neutral, OF_CLIENTS, count, drop_neutral, is_empty, read};
use super::logprobs::{CompletionLogprobs, TextPosition};
use super::prompt::{text_spans, token_spans};
use super::prompts::{self, Prompt as Sent, Prompts};
use super::score;
use super::writer::{Piece, Writer};
use palimpsest_core::engine::{Chosen, Likelihood};

/// OpenAI's default `max_tokens`.
const USUAL: usize = 16;

/// OpenAI fields accepted only at values without effect.
pub const NEUTRAL: [Neutral; 3] =
    [OF_CLIENTS, (&["suffix"], is_empty), (&["best_of"], |value| value.as_f64() == Some(1.0))];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompletionRequest {
    #[serde(default, deserialize_with = "count::<0, 20, _, _>")]
    logprobs: Option<usize>,
    #[serde(default)]
    echo: bool,
    prompt: Prompts,
    max_tokens: Option<usize>,
}

pub fn prepare(app: &Arc<App>, mut body: Value) -> Result<PreparedCompletion<CompletionShape>, ApiError> {
    drop_neutral(&mut body, "", &NEUTRAL)?;
    let (common, asked) = Common::read(app, &mut body)?;
    let fields: CompletionRequest = read(&body)?;
    let (echo, limits) = (fields.echo, [("max_tokens", fields.max_tokens)]);
    let model = &app.model;
    let tokenizer = &model.text.tokenizer;
    if asked.as_ref().is_some_and(|asked| asked.cite) {
        let reason = "is for chats, whose messages have annotations; ask /v1/chat/completions, or for palimpsest.causes";
        return Err(ApiError::at("palimpsest.cite", reason));
    }
    let mut held = app.memory.take(0).map_err(|full| full.error("the request", None, ""))?;
    // Given answers always return logprobs, and end only with their last token.
    let is_given = asked.as_ref().is_some_and(|asked| asked.answer.is_some());
    let likeliest = fields.logprobs.or(is_given.then_some(0));
    let stops = if is_given { Vec::new() } else { common.stops.clone() };
    let mut orders = VecDeque::new();
    let mut prompts = Vec::new();
    for (_, sent) in prompts::all(fields.prompt, "prompt", model.spec.vocab)? {
        let text = match (&sent, echo) {
            (_, false) => String::new(),
            (Sent::Text(text), true) => text.clone(),
            (Sent::Tokens(tokens), true) => {
                tokenizer.decode(tokens, false).map_err(|error| ApiError::internal(error.to_string()))?
            }
        };
        let (tokens, asked) = match (sent, asked.as_ref()) {
            (Sent::Text(text), None) => {
                let tokens = tokenizer.encode(&text);
                (tokens.map_err(|error| ApiError::from(error).of("prompt"))?, None)
            }
            (Sent::Tokens(tokens), None) => (tokens, None),
            (sent, Some(attention)) => {
                let (prompt, scoring) = match sent {
                    Sent::Text(text) => {
                        let prompt = text_spans(tokenizer, &text, attention)?;
                        let spans = |text: &str, asked: &AttentionRequest| text_spans(tokenizer, text, asked);
                        let scoring = score::of_text(attention, (model, &text, &prompt), &spans)?;
                        (prompt, scoring)
                    }
                    Sent::Tokens(_) if attention.score.is_some() => {
                        let reason = "needs a prompt of text, whose question it replaces; a prompt of tokens has no characters";
                        return Err(ApiError::at("palimpsest.score", reason));
                    }
                    Sent::Tokens(tokens) => (token_spans(tokens, attention)?, None),
                };
                let tokens = prompt.tokens.clone();
                (tokens, Some(Asked::new(attention.clone(), prompt, scoring, &model.spec)?))
            }
        };
        let Some(first) = tokens.first().copied() else {
            let reason = "has no tokens; a model needs at least one to say anything";
            return Err(ApiError::at("prompt", reason));
        };
        let attention = asked.as_ref().map(|asked| &asked.attention);
        let forced = given::tokens(attention, model, &tokens, &common)?;
        let place = ("prompt", tokens.len());
        let most = match &forced {
            None => room(app, place, &limits, app.options.max_answer.min(USUAL))?,
            Some(answer) => given::check_room(answer, app, place, &limits)?,
        };
        let rules = common.rules.clone();
        let plan = Plan { tokens, forced, most, rules, thinker: None, likeliest, scores_prompt: echo };
        let writer = || Writer::of_completion(tokenizer, stops.clone());
        let before = orders.len() * common.n;
        orders.push_back(plan.order(app, &common, asked.as_ref(), before, writer, &mut held)?);
        prompts.push(Prompt { text, first, asked });
    }
    let shape = CompletionShape {
        app: Arc::clone(app),
        logprobs: likeliest.is_some(),
        echo,
        n: common.n,
        prompts,
        position: TextPosition::default(),
    };
    Ok(PreparedCompletion { orders, shape, common, held })
}

struct Prompt {
    /// The prompt, if echoed.
    text: String,
    first: u32,
    asked: Option<Asked>,
}

pub struct CompletionShape {
    app: Arc<App>,
    logprobs: bool,
    echo: bool,
    n: usize,
    prompts: Vec<Prompt>,
    position: TextPosition,
}

impl CompletionShape {
    fn prompt(&self, choice: usize) -> Option<&Prompt> {
        self.prompts.get(choice / self.n.max(1))
    }

    /// Streamed logprobs of one token; null if not requested.
    fn logprobs(&mut self, likelihood: Option<&Likelihood>) -> Value {
        let Some(likelihood) = likelihood.filter(|_| self.logprobs) else { return Value::Null };
        let mut lists = CompletionLogprobs::default();
        lists.push_generated(&self.app.model, likelihood, &mut self.position);
        lists.json()
    }

    fn chunk(choice: usize, text: &str, logprobs: Value, reason: Option<&str>) -> Value {
        json!({"index": choice, "text": text, "logprobs": logprobs, "finish_reason": reason})
    }
}

impl Shape for CompletionShape {
    const ID: &'static str = "cmpl";
    const OBJECTS: [&'static str; 2] = ["text_completion"; 2];

    fn asked(&mut self, choice: usize) -> Option<&mut Asked> {
        self.prompts.get_mut(choice / self.n.max(1))?.asked.as_mut()
    }

    fn open(&mut self, choice: usize) -> Option<Value> {
        self.position = TextPosition::default();
        // With logprobs, it is sent with those of the prompt.
        if !self.echo || self.logprobs {
            return None;
        }
        let text = self.prompt(choice).map(|prompt| prompt.text.clone()).unwrap_or_default();
        self.position = TextPosition::behind(&text);
        Some(CompletionShape::chunk(choice, &text, Value::Null, None))
    }

    fn scored(&mut self, choice: usize, prompt: &[Likelihood]) -> Option<Value> {
        let of = self.prompt(choice)?;
        let lists = CompletionLogprobs::of_prompt(&self.app.model, &of.text, of.first, prompt);
        let said = CompletionShape::chunk(choice, &of.text, lists.json(), None);
        self.position = TextPosition::behind(&of.text);
        Some(said)
    }

    fn token(&mut self, choice: usize, piece: &Piece, chosen: &Chosen) -> Option<Value> {
        if piece.text.is_empty() && !self.logprobs && chosen.rows.is_empty() {
            return None;
        }
        let logprobs = self.logprobs(chosen.likelihood.as_ref());
        Some(CompletionShape::chunk(choice, &piece.text, logprobs, None))
    }

    fn close(&mut self, choice: usize, finished: &Finished) -> Value {
        let logprobs = self.logprobs(finished.measured.end.as_ref());
        CompletionShape::chunk(choice, &finished.piece.text, logprobs, Some(finished.reason))
    }

    fn whole(&mut self, choice: usize, collected: Collected, finished: &Finished) -> Value {
        let Collected { text, tokens, .. } = collected;
        let prompt = self.prompt(choice);
        let echoed = prompt.filter(|_| self.echo).map(|prompt| prompt.text.as_str()).unwrap_or_default();
        let mut logprobs = Value::Null;
        if self.logprobs {
            let (model, measured) = (&self.app.model, &finished.measured);
            let mut lists = match prompt.filter(|_| self.echo) {
                Some(Prompt { first, text, .. }) => {
                    CompletionLogprobs::of_prompt(model, text, *first, &measured.prompt)
                }
                None => CompletionLogprobs::default(),
            };
            let mut position = TextPosition::behind(echoed);
            let generated = tokens.iter().filter_map(|chosen| chosen.likelihood.as_ref());
            for likelihood in generated.chain(&measured.end) {
                lists.push_generated(model, likelihood, &mut position);
            }
            lists.keep_within(echoed.chars().count() + text.chars().count());
            logprobs = lists.json();
        }
        CompletionShape::chunk(choice, &format!("{echoed}{text}"), logprobs, Some(finished.reason))
    }
}
