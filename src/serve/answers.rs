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
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::app::App;
use super::common::Common;
use super::error::ApiError;
use super::log::{Line, Outcome, Record};
use super::memory::Held;
use super::off_thread::off_thread;
use super::pieces::{self, Envelope, Said};
use super::writer::{Piece, Writer};
use palimpsest_core::engine::{
    Branch, Chosen, Event, Generate, Likelihood, Measured, Next, Sink, StopReason, Task,
};
use palimpsest_core::text::{CallPiece, Ending};

/// Choices of a request that are generated together, or wait for it; those of one prompt are more where there are more of them.
const AT_ONCE: usize = 16;

/// A choice that is to be generated.
pub struct Order {
    /// Its prompt; choices of the same one are alike in it.
    pub prompt: Branch,
    /// How it is generated.
    pub generate: Generate,
    /// Its text.
    pub writer: Writer,
    /// Whether its prompt is counted: the first of several choices of a prompt counts it.
    pub counted: bool,
}

/// What a choice is made of.
enum Step {
    /// So many tokens of the prompt are read.
    Read(usize),
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
    fn open(&mut self, choice: usize) -> Option<Said>;
    /// What it says when the probabilities of the prompt are known, which are told where they were asked for.
    fn scored(&mut self, _choice: usize, _prompt: &[Likelihood]) -> Option<Said> {
        None
    }
    /// Waits for what the end of a choice needs beside the choice itself.
    fn settle(&mut self, _choice: usize) -> impl Future<Output = Result<(), ApiError>> + Send {
        async { Ok(()) }
    }
    /// What it says with a token.
    fn token(&mut self, choice: usize, token: &Token) -> Result<Option<Said>, ApiError>;
    /// What it says at the end of a choice.
    fn close(&mut self, choice: usize, finished: &Finished) -> Result<Said, ApiError>;
    /// A whole choice.
    fn whole(&mut self, choice: usize, collected: Collected) -> Result<Said, ApiError>;
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
    usage: Usage,
    /// Whether it is told how far prompts are.
    progress: bool,
    line: Arc<Line>,
    _place: OwnedSemaphorePermit,
    /// What it records and replies.
    held: Held,
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
    /// These choices, in a place of the queue, and what they take.
    pub fn new(
        app: Arc<App>,
        orders: Vec<Order>,
        (place, held): (OwnedSemaphorePermit, Held),
        begun: Instant,
        line: Arc<Line>,
    ) -> Self {
        Run {
            app,
            orders: orders.into(),
            choice: 0,
            under_way: VecDeque::new(),
            begun,
            usage: Usage::default(),
            progress: false,
            line,
            _place: place,
            held,
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
            Step::Read(_) | Step::Scored(_) | Step::Token(_) => {}
            Step::Done(finished) => {
                let Measured { generated, reused, .. } = &finished.measured;
                let (prompt, reused) = if counted { (prompt, *reused) } else { (0, 0) };
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
        let (mut branch, mut tasks, mut sinks): (Option<Branch>, Vec<Task>, Vec<Sink>) = Default::default();
        while let Some(Order { prompt, generate, writer, counted }) =
            self.orders.pop_front_if(|order| tasks.is_empty() || !order.counted)
        {
            if generate.thinker.is_some() {
                self.usage.thought.get_or_insert(0);
            }
            let branch = branch.get_or_insert(prompt);
            let prompt = branch.tokens.len();
            let record = &self.line.record;
            if counted {
                record.prompt(prompt);
            }
            let told = Told { counted, progress: self.progress };
            let (sink, steps) = listening(&self.app, writer, Arc::clone(record), told);
            tasks.push(Task::Generate(Box::new(generate)));
            sinks.push(sink);
            self.under_way.push_back(Current { steps, prompt, counted });
        }
        if let Some(branch) = branch {
            self.app.engine.submit_branch(Branch { tasks, ..branch }, sinks);
        }
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
                Step::Read(_) | Step::Scored(_) => {}
                Step::Token(token) => {
                    thought.push_str(&token.piece.thought);
                    text.push_str(&token.piece.text);
                    calls.extend(token.piece.calls);
                    tokens.push(token.chosen);
                }
                Step::Done(mut finished) => {
                    shape.settle(choice).await?;
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
        let (head, usage) = (shape.envelope(false), Some(self.usage.json()));
        let held = self.held;
        // It may be long, and others are to be told their tokens meanwhile.
        off_thread(move || pieces::response(&Envelope { head, choices: &choices, usage }, Some(held))).await
    }

    /// All choices as a stream; its last frame says what was used, where that was asked for.
    pub fn stream(mut self, mut shape: impl Shape, common: &Common) -> Response<Body> {
        let mut frames = VecDeque::new();
        let opening = shape.open(0);
        self.line.record.streams();
        self.progress = common.progress;
        let (usage, sent) = (common.usage, Instant::now());
        let mut streaming =
            Streaming { run: self, shape, usage, sent, opened: 0, ended: false, frames: VecDeque::new() };
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
    /// When something was sent last.
    sent: Instant,
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
                self.sent = Instant::now();
                return Some(frame);
            }
            if self.ended {
                return None;
            }
            let silent = self.run.app.settings.keep_alive.saturating_sub(self.sent.elapsed());
            // A step that is there comes before the time is looked at, and none is lost.
            let Ok(next) = tokio::time::timeout(silent, self.run.next()).await else {
                self.frames.push_back(": the prompt is being read, or waits\n\n".to_owned());
                continue;
            };
            let done = match next {
                None => {
                    self.end();
                    Ok(())
                }
                Some((choice, step)) => {
                    let settled = match step {
                        Step::Done(_) => self.shape.settle(choice).await,
                        _ => Ok(()),
                    };
                    settled.and_then(|()| self.take(choice, step))
                }
            };
            if let Err(error) = done {
                self.run.line.record.fail(&error);
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
            Step::Read(read) => {
                let of = self.run.under_way.front().map_or(read, |current| current.prompt);
                self.tell("palimpsest", json!({"progress": {"read": read, "of": of}}));
                return Ok(());
            }
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
        self.run.line.record.end(Outcome::Ok);
        if self.usage {
            let (head, usage) = (self.shape.envelope(true), Some(self.run.usage.json()));
            self.frames.push_back(event(&Envelope { head, choices: &[], usage }));
        }
        self.frames.push_back("data: [DONE]\n\n".to_owned());
    }

    /// A frame of no choice.
    fn tell(&mut self, key: &str, value: Value) {
        let (mut head, usage) = (self.shape.envelope(true), self.usage.then_some(Value::Null));
        head.insert(key.to_owned(), value);
        self.frames.push_back(event(&Envelope { head, choices: &[], usage }));
    }

    fn frame(&self, choice: Said) -> String {
        let (head, usage) = (self.shape.envelope(true), self.usage.then_some(Value::Null));
        event(&Envelope { head, choices: &[choice], usage })
    }
}

fn event(body: &impl Serialize) -> String {
    // Of keys that are texts, and finite numbers or null: it cannot fail.
    let body = serde_json::to_string(body).unwrap_or_default();
    format!("data: {body}\n\n")
}

/// What is told of a choice beside its answer.
#[derive(Clone, Copy)]
struct Told {
    /// Whether its prompt is counted.
    counted: bool,
    /// How far its prompt is.
    progress: bool,
}

/// What hears of a choice on the model's thread, and what comes of it.
fn listening(
    app: &App,
    writer: Writer,
    record: Arc<Record>,
    told: Told,
) -> (Sink, mpsc::UnboundedReceiver<Step>) {
    // As long as an answer at most: a slow reader holds up nobody else.
    let (steps, received) = mpsc::unbounded_channel();
    let cancelled = app.cancelled();
    let mut writer = Some(writer);
    let (mut read, mut before) = (0, None::<Instant>);
    let sink = move |event| {
        if cancelled.load(Ordering::Relaxed) || steps.is_closed() {
            let _ = steps.send(Step::Failed(ApiError::closing()));
            return Next::Cancel;
        }
        let step = match event {
            Event::Begun(tokens) | Event::Prefilled(tokens) => {
                if let (Event::Begun(cached), true) = (&event, told.counted) {
                    record.begun(*cached);
                }
                read += tokens;
                if told.progress && read > 0 {
                    let _ = steps.send(Step::Read(read));
                }
                return Next::Go;
            }
            Event::Prompt | Event::Logits(..) => return Next::Go,
            Event::Scored(prompt) => {
                let _ = steps.send(Step::Scored(prompt));
                return Next::Go;
            }
            Event::Token(chosen) => {
                let now = Instant::now();
                record.token(before.replace(now).map(|before| now - before));
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
    let ending = match (writer.stopped(), reason) {
        (true, _) => Ending::StopString,
        (false, "length") => Ending::Limit,
        (false, _) => Ending::Turn,
    };
    match writer.finish(ending) {
        Ok((piece, has_answer)) => {
            let reason = if called && reason == "stop" { "tool_calls" } else { reason };
            Step::Done(Box::new(Finished { piece, has_answer, reason, measured }))
        }
        Err(error) => Step::Failed(ApiError::internal(error.to_string())),
    }
}
