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
use futures_util::stream;
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedReceiver;

use super::app::App;
use super::ask::{Finished, Order, Step};
use super::attention_reply::Asked;
use super::common::Common;
use super::error::ApiError;
use super::log::{Line, identifier};
use super::memory::Held;
use super::off_thread::off_thread;
use super::pieces::{self, Envelope, Said};
use super::writer::Piece;
use palimpsest_core::engine::thread::Caller;
use palimpsest_core::engine::{Chosen, Likelihood, Measured};
use palimpsest_core::text::CallPiece;

/// Maximum number of choices of a request generated concurrently; one prompt's choices may exceed it.
const AT_ONCE: usize = 16;

pub struct PreparedCompletion<S> {
    pub orders: VecDeque<Order>,
    pub shape: S,
    pub common: Common,
    pub held: Held,
}

#[derive(Default)]
pub struct Collected {
    pub thought: String,
    pub text: String,
    pub calls: Vec<CallPiece>,
    pub tokens: Vec<Chosen>,
}

impl Collected {
    fn push(&mut self, piece: &Piece) {
        self.thought.push_str(&piece.thought);
        self.text.push_str(&piece.text);
        self.calls.extend_from_slice(&piece.calls);
    }
}

/// JSON of choices at one endpoint: entries of `choices`, without `palimpsest`.
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
    fn token(&mut self, choice: usize, piece: &Piece, chosen: &Chosen) -> Option<Value>;
    fn close(&mut self, choice: usize, finished: &Finished) -> Value;
    fn whole(&mut self, choice: usize, collected: Collected, finished: &Finished) -> Value;
}

pub struct Run<S> {
    app: Arc<App>,
    shape: S,
    common: Common,
    id: String,
    created: i64,
    orders: VecDeque<Order>,
    caller: Caller,
    /// Index of the choice being reported.
    choice: usize,
    under_way: VecDeque<Current>,
    begun: Instant,
    usage: Usage,
    line: Arc<Line>,
    _place: OwnedSemaphorePermit,
    held: Held,
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
        let PreparedCompletion { orders, shape, common, held } = job;
        Run {
            app,
            shape,
            common,
            id: identifier(S::ID),
            created: jiff::Timestamp::now().as_second(),
            orders,
            caller: Caller::new(),
            choice: 0,
            under_way: VecDeque::new(),
            begun,
            usage: Usage::default(),
            line,
            _place: place,
            held,
        }
    }

    pub async fn response(self) -> Result<Response<Body>, ApiError> {
        if self.common.stream { Ok(self.stream()) } else { self.whole().await }
    }

    fn head(&self, stream: bool) -> Map<String, Value> {
        let object = S::OBJECTS[usize::from(stream)];
        Map::from_iter([
            ("id".to_owned(), self.id.clone().into()),
            ("object".to_owned(), object.into()),
            ("created".to_owned(), self.created.into()),
            ("model".to_owned(), self.app.model.name().into()),
        ])
    }

    async fn next(&mut self) -> Option<(usize, Step)> {
        while self.under_way.len() < AT_ONCE
            && let Some(order) = self.orders.pop_front()
        {
            self.submit(order);
        }
        let current = self.under_way.front_mut()?;
        let step = current.steps.recv().await.unwrap_or_else(|| Step::Failed(ApiError::left()));
        let (choice, prompt, counted) = (self.choice, current.prompt, current.counted);
        match &step {
            Step::Read(_) | Step::Scored(_) => {}
            Step::Token(piece, _) => {
                if let Some(asked) = self.shape.asked(choice) {
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
                if self.orders.is_empty() && self.under_way.is_empty() {
                    let took = self.begun.elapsed();
                    self.app.metrics.with(|counts| counts.whole.add(took));
                }
            }
            Step::Failed(_) => {
                self.orders.clear();
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
        self.line.record.prompt(prompt);
        let progress = self.common.stream && self.common.progress;
        let choices = order.submit(&self.app, self.caller, &self.line.record, progress);
        let current = |(i, steps)| Current { steps, prompt, counted: i == 0 };
        self.under_way.extend(choices.into_iter().enumerate().map(current));
    }

    /// Entry of a finished choice, after its scores and effects are settled. Streams omit rows already sent with tokens.
    async fn ended(
        &mut self,
        choice: usize,
        finished: &Finished,
        whole: Option<Collected>,
    ) -> Result<Said, ApiError> {
        let mut attention = None;
        if let Some(asked) = self.shape.asked(choice) {
            asked.hear(&finished.piece, false);
            asked.settle(&self.app, &finished.measured).await?;
            attention = Some(asked.reply(&finished.measured, whole.is_none())?);
        }
        let fields = match whole {
            Some(collected) => self.shape.whole(choice, collected, finished),
            None => self.shape.close(choice, finished),
        };
        Ok(Said { fields, attention })
    }

    async fn whole(mut self) -> Result<Response<Body>, ApiError> {
        let mut choices = Vec::new();
        let mut collected = Collected::default();
        while let Some((choice, step)) = self.next().await {
            match step {
                Step::Read(_) | Step::Scored(_) => {}
                Step::Token(piece, chosen) => {
                    collected.push(&piece);
                    collected.tokens.push(chosen);
                }
                Step::Done(finished) => {
                    collected.push(&finished.piece);
                    let collected = std::mem::take(&mut collected);
                    choices.push(self.ended(choice, &finished, Some(collected)).await?);
                }
                Step::Failed(error) => return Err(error),
            }
        }
        let (head, usage) = (self.head(false), Some(self.usage.json()));
        let held = self.held;
        // Serialisation may take long, so it runs off the connection thread.
        off_thread(move || pieces::response(&Envelope { head, choices: &choices, usage }, Some(held))).await
    }

    /// Streams all choices; the last frame holds the usage, if requested.
    fn stream(mut self) -> Response<Body> {
        self.line.record.streams();
        let keep_alive = KeepAlive::new().interval(self.app.options.keep_alive);
        let opening = self.shape.open(0);
        let mut streaming = Streaming { run: self, opened: 0, ended: false, frames: VecDeque::new() };
        streaming.say(opening.map(Said::from));
        let frames = stream::unfold(streaming, |mut streaming| async move {
            let frame = streaming.next().await?;
            Some((Ok::<Event, Infallible>(frame), streaming))
        });
        Sse::new(frames).keep_alive(keep_alive.text("the prompt is being read, or waits")).into_response()
    }
}

struct Streaming<S> {
    run: Run<S>,
    opened: usize,
    ended: bool,
    frames: VecDeque<Event>,
}

impl<S: Shape> Streaming<S> {
    async fn next(&mut self) -> Option<Event> {
        while self.frames.is_empty() && !self.ended {
            let told = match self.run.next().await {
                Some((choice, step)) => self.take(choice, step).await,
                None => {
                    self.end();
                    Ok(())
                }
            };
            if let Err(error) = told {
                self.run.line.record.ended(Some(&error));
                self.ended = true;
                self.frames.push_back(event(&error.body()));
            }
        }
        self.frames.pop_front()
    }

    async fn take(&mut self, choice: usize, step: Step) -> Result<(), ApiError> {
        if choice > self.opened {
            self.opened = choice;
            let opening = self.run.shape.open(choice);
            self.say(opening.map(Said::from));
        }
        let shape = &mut self.run.shape;
        let said = match step {
            Step::Read(read) => {
                let of = self.run.under_way.front().map_or(read, |current| current.prompt);
                let mut head = self.run.head(true);
                head.insert("palimpsest".to_owned(), json!({"progress": {"read": read, "of": of}}));
                self.tell(head, &[]);
                None
            }
            Step::Scored(prompt) => shape.scored(choice, &prompt).map(Said::from),
            Step::Token(piece, chosen) => {
                let asked = shape.asked(choice).filter(|_| !chosen.rows.is_empty());
                let attention = asked.map(|asked| asked.reply_rows(&chosen.rows)).transpose()?;
                shape.token(choice, &piece, &chosen).map(|fields| Said { fields, attention })
            }
            Step::Done(finished) => Some(self.run.ended(choice, &finished, None).await?),
            Step::Failed(error) => return Err(error),
        };
        self.say(said);
        Ok(())
    }

    fn end(&mut self) {
        self.ended = true;
        self.run.line.record.ended(None);
        if self.run.common.usage() {
            let (head, usage) = (self.run.head(true), Some(self.run.usage.json()));
            self.frames.push_back(event(&Envelope { head, choices: &[], usage }));
        }
        self.frames.push_back(Event::default().data("[DONE]"));
    }

    fn say(&mut self, said: Option<Said>) {
        if let Some(said) = said {
            self.tell(self.run.head(true), &[said]);
        }
    }

    fn tell(&mut self, head: Map<String, Value>, choices: &[Said]) {
        let usage = self.run.common.usage().then_some(Value::Null);
        self.frames.push_back(event(&Envelope { head, choices, usage }));
    }
}

fn event(body: &impl Serialize) -> Event {
    // Cannot fail: string keys, and finite numbers or null.
    Event::default().data(serde_json::to_string(body).unwrap_or_default())
}
