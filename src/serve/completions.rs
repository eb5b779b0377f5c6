//! `/v1/completions`: texts that are continued, and the probabilities of their tokens.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::answers::{Collected, Finished, Order, Shape, Token};
use super::app::App;
use super::attention_reply::{Asked, Reply};
use super::attention_request::AttentionRequest;
use super::common::{Common, IGNORED, SHARED, identifier, now, room};
use super::costs::Cost;
use super::error::ApiError;
use super::fields::{self, Fields, NotServed, read_tokens, wrong};
use super::given;
use super::logprobs::CompletionLogprobs;
use super::memory::Held;
use super::pieces::Said;
use super::prompt::{TokenPrompt, text_spans, token_spans};
use super::score::ScoreRequest;
use super::writer::Writer;
use crate::engine::thread::{Chosen, Request};
use crate::engine::{Likelihood, TokenRules};

/// Fields of this endpoint alone.
pub const OWN: [&str; 4] = ["prompt", "max_tokens", "logprobs", "echo"];

/// Fields of OpenAI's API that are not served yet, with the values that ask for nothing.
pub const NOT_YET: [NotServed; 2] = [("suffix", fields::empty), ("best_of", fields::one)];

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
    /// What they take.
    pub held: Held,
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
    let asked = AttentionRequest::of(&fields, model)?;
    let mut held = app.memory.take(0).map_err(|full| full.error("the request", None, ""))?;
    let (likeliest, stop, stops) = match asked.as_ref().is_some_and(|asked| asked.answer.is_some()) {
        false => (likeliest, model.text.stop.clone(), common.stops.clone()),
        // Nothing but its last token ends it, and its probabilities are what it is given for.
        true => (likeliest.or(Some(0)), Vec::new(), Vec::new()),
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
        let (tokens, measured) = match (sent, asked.as_ref()) {
            (Sent::Text(text), None) => {
                let tokens = tokenizer.encode(&text);
                (tokens.map_err(|error| ApiError::from(error).of("prompt"))?, None)
            }
            (Sent::Tokens(tokens), None) => (tokens, None),
            (sent, Some(attention)) => {
                let (prompt, scoring): (TokenPrompt, _) = match sent {
                    Sent::Text(text) => {
                        let prompt = text_spans(tokenizer, &text, attention)?;
                        let spans = |text: &str, asked: &AttentionRequest| text_spans(tokenizer, text, asked);
                        let of_score =
                            |score: &ScoreRequest| score.of_text(attention, (model, &text, &prompt), &spans);
                        let scoring = attention.score.as_ref().map(of_score).transpose()?;
                        (prompt, scoring)
                    }
                    Sent::Tokens(_) if attention.score.is_some() => {
                        let message = "`palimpsest.score` needs a prompt of text, whose question it replaces; a prompt of tokens \
                                       has no characters";
                        return Err(ApiError::field("palimpsest.score", message));
                    }
                    Sent::Tokens(tokens) => (token_spans(tokens, attention)?, None),
                };
                let tokens = prompt.tokens.clone();
                (tokens, Some(Asked::new(attention.clone(), prompt, scoring, &model.spec)))
            }
        };
        if tokens.is_empty() {
            let message = "`prompt` has no tokens; a model needs at least one to say anything";
            return Err(ApiError::field("prompt", message));
        }
        let forced = given::tokens(asked.as_ref(), (tokenizer, model.limit), &tokens, &common)?;
        let (place, names) = (("prompt", tokens.len()), ["max_tokens"]);
        let most = match &forced {
            None => room(app, &fields, place, 0, &names, app.settings.tokens.min(USUAL))?,
            Some(answer) => given::check_room(answer, app, &fields, place, &names)?,
        };
        let rules = match forced {
            None => common.rules.clone(),
            Some(_) => TokenRules { forced, ..TokenRules::default() },
        };
        let (mut rows, mut keys, mut top_keys) = Default::default();
        if let Some(asked) = &measured {
            (rows, keys) = (asked.rows()?, asked.keys());
            asked.attention.check_size(model, keys.len(), most)?;
            top_keys = asked.attention.top_keys(model, &rows, most)?;
        }
        let order = |choice: usize, nth: usize| Order {
            request: Request {
                rows: rows.clone(),
                keys: keys.clone(),
                top_keys,
                rules: rules.clone(),
                likeliest,
                prompt_likeliest: likeliest.filter(|_| echo),
                tell_rows: common.stream && measured.as_ref().is_some_and(|asked| asked.attention.each()),
                ..Request::new(tokens.clone(), common.sampling(nth, most), stop.clone())
            },
            writer: Writer::of_completion(tokenizer, stops.clone()),
            counted: choice == 0,
        };
        let (before, first) = (orders.len(), order(0, orders.len()));
        let cost = Cost::of(&first.request, measured.as_ref(), &model.spec);
        cost.take(&mut held, common.n, first.request.room())?;
        orders.push(first);
        orders.extend((1..common.n).map(|choice| order(choice, before + choice)));
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
    Ok(Job { orders, shape, common, held })
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

    fn attention(&self, choice: usize, finished: &Finished, told: bool) -> Result<Option<Reply>, ApiError> {
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
    async fn settle(&mut self, choice: usize) -> Result<(), ApiError> {
        let app = Arc::clone(&self.app);
        let prompt = self.prompts.get_mut(choice / self.n.max(1));
        match prompt.and_then(|prompt| prompt.asked.as_mut()) {
            None => Ok(()),
            Some(asked) => asked.settle(&app).await,
        }
    }

    fn envelope(&self, _stream: bool) -> Map<String, Value> {
        Map::from_iter([
            ("id".to_owned(), self.id.clone().into()),
            ("object".to_owned(), "text_completion".into()),
            ("created".to_owned(), self.created.into()),
            ("model".to_owned(), self.app.model.name().into()),
        ])
    }

    fn open(&mut self, choice: usize) -> Option<Said> {
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
        Some(CompletionShape::chunk(choice, &text, Value::Null, None).into())
    }

    fn scored(&mut self, choice: usize, prompt: &[Likelihood]) -> Option<Said> {
        let mut lists = CompletionLogprobs::default();
        let mut offset = 0;
        let of = self.prompt(choice)?;
        lists.push_first(&self.app.model, of.first?, &mut offset);
        for likelihood in prompt {
            lists.push(&self.app.model, likelihood, &mut offset);
        }
        let said = CompletionShape::chunk(choice, &of.text, lists.json(), None);
        self.offset = offset;
        Some(said.into())
    }

    fn token(&mut self, choice: usize, token: &Token) -> Result<Option<Said>, ApiError> {
        let Token { piece, chosen } = token;
        if piece.text.is_empty() && !self.logprobs && chosen.rows.is_empty() {
            return Ok(None);
        }
        let mut offset = self.offset;
        let logprobs = self.logprobs(std::slice::from_ref(chosen), &mut offset);
        self.offset = offset;
        let fields = CompletionShape::chunk(choice, &piece.text, logprobs, None);
        let asked = self.prompt(choice).and_then(|prompt| prompt.asked.as_ref());
        let asked = asked.filter(|_| !chosen.rows.is_empty());
        let attention = asked.map(|asked| asked.reply_rows(&chosen.rows)).transpose()?;
        Ok(Some(Said { fields, attention }))
    }

    fn close(&mut self, choice: usize, finished: &Finished) -> Result<Said, ApiError> {
        let logprobs = match &finished.measured.end {
            Some(end) if self.logprobs => {
                let mut lists = CompletionLogprobs::default();
                lists.push(&self.app.model, end, &mut self.offset);
                lists.json()
            }
            _ => Value::Null,
        };
        let fields = CompletionShape::chunk(choice, &finished.piece.text, logprobs, Some(finished.reason));
        Ok(Said { fields, attention: self.attention(choice, finished, true)? })
    }

    fn whole(&mut self, choice: usize, collected: Collected) -> Result<Said, ApiError> {
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
        let fields = CompletionShape::chunk(choice, &said, logprobs, Some(finished.reason));
        Ok(Said { fields, attention: self.attention(choice, &finished, false)? })
    }
}
