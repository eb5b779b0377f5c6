//! The door to the model's thread: prompts become its requests, and its events become what is told of a choice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tokio::sync::{mpsc, oneshot};

use super::app::App;
use super::attention_reply::Asked;
use super::common::Common;
use super::costs::Cost;
use super::error::ApiError;
use super::log::Record;
use super::memory::Held;
use super::writer::{Piece, Writer};
use palimpsest_core::attention::{LayerHoles, Masses};
use palimpsest_core::engine::thread::{Caller, EngineThread};
use palimpsest_core::engine::{
    Branch, Chosen, Event, Generate, Likelihood, Measured, Next, Observe, Request, Reuse, Rows, Sink,
    StopReason, Task, Thinker, TokenRules,
};
use palimpsest_core::span::Span;
use palimpsest_core::text::Ending;

/// The settings of answers to a prompt that are not [`Common`].
pub struct Plan {
    pub tokens: Vec<u32>,
    /// The answer, where it is given; rules and stop tokens are for others.
    pub forced: Option<Arc<[u32]>>,
    /// Most tokens of thought and answer.
    pub most: usize,
    pub rules: TokenRules,
    /// Where the model thinks.
    pub thinker: Option<Thinker>,
    /// The number of likeliest tokens reported with each.
    pub likeliest: Option<usize>,
    /// True if the probabilities of the prompt are reported, too.
    pub scores_prompt: bool,
}

/// A choice that is to be generated.
pub struct Order {
    /// Its prompt: choices of the same one are alike in it.
    prompt: Branch,
    generate: Generate,
    writer: Writer,
    /// True if its prompt is counted: the first of several choices of a prompt counts it.
    pub counted: bool,
}

impl Plan {
    /// One an answer, of which `before` come before; takes the memory that they need.
    pub fn orders(
        &self,
        app: &App,
        common: &Common,
        asked: Option<&Asked>,
        before: usize,
        writer: impl Fn() -> Writer,
        held: &mut Held,
    ) -> Result<Vec<Order>, ApiError> {
        let Plan { tokens, forced, most, rules, thinker, likeliest, scores_prompt } = self;
        let (rules, stop) = match forced {
            None => (rules.clone(), app.model.text.stop.clone()),
            // Nothing but its last token ends it.
            Some(_) => (TokenRules { forced: forced.clone(), ..TokenRules::default() }, Vec::new()),
        };
        let (mut rows, mut keys, mut top_keys) = Default::default();
        let mut knockouts = LayerHoles::default();
        let (mut norms, mut targets) = (false, Vec::new());
        if let Some(asked) = asked {
            (rows, keys) = (asked.rows()?, asked.measured_keys());
            asked.attention.check_size(&app.model, keys.len(), *most)?;
            top_keys = asked.attention.top_keys(&app.model, &rows, *most)?;
            knockouts = asked.holes(&app.model.spec)?;
            (norms, targets) = (asked.attention.lengths(), asked.targets()?);
        }
        let observe = Observe {
            rows,
            keys,
            top_keys,
            norms,
            targets,
            likeliest: likeliest.filter(|_| *scores_prompt),
            ..Observe::default()
        };
        let order = |choice: usize| Order {
            prompt: Branch {
                tokens: tokens.clone(),
                knockouts: knockouts.clone(),
                observe: observe.clone(),
                ..Branch::default()
            },
            generate: Generate {
                rules: rules.clone(),
                most: Some(*most),
                thinker: thinker.clone(),
                likeliest: *likeliest,
                tell_rows: common.stream && asked.is_some_and(|asked| asked.attention.each()),
                ..Generate::new(common.sampling(before + choice, *most), stop.clone())
            },
            writer: writer(),
            counted: choice == 0,
        };
        let first = order(0);
        let cost = Cost::of(&first.prompt, first.generate.likeliest, asked, &app.model.spec);
        cost.take(held, common.n, first.generate.room())?;
        Ok(std::iter::once(first).chain((1..common.n).map(order)).collect())
    }
}

impl Order {
    /// Tokens of its prompt.
    pub fn prompt(&self) -> usize {
        self.prompt.tokens.len()
    }

    /// True if the model thinks first.
    pub fn thinks(&self) -> bool {
        self.generate.thinker.is_some()
    }

    /// For the model's thread, and what comes of it: as long as an answer at most, so that a slow reader holds up nobody else.
    pub fn listened(
        self,
        app: &App,
        record: &Arc<Record>,
        progress: bool,
    ) -> (Choice, mpsc::UnboundedReceiver<Step>) {
        let Order { prompt, generate, writer, counted } = self;
        let (steps, received) = mpsc::unbounded_channel();
        let sink = listener(app.cancelled(), writer, Arc::clone(record), (counted, progress), steps);
        (Choice { prompt, task: Task::Generate(Box::new(generate)), sink }, received)
    }
}

/// A choice on its way to the model's thread.
pub struct Choice {
    prompt: Branch,
    task: Task,
    sink: Sink,
}

/// Hands choices of one prompt to the model's thread: it is read once for all of them. `caller` has further prompts.
pub fn submit(engine: &EngineThread, caller: Caller, choices: Vec<Choice>) {
    let (mut branch, mut tasks, mut sinks): (Option<Branch>, Vec<Task>, Vec<Sink>) = Default::default();
    for Choice { prompt, task, sink } in choices {
        branch.get_or_insert(prompt);
        tasks.push(task);
        sinks.push(sink);
    }
    if let Some(branch) = branch {
        let branches = vec![Branch { tasks, ..branch }];
        engine.submit_of(caller, Request { reuse: Reuse::Longest, branches, ..Request::default() }, sinks);
    }
}

/// An event of a choice.
pub enum Step {
    /// So many tokens of the prompt are read.
    Read(usize),
    Scored(Vec<Likelihood>),
    Token(Token),
    Done(Box<Finished>),
    /// Why there is none.
    Failed(ApiError),
}

/// A generated token.
pub struct Token {
    pub piece: Piece,
    pub chosen: Chosen,
}

/// The end of a choice.
pub struct Finished {
    pub piece: Piece,
    /// True if generation reached the answer.
    pub has_answer: bool,
    /// `stop`, `length` or `tool_calls`.
    pub reason: &'static str,
    pub measured: Measured,
}

fn listener(
    cancelled: Arc<AtomicBool>,
    writer: Writer,
    record: Arc<Record>,
    (counted, progress): (bool, bool),
    steps: mpsc::UnboundedSender<Step>,
) -> Sink {
    let mut writer = Some(writer);
    let (mut read, mut before) = (0, None::<Instant>);
    Box::new(move |event| {
        if cancelled.load(Ordering::Relaxed) || steps.is_closed() {
            let _ = steps.send(Step::Failed(ApiError::closing()));
            return Next::Cancel;
        }
        let step = match event {
            Event::Begun(tokens) | Event::Prefilled(tokens) => {
                if let (Event::Begun(cached), true) = (&event, counted) {
                    record.begun(*cached);
                }
                read += tokens;
                if progress && read > 0 {
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
    })
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

/// The masses of a prompt's rows, with nothing generated.
pub async fn masses(
    engine: &EngineThread,
    cancelled: Arc<AtomicBool>,
    tokens: Vec<u32>,
    rows: Vec<Span>,
    keys: Vec<Span>,
) -> Result<Masses, ApiError> {
    let rows = Rows { spans: rows, ..Rows::default() };
    let request = Request::of(tokens, Observe { rows, keys, ..Observe::default() }, Task::Read);
    let (told, heard) = oneshot::channel();
    let mut told = Some(told);
    engine.submit(request, move |event| {
        let gone = told.as_ref().is_none_or(oneshot::Sender::is_closed) || cancelled.load(Ordering::Relaxed);
        let outcome = match event {
            Event::Done(measured) => Ok(measured.masses),
            Event::Failed(error) => Err(ApiError::from(error)),
            _ => return if gone { Next::Cancel } else { Next::Go },
        };
        if let Some(told) = told.take() {
            // Nobody may wait any more.
            let _ = told.send(outcome);
        }
        Next::Cancel
    });
    heard.await.unwrap_or_else(|_| Err(gone()))
}

/// The thread ended without a word.
pub fn gone() -> ApiError {
    ApiError::internal("the model's thread left the request")
}
