//! `/v1/completions`: text continuation and token logprobs.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::answers::{PreparedCompletion, Shape};
use super::app::App;
use super::ask::{Finished, Plan};
use super::attention_reply::Asked;
use super::common::Common;
use super::error::{ApiError, ensure};
use super::given::{self, Limit};
use super::json::{Neutral, OF_CLIENTS, count, drop_neutral, is_empty, read};
use super::logprobs::{CompletionLogprobs, TextPosition};
use super::prompt::{text_spans, token_spans};
use super::prompts::{self, Prompt as Sent};
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
    prompt: Value,
    max_tokens: Option<usize>,
}

pub fn prepare(app: &Arc<App>, mut body: Value) -> Result<PreparedCompletion<CompletionShape>, ApiError> {
    drop_neutral(&mut body, "", &NEUTRAL)?;
    let (common, asked) = Common::read(app, &mut body)?;
    let fields: CompletionRequest = read(&body)?;
    let (echo, asks) = (fields.echo, [("max_tokens", fields.max_tokens)]);
    let limit = Limit { asked: &asks, usual: app.options.max_answer.min(USUAL) };
    let model = &app.model;
    let tokenizer = &model.text.tokenizer;
    let cites = asked.as_ref().is_some_and(|asked| asked.cite.is_some());
    let reason =
        "is for chats, whose messages have annotations; ask /v1/chat/completions, or for palimpsest.causes";
    ensure(!cites, "palimpsest.cite", reason)?;
    let mut held = app.memory.hold();
    // Given answers always return logprobs, and end only with their last token.
    let is_given = asked.as_ref().is_some_and(|asked| asked.answer.is_some());
    let likeliest = fields.logprobs.or(is_given.then_some(0));
    let stops = if is_given { Vec::new() } else { common.stops.clone() };
    let mut orders = VecDeque::new();
    let mut prompts = Vec::new();
    for (nth, (_, sent)) in
        prompts::all(&fields.prompt, "prompt", model.spec.vocab, Some(&model.limit))?.into_iter().enumerate()
    {
        let text = match &sent {
            _ if !echo => String::new(),
            Sent::Text(text) => text.clone(),
            Sent::Tokens(tokens) => tokenizer.decode(tokens, false).map_err(ApiError::internal)?,
        };
        let (tokens, asked) = match (sent, &asked) {
            (Sent::Text(text), None) => {
                let tokens = tokenizer.encode(&text);
                (tokens.map_err(|error| ApiError::from(error).of("prompt"))?, None)
            }
            (Sent::Tokens(tokens), None) => (tokens, None),
            (sent, Some(attention)) => {
                let (prompt, scoring) = match sent {
                    Sent::Text(text) => {
                        let prompt = text_spans(tokenizer, &text, attention)?;
                        let scoring = score::of_text(attention, (model, &text, &prompt))?;
                        (prompt, scoring)
                    }
                    Sent::Tokens(tokens) => {
                        let reason = "needs a prompt of text, whose question it replaces; a prompt of tokens has no characters";
                        ensure(attention.score.is_none(), "palimpsest.score", reason)?;
                        (token_spans(tokens, attention)?, None)
                    }
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
        let (forced, most) = given::answer(app, attention, &common, ("prompt", &tokens), &limit)?;
        let mut generate = common.generate(app, forced, most);
        generate.likeliest = likeliest;
        let seed = &mut generate.sampling.seed;
        *seed = seed.wrapping_add((nth * common.n) as u64);
        let writers = (0..common.n).map(|_| Writer::of_completion(tokenizer, stops.clone())).collect();
        let plan = Plan { tokens, generate, scores_prompt: echo, writers };
        orders.push_back(plan.order(app, &common, asked.as_ref(), &mut held)?);
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
    /// Streamed logprobs of one token; null if not requested.
    fn logprobs(&mut self, likelihood: Option<&Likelihood>) -> Value {
        let Some(likelihood) = likelihood.filter(|_| self.logprobs) else { return Value::Null };
        let mut lists = CompletionLogprobs::default();
        lists.push_generated(&self.app.model, likelihood, &mut self.position);
        lists.json()
    }
}

impl Shape for CompletionShape {
    const ID: &'static str = "cmpl";
    const OBJECTS: [&'static str; 2] = ["text_completion"; 2];

    fn asked(&mut self, choice: usize) -> Option<&mut Asked> {
        self.prompts.get_mut(choice / self.n)?.asked.as_mut()
    }

    fn open(&mut self, choice: usize) -> Option<Value> {
        let text = &self.prompts[choice / self.n].text;
        self.position = TextPosition::behind(text);
        // With logprobs, it is sent with those of the prompt.
        (self.echo && !self.logprobs).then(|| json!({"text": text, "logprobs": null}))
    }

    fn scored(&mut self, choice: usize, prompt: &[Likelihood]) -> Option<Value> {
        let Prompt { text, first, .. } = &self.prompts[choice / self.n];
        let lists = CompletionLogprobs::of_prompt(&self.app.model, text, *first, prompt);
        Some(json!({"text": text, "logprobs": lists.json()}))
    }

    fn token(&mut self, piece: &Piece, chosen: &Chosen) -> Option<Value> {
        if piece.text.is_empty() && !self.logprobs && chosen.rows.is_empty() {
            return None;
        }
        Some(json!({"text": piece.text, "logprobs": self.logprobs(chosen.likelihood.as_ref())}))
    }

    fn close(&mut self, finished: &Finished) -> Value {
        json!({"text": finished.piece.text, "logprobs": self.logprobs(finished.measured.end.as_ref())})
    }

    fn whole(&mut self, choice: usize, said: Piece, tokens: &[Chosen], finished: &Finished) -> Value {
        let Prompt { text: echoed, first, .. } = &self.prompts[choice / self.n];
        let text = format!("{echoed}{}", said.text);
        if !self.logprobs {
            return json!({"text": text, "logprobs": null});
        }
        let (model, measured) = (&self.app.model, &finished.measured);
        let mut lists = match self.echo {
            true => CompletionLogprobs::of_prompt(model, echoed, *first, &measured.prompt),
            false => CompletionLogprobs::default(),
        };
        let mut position = TextPosition::behind(echoed);
        let generated = tokens.iter().filter_map(|chosen| chosen.likelihood.as_ref());
        for likelihood in generated.chain(&measured.end) {
            lists.push_generated(model, likelihood, &mut position);
        }
        lists.keep_within(text.chars().count());
        json!({"text": text, "logprobs": lists.json()})
    }
}
