//! From requests to the model's thread to responses, whole or as a stream of server-sent events.
//!
//! Knows no endpoint: a [`Shape`] says how a choice looks in one. The choices of a request are generated together, those of one prompt
//! after it was read once, and told one after the other. Whoever drops a response, as the server does when its client goes, cancels
//! what is under way.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, Response};
use futures_util::stream;
use serde_json::{Map, Value, json};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::app::App;
use super::error::ApiError;
use super::writer::{Piece, Writer};
use crate::engine::thread::{Chosen, Event, Measured, Next, Request, Sink};
use crate::engine::{Likelihood, StopReason};
use crate::prompt::CallPiece;

/// Choices of a request that are generated together, or wait for it; those of one prompt are more where there are more of them.
const AT_ONCE: usize = 16;

/// A choice that is to be generated.
pub struct Order {
    /// For the model's thread.
    pub request: Request,
    /// Its text.
    pub writer: Writer,
    /// Whether its prompt is counted: the first of several choices of a prompt counts it.
    pub counted: bool,
}

/// What a choice is made of.
enum Step {
    Scored(Vec<Likelihood>),
    Token(Token),
    Done(Box<Finished>),
    Failed(ApiError),
}

/// A generated token.
pub struct Token {
    /// What it adds to the text.
    pub piece: Piece,
    /// What else was asked about it.
    pub chosen: Chosen,
}

/// The end of a choice.
pub struct Finished {
    /// What was held back of the text.
    pub piece: Piece,
    /// Whether generation came as far as the answer.
    pub has_answer: bool,
    /// `stop`, `length` or `tool_calls`.
    pub reason: &'static str,
    /// What was measured.
    pub measured: Measured,
}

/// A choice as a whole.
pub struct Collected {
    /// The thought; empty where there is none.
    pub thought: String,
    /// The answer.
    pub text: String,
    /// Its calls of functions, piece by piece.
    pub calls: Vec<CallPiece>,
    /// Every token.
    pub tokens: Vec<Chosen>,
    /// Its end.
    pub finished: Finished,
}

/// How choices look at one endpoint. Values are entries of `choices`.
pub trait Shape: Send + 'static {
    /// `id`, `object`, `created` and `model`.
    fn envelope(&self, stream: bool) -> Map<String, Value>;
    /// What a stream says before the first token of a choice.
    fn open(&mut self, choice: usize) -> Option<Value>;
    /// What it says when the probabilities of the prompt are known, which are told where they were asked for.
    fn scored(&mut self, _choice: usize, _prompt: &[Likelihood]) -> Option<Value> {
        None
    }
    /// What it says with a token.
    fn token(&mut self, choice: usize, token: &Token) -> Result<Option<Value>, ApiError>;
    /// What it says at the end of a choice.
    fn close(&mut self, choice: usize, finished: &Finished) -> Result<Value, ApiError>;
    /// A whole choice.
    fn whole(&mut self, choice: usize, collected: Collected) -> Result<Value, ApiError>;
}

/// Choices under way.
pub struct Run {
    app: Arc<App>,
    orders: VecDeque<Order>,
    /// The number of the choice that is being told or comes next.
    choice: usize,
    /// That choice, and those after it that are being generated too.
    under_way: VecDeque<Current>,
    begun: Instant,
    told_first: bool,
    usage: Usage,
    _place: OwnedSemaphorePermit,
}

struct Current {
    steps: mpsc::UnboundedReceiver<Step>,
    prompt: usize,
    counted: bool,
}

#[derive(Default)]
struct Usage {
    prompt: usize,
    reused: usize,
    completion: usize,
    /// Of a model that thinks.
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

impl Run {
    /// These choices, in a place of the queue.
    pub fn new(app: Arc<App>, orders: Vec<Order>, place: OwnedSemaphorePermit, begun: Instant) -> Self {
        Run {
            app,
            orders: orders.into(),
            choice: 0,
            under_way: VecDeque::new(),
            begun,
            told_first: false,
            usage: Usage::default(),
            _place: place,
        }
    }

    /// The next step of a choice; `None` after the last one.
    async fn next(&mut self) -> Option<(usize, Step)> {
        while self.under_way.len() < AT_ONCE && !self.orders.is_empty() {
            self.submit();
        }
        let current = self.under_way.front_mut()?;
        let step = current.steps.recv().await;
        let step =
            step.unwrap_or_else(|| Step::Failed(ApiError::internal("the model's thread left the request")));
        let (choice, prompt, counted) = (self.choice, current.prompt, current.counted);
        match &step {
            Step::Scored(_) => {}
            Step::Token(_) => {
                if !self.told_first {
                    self.told_first = true;
                    self.app.metrics.first_token(self.begun.elapsed());
                }
            }
            Step::Done(finished) => {
                let Measured { generated, reused, .. } = &finished.measured;
                let (prompt, reused) = if counted { (prompt, *reused) } else { (0, 0) };
                self.app.metrics.tokens(prompt, reused, generated.tokens.len());
                self.usage.prompt += prompt;
                self.usage.reused += reused;
                self.usage.completion += generated.tokens.len();
                self.usage.thought = self.usage.thought.map(|thought| thought + generated.thought);
                self.under_way.pop_front();
                self.choice = choice + 1;
                if self.orders.is_empty() && self.under_way.is_empty() {
                    self.app.metrics.whole(self.begun.elapsed());
                }
            }
            Step::Failed(_) => {
                self.orders.clear();
                self.under_way.clear();
            }
        }
        Some((choice, step))
    }

    /// Hands the choices of the next prompt to the model's thread.
    fn submit(&mut self) {
        let mut choices: Vec<(Request, Sink)> = Vec::new();
        while let Some(Order { request, writer, counted }) =
            self.orders.pop_front_if(|order| choices.is_empty() || !order.counted)
        {
            if request.thinker.is_some() {
                self.usage.thought.get_or_insert(0);
            }
            let prompt = request.tokens.len();
            let (sink, steps) = listening(&self.app, writer);
            choices.push((request, sink));
            self.under_way.push_back(Current { steps, prompt, counted });
        }
        self.app.engine.submit_all(choices);
    }

    /// All choices as one response.
    ///
    /// # Errors
    /// Of the first choice that failed.
    pub async fn whole(mut self, mut shape: impl Shape) -> Result<Response<Body>, ApiError> {
        let mut choices = Vec::new();
        let (mut thought, mut text) = (String::new(), String::new());
        let (mut calls, mut tokens) = (Vec::new(), Vec::new());
        while let Some((choice, step)) = self.next().await {
            match step {
                // The end has them, too.
                Step::Scored(_) => {}
                Step::Token(token) => {
                    thought.push_str(&token.piece.thought);
                    text.push_str(&token.piece.text);
                    calls.extend(token.piece.calls);
                    tokens.push(token.chosen);
                }
                Step::Done(mut finished) => {
                    thought.push_str(&finished.piece.thought);
                    text.push_str(&finished.piece.text);
                    calls.append(&mut finished.piece.calls);
                    let collected = Collected {
                        thought: std::mem::take(&mut thought),
                        text: std::mem::take(&mut text),
                        calls: std::mem::take(&mut calls),
                        tokens: std::mem::take(&mut tokens),
                        finished: *finished,
                    };
                    choices.push(shape.whole(choice, collected)?);
                }
                Step::Failed(error) => return Err(error),
            }
        }
        let mut body = shape.envelope(false);
        body.insert("choices".to_owned(), choices.into());
        body.insert("usage".to_owned(), self.usage.json());
        let mut response = Response::new(Body::from(Value::Object(body).to_string()));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(response)
    }

    /// All choices as a stream; with `usage` its last frame says what was used.
    pub fn stream(self, mut shape: impl Shape, usage: bool) -> Response<Body> {
        let mut frames = VecDeque::new();
        let opening = shape.open(0);
        let mut streaming =
            Streaming { run: self, shape, usage, opened: 0, ended: false, frames: VecDeque::new() };
        frames.extend(opening.map(|choice| streaming.frame(choice)));
        streaming.frames = frames;
        let frames = stream::unfold(streaming, |mut streaming| async move {
            let frame = streaming.next().await?;
            Some((Ok::<Bytes, Infallible>(Bytes::from(frame)), streaming))
        });
        let mut response = Response::new(Body::from_stream(frames));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        response
    }
}

/// A stream under way.
struct Streaming<S> {
    run: Run,
    shape: S,
    usage: bool,
    /// The last choice that was opened.
    opened: usize,
    ended: bool,
    /// That are to be sent.
    frames: VecDeque<String>,
}

impl<S: Shape> Streaming<S> {
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(frame) = self.frames.pop_front() {
                return Some(frame);
            }
            if self.ended {
                return None;
            }
            let done = match self.run.next().await {
                None => {
                    self.end();
                    Ok(())
                }
                Some((choice, step)) => self.take(choice, step),
            };
            if let Err(error) = done {
                self.ended = true;
                self.frames.push_back(event(&error.body()));
            }
        }
    }

    fn take(&mut self, choice: usize, step: Step) -> Result<(), ApiError> {
        if choice > self.opened {
            self.opened = choice;
            let opening = self.shape.open(choice).map(|choice| self.frame(choice));
            self.frames.extend(opening);
        }
        let said = match step {
            Step::Scored(prompt) => self.shape.scored(choice, &prompt),
            Step::Token(token) => self.shape.token(choice, &token)?,
            Step::Done(finished) => Some(self.shape.close(choice, &finished)?),
            Step::Failed(error) => return Err(error),
        };
        let frame = said.map(|said| self.frame(said));
        self.frames.extend(frame);
        Ok(())
    }

    fn end(&mut self) {
        self.ended = true;
        if self.usage {
            let mut body = self.shape.envelope(true);
            body.insert("choices".to_owned(), json!([]));
            body.insert("usage".to_owned(), self.run.usage.json());
            self.frames.push_back(event(&Value::Object(body)));
        }
        self.frames.push_back("data: [DONE]\n\n".to_owned());
    }

    fn frame(&self, choice: Value) -> String {
        let mut body = self.shape.envelope(true);
        body.insert("choices".to_owned(), json!([choice]));
        if self.usage {
            body.insert("usage".to_owned(), Value::Null);
        }
        event(&Value::Object(body))
    }
}

fn event(body: &Value) -> String {
    format!("data: {body}\n\n")
}

/// What hears of a choice on the model's thread, and what comes of it.
fn listening(app: &App, writer: Writer) -> (Sink, mpsc::UnboundedReceiver<Step>) {
    // As long as an answer at most: a slow reader holds up nobody else.
    let (steps, received) = mpsc::unbounded_channel();
    let cancelled = app.cancelled();
    let mut writer = Some(writer);
    let sink = move |event| {
        if cancelled.load(Ordering::Relaxed) || steps.is_closed() {
            let _ = steps.send(Step::Failed(ApiError::closing()));
            return Next::Cancel;
        }
        let step = match event {
            Event::Prefilled(_) => return Next::Go,
            Event::Scored(prompt) => {
                let _ = steps.send(Step::Scored(prompt));
                return Next::Go;
            }
            Event::Token(chosen) => {
                match writer.as_mut().map(|writer| (writer.push(chosen.token), writer.stopped())) {
                    Some((Ok(piece), stopped)) => {
                        let _ = steps.send(Step::Token(Token { piece, chosen }));
                        return if stopped { Next::End } else { Next::Go };
                    }
                    Some((Err(error), _)) => Step::Failed(ApiError::internal(error.to_string())),
                    None => return Next::Cancel,
                }
            }
            Event::Done(measured) => finished(writer.take(), *measured),
            Event::Failed(error) => Step::Failed(error.into()),
        };
        let _ = steps.send(step);
        Next::Cancel
    };
    (Box::new(sink), received)
}

fn finished(writer: Option<Writer>, measured: Measured) -> Step {
    let Some(writer) = writer else { return Step::Failed(ApiError::internal("the answer ended twice")) };
    let reason = match measured.generated.stop {
        _ if writer.stopped() => "stop",
        StopReason::EndOfTurn | StopReason::ThoughtOnly | StopReason::Refused => "stop",
        StopReason::MaxNewTokens | StopReason::ThoughtCut => "length",
    };
    let called = writer.calls() > 0;
    match writer.finish() {
        Ok((piece, has_answer)) => {
            let reason = if called && reason == "stop" { "tool_calls" } else { reason };
            Step::Done(Box::new(Finished { piece, has_answer, reason, measured }))
        }
        Err(error) => Step::Failed(ApiError::internal(error.to_string())),
    }
}
