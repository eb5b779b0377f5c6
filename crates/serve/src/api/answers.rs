//! Requests to the engine thread and responses back, whole or as server-sent events.
//!
//! Independent of the endpoint: a [`Shape`] formats choices. Choices of a request are generated together after one prefill per prompt, and
//! reported in order. Dropping a response, as the server does when its client disconnects, cancels generation.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::http::Response;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::{StreamExt, stream};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedReceiver;

use super::app::App;
use super::ask::{Finished, Order, Step};
use super::attention_reply::{Asked, Reply};
use super::common::Common;
use super::error::ApiError;
use super::log::{Line, identifier};
use super::memory::Held;
use super::off_thread::off_thread;
use super::pieces::{self, Envelope, Said};
use super::writer::Piece;
use palimpsest_core::engine::thread::Caller;
use palimpsest_core::engine::{Chosen, Likelihood, Measured};

/// Maximum number of choices of a request generated concurrently; one prompt's choices may exceed it.
const AT_ONCE: usize = 16;

pub struct PreparedCompletion<S> {
    pub orders: VecDeque<Order>,
    pub shape: S,
    pub common: Common,
    pub held: Held,
}

/// JSON of choices at one endpoint: entries of `choices` without `index`, `finish_reason` and `palimpsest`.
pub trait Shape: Send + 'static {
    const ID: &'static str;
    /// `object`, for whole and streamed responses.
    const OBJECTS: [&'static str; 2];
    fn asked(&mut self, choice: usize) -> Option<&mut Asked>;
    /// Stream entry before the first token of a choice.
    fn open(&mut self, choice: usize) -> Option<Value>;
    /// Stream entry with prompt logprobs, if requested.
    fn scored(&mut self, _choice: usize, _prompt: &[Likelihood]) -> Option<Value> {
        None
    }
    /// Stream entry of a token; must be `Some` if attention rows come with it.
    fn token(&mut self, piece: &Piece, chosen: &Chosen) -> Option<Value>;
    fn close(&mut self, finished: &Finished) -> Value;
    fn whole(&mut self, choice: usize, said: Piece, tokens: &[Chosen], finished: &Finished) -> Value;
}

pub struct Run<S> {
    app: Arc<App>,
    job: PreparedCompletion<S>,
    id: String,
    created: i64,
    caller: Caller,
    /// Index of the choice being reported.
    choice: usize,
    /// First choice without a stream entry.
    unopened: usize,
    under_way: VecDeque<Current>,
    begun: Instant,
    usage: Usage,
    line: Arc<Line>,
    _place: OwnedSemaphorePermit,
}

struct Current {
    steps: UnboundedReceiver<Step>,
    prompt: usize,
    /// First choice of its prompt; counts the prompt in the usage.
    counted: bool,
}

#[derive(Default)]
struct Usage {
    prompt: usize,
    reused: usize,
    completion: usize,
    thought: Option<usize>,
}

impl Usage {
    fn json(&self) -> Value {
        let Usage { prompt, reused, completion, thought } = self;
        let mut json = json!({
            "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": reused}
        });
        if let Some(thought) = thought {
            json["completion_tokens_details"] = json!({"reasoning_tokens": thought});
        }
        json
    }
}

impl<S: Shape> Run<S> {
    pub fn new(
        app: Arc<App>,
        job: PreparedCompletion<S>,
        place: OwnedSemaphorePermit,
        begun: Instant,
        line: Arc<Line>,
    ) -> Self {
        let key = line.record.key.as_deref();
        let scope = app.scope(key, job.common.cache_salt.as_deref());
        Run {
            app,
            job,
            id: identifier(S::ID),
            created: jiff::Timestamp::now().as_second(),
            caller: Caller::within(scope),
            choice: 0,
            unopened: 0,
            under_way: VecDeque::new(),
            begun,
            usage: Usage::default(),
            line,
            _place: place,
        }
    }

    pub async fn response(self) -> Result<Response<Body>, ApiError> {
        if self.job.common.stream { Ok(self.stream()) } else { self.whole().await }
    }

    fn envelope<'a>(&'a self, streams: bool, choices: &'a [Said]) -> Envelope<'a> {
        Envelope {
            id: &self.id,
            object: S::OBJECTS[usize::from(streams)],
            created: self.created,
            model: self.app.model.name(),
            progress: None,
            choices,
            usage: (streams && self.job.common.usage()).then_some(Value::Null),
        }
    }

    async fn next(&mut self) -> Option<(usize, Step)> {
        while self.under_way.len() < AT_ONCE
            && let Some(order) = self.job.orders.pop_front()
        {
            self.submit(order);
        }
        let current = self.under_way.front_mut()?;
        let step = current.steps.recv().await.unwrap_or_else(|| Step::Failed(ApiError::left()));
        let (choice, prompt, counted) = (self.choice, current.prompt, current.counted);
        match &step {
            Step::Read(_) | Step::Scored(_) => {}
            Step::Token(piece, _) => {
                if let Some(asked) = self.job.shape.asked(choice) {
                    asked.hear(piece, true);
                }
            }
            Step::Done(finished) => {
                let Measured { generated, reused, .. } = &finished.measured;
                if counted {
                    self.usage.prompt += prompt;
                    self.usage.reused += reused;
                }
                self.usage.completion += generated.tokens.len();
                self.usage.thought = self.usage.thought.map(|thought| thought + generated.thought);
                self.under_way.pop_front();
                self.choice = choice + 1;
                if self.job.orders.is_empty() && self.under_way.is_empty() {
                    let took = self.begun.elapsed();
                    self.app.metrics.with(|counts| counts.whole.add(took));
                }
            }
            Step::Failed(_) => {
                self.job.orders.clear();
                self.under_way.clear();
            }
        }
        Some((choice, step))
    }

    fn submit(&mut self, order: Order) {
        let prompt = order.prompt();
        if order.thinks {
            self.usage.thought.get_or_insert(0);
        }
        self.line.record.noted().prompt += prompt;
        let progress = self.job.common.stream && self.job.common.progress;
        let choices = order.submit(&self.app, self.caller, &self.line.record, progress);
        let current = |(i, steps)| Current { steps, prompt, counted: i == 0 };
        self.under_way.extend(choices.into_iter().enumerate().map(current));
    }

    /// Entry of a finished choice, after its scores and effects are settled. Streams omit rows already sent with tokens.
    async fn ended(
        &mut self,
        choice: usize,
        finished: &Finished,
        whole: Option<(Piece, Vec<Chosen>)>,
    ) -> Result<Said, ApiError> {
        let shape = &mut self.job.shape;
        let mut attention = None;
        if let Some(asked) = shape.asked(choice) {
            asked.hear(&finished.piece, false);
            asked.settle(&self.app, self.caller.scope(), &finished.measured).await?;
            attention = Some(asked.reply(&finished.measured, whole.is_none())?);
        }
        let entry = match whole {
            Some((said, tokens)) => shape.whole(choice, said, &tokens, finished),
            None => shape.close(finished),
        };
        Ok(Said { index: choice, entry, finish_reason: Some(finished.reason), attention })
    }

    async fn whole(mut self) -> Result<Response<Body>, ApiError> {
        let mut choices = Vec::new();
        let (mut said, mut tokens) = (Piece::default(), Vec::new());
        while let Some((choice, step)) = self.next().await {
            match step {
                Step::Read(_) | Step::Scored(_) => {}
                Step::Token(piece, chosen) => {
                    said.add(&piece);
                    tokens.push(chosen);
                }
                Step::Done(finished) => {
                    said.add(&finished.piece);
                    let whole = (std::mem::take(&mut said), std::mem::take(&mut tokens));
                    choices.push(self.ended(choice, &finished, Some(whole)).await?);
                }
                Step::Failed(error) => return Err(error),
            }
        }
        let held = std::mem::replace(&mut self.job.held, self.app.memory.hold());
        // Serialisation may take long, so it runs off the connection thread.
        off_thread(move || {
            let usage = Some(self.usage.json());
            pieces::response(&Envelope { usage, ..self.envelope(false, &choices) }, Some(held))
        })
        .await
    }

    /// Streams all choices; the last frame holds the usage, if requested.
    fn stream(mut self) -> Response<Body> {
        self.line.record.noted().streams = true;
        let keep_alive = KeepAlive::new().interval(self.app.options.keep_alive);
        let mut opening = Vec::new();
        self.open(0, &mut opening);
        let rest = stream::unfold((self, false), |(mut run, ended)| async move {
            if ended {
                return None;
            }
            let mut frames = Vec::new();
            let ended = run.frames(&mut frames).await;
            Some((stream::iter(frames), (run, ended)))
        });
        let frames = stream::iter(opening).chain(rest.flatten()).map(Ok::<Event, Infallible>);
        Sse::new(frames).keep_alive(keep_alive.text("the prompt is being read, or waits")).into_response()
    }

    /// Appends the frames of the next step; true if they are the last.
    async fn frames(&mut self, frames: &mut Vec<Event>) -> bool {
        let told = match self.next().await {
            Some((choice, step)) => self.frames_of(choice, step, frames).await.map(|()| false),
            None => Ok(true),
        };
        match told {
            Ok(false) => return false,
            Ok(true) => {
                self.line.record.ended(None);
                if self.job.common.usage() {
                    let usage = Some(self.usage.json());
                    frames.push(event(&Envelope { usage, ..self.envelope(true, &[]) }));
                }
                frames.push(Event::default().data("[DONE]"));
            }
            Err(error) => {
                self.line.record.ended(Some(&error));
                frames.push(event(&error.body()));
            }
        }
        true
    }

    async fn frames_of(
        &mut self,
        choice: usize,
        step: Step,
        frames: &mut Vec<Event>,
    ) -> Result<(), ApiError> {
        self.open(choice, frames);
        let shape = &mut self.job.shape;
        let (entry, attention) = match step {
            Step::Read(read) => {
                let of = self.under_way.front().map_or(read, |current| current.prompt);
                let progress = Some(json!({"progress": {"read": read, "of": of}}));
                frames.push(event(&Envelope { progress, ..self.envelope(true, &[]) }));
                (None, None)
            }
            Step::Scored(prompt) => (shape.scored(choice, &prompt), None),
            Step::Token(piece, chosen) => {
                let asked = shape.asked(choice).filter(|_| !chosen.rows.is_empty());
                let attention = asked.map(|asked| asked.reply_rows(&chosen.rows)).transpose()?;
                (shape.token(&piece, &chosen), attention)
            }
            Step::Done(finished) => {
                let said = self.ended(choice, &finished, None).await?;
                frames.push(event(&self.envelope(true, &[said])));
                (None, None)
            }
            Step::Failed(error) => return Err(error),
        };
        frames.extend(entry.map(|entry| self.frame(choice, entry, attention)));
        Ok(())
    }

    /// Appends the entry that opens a choice, unless it is open.
    fn open(&mut self, choice: usize, frames: &mut Vec<Event>) {
        if choice >= self.unopened {
            self.unopened = choice + 1;
            let entry = self.job.shape.open(choice);
            frames.extend(entry.map(|entry| self.frame(choice, entry, None)));
        }
    }

    fn frame(&self, index: usize, entry: Value, attention: Option<Reply>) -> Event {
        event(&self.envelope(true, &[Said { index, entry, finish_reason: None, attention }]))
    }
}

fn event(body: &impl Serialize) -> Event {
    // Cannot fail: string keys, and finite numbers or null.
    Event::default().data(serde_json::to_string(body).unwrap_or_default())
}
