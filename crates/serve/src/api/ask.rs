//! Converts a prompt with its choices to an engine request, and engine events to events per choice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::app::App;
use super::attention_reply::Asked;
use super::common::Common;
use super::costs::Cost;
use super::error::ApiError;
use super::log::Record;
use super::memory::Held;
use super::writer::{Piece, Writer};
use palimpsest_core::attention::LayerHoles;
use palimpsest_core::engine::thread::Caller;
use palimpsest_core::engine::{
    Branch, Chosen, Event, Generate, Likelihood, Measured, Next, Observe, Request, Reuse, Sink, StopReason,
    Task, Thinker, TokenRules,
};
use palimpsest_core::text::Ending;

pub struct Plan {
    pub tokens: Vec<u32>,
    /// A given answer; token rules and stop tokens do not apply to it.
    pub forced: Option<Arc<[u32]>>,
    /// Maximum tokens of thought and answer.
    pub most: usize,
    pub rules: TokenRules,
    pub thinker: Option<Thinker>,
    /// Number of top logprobs per token.
    pub likeliest: Option<usize>,
    pub scores_prompt: bool,
}

pub struct Order {
    branch: Branch,
    writers: Vec<Writer>,
    pub thinks: bool,
}

impl Plan {
    /// Reserves memory for the choices. `before`: earlier choices of the request.
    pub fn order(
        self,
        app: &App,
        common: &Common,
        asked: Option<&Asked>,
        before: usize,
        writer: impl Fn() -> Writer,
        held: &mut Held,
    ) -> Result<Order, ApiError> {
        let Plan { tokens, forced, most, rules, thinker, likeliest, scores_prompt } = self;
        let (rules, stop) = match forced {
            None => (rules, app.model.text.stop.clone()),
            // A forced answer ends only with its last token.
            Some(_) => (TokenRules { forced, ..TokenRules::default() }, Vec::new()),
        };
        let mut observe = Observe { likeliest: likeliest.filter(|_| scores_prompt), ..Observe::default() };
        let mut knockouts = LayerHoles::default();
        if let Some(asked) = asked {
            let attention = &asked.attention;
            (observe.rows, observe.keys) = (asked.rows()?, asked.measured_keys());
            attention.check_size(&app.model, observe.keys.len(), most)?;
            observe.top_keys = attention.top_keys(&app.model, &observe.rows, most)?;
            observe.norms = attention.lengths();
            observe.targets = attention.targets(&app.model, tokens.len())?;
            knockouts = asked.holes(&app.model.spec)?;
        }
        let thinks = thinker.is_some();
        let generate = |choice: usize| Generate {
            rules: rules.clone(),
            most: Some(most),
            thinker: thinker.clone(),
            likeliest,
            tell_rows: common.stream && asked.is_some_and(|asked| asked.attention.each()),
            ..Generate::new(common.sampling(before + choice, most), stop.clone())
        };
        let mut branch = Branch { tokens, knockouts, observe, ..Branch::default() };
        Cost::of(&branch, likeliest, asked, &app.model.spec).take(held, common.n, generate(0).room())?;
        branch.tasks = (0..common.n).map(|choice| Task::Generate(Box::new(generate(choice)))).collect();
        let writers = (0..common.n).map(|_| writer()).collect();
        Ok(Order { branch, writers, thinks })
    }
}

impl Order {
    pub fn prompt(&self) -> usize {
        self.branch.tokens.len()
    }

    /// Sends the order to the engine thread; `caller` has further prompts. Channels are unbounded, so that slow readers do not block
    /// others; each holds at most one answer.
    pub fn submit(
        self,
        app: &App,
        caller: Caller,
        record: &Arc<Record>,
        progress: bool,
    ) -> Vec<UnboundedReceiver<Step>> {
        let Order { branch, writers, .. } = self;
        let listened = writers.into_iter().enumerate().map(|(choice, writer)| {
            let (steps, received) = mpsc::unbounded_channel();
            let record = Arc::clone(record);
            (listener(app.cancelled(), writer, record, (choice == 0, progress), steps), received)
        });
        let (sinks, received): (Vec<Sink>, Vec<_>) = listened.unzip();
        let request = Request { reuse: Reuse::Longest, branches: vec![branch], ..Request::default() };
        app.engine.submit_of(caller, request, sinks);
        received
    }
}

pub enum Step {
    Read(usize),
    Scored(Vec<Likelihood>),
    Token(Piece, Chosen),
    Done(Box<Finished>),
    Failed(ApiError),
}

pub struct Finished {
    pub piece: Piece,
    /// False if generation ended within the thought.
    pub has_answer: bool,
    /// `stop`, `length` or `tool_calls`.
    pub reason: &'static str,
    pub measured: Measured,
}

/// The first choice of a prompt counts its prefill.
fn listener(
    cancelled: Arc<AtomicBool>,
    writer: Writer,
    record: Arc<Record>,
    (counted, progress): (bool, bool),
    steps: UnboundedSender<Step>,
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
                        let _ = steps.send(Step::Token(piece, chosen));
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
    let called = writer.calls() > 0;
    let (ending, reason) = match measured.generated.stop {
        _ if writer.stopped() => (Ending::StopString, "stop"),
        StopReason::EndOfTurn | StopReason::ThoughtOnly | StopReason::Refused => (Ending::Turn, "stop"),
        StopReason::MaxNewTokens | StopReason::ThoughtCut => (Ending::Limit, "length"),
    };
    match writer.finish(ending) {
        Ok((piece, has_answer)) => {
            let reason = if called && reason == "stop" { "tool_calls" } else { reason };
            Step::Done(Box::new(Finished { piece, has_answer, reason, measured }))
        }
        Err(error) => Step::Failed(ApiError::internal(error.to_string())),
    }
}
