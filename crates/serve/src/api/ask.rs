//! Converts a prompt with its choices to an engine request, and engine events to events per choice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::app::App;
use super::attention_reply::Asked;
use super::common::Common;
use super::costs::Cost;
use super::error::{ApiError, ensure};
use super::log::Record;
use super::memory::Held;
use super::writer::{Piece, Writer};
use palimpsest_core::attention::LayerHoles;
use palimpsest_core::engine::thread::Caller;
use palimpsest_core::engine::{
    Branch, Chosen, Event, Generate, Likelihood, Measured, Next, Observe, Request, Reuse, Sampling, Sink,
    StopReason, Task,
};
use palimpsest_core::evict::Eviction;
use palimpsest_core::text::Ending;

/// One prompt of a request.
pub struct Plan {
    pub tokens: Vec<u32>,
    /// With the seed of the first choice; each has its own.
    pub generate: Generate,
    pub scores_prompt: bool,
    /// One per choice.
    pub writers: Vec<Writer>,
}

pub struct Order {
    branch: Branch,
    writers: Vec<Writer>,
    pub thinks: bool,
}

impl Plan {
    /// Reserves memory for the choices.
    pub fn order(
        self,
        app: &App,
        common: &Common,
        asked: Option<&Asked>,
        held: &mut Held,
    ) -> Result<Order, ApiError> {
        let Plan { tokens, mut generate, scores_prompt, writers } = self;
        let likeliest = generate.likeliest;
        let mut observe = Observe { likeliest: likeliest.filter(|_| scores_prompt), ..Observe::default() };
        let (mut knockouts, mut evict) = (LayerHoles::default(), None);
        if let Some(asked) = asked {
            let (attention, most) = (&asked.attention, generate.sampling.max_new_tokens);
            (observe.rows, observe.keys) = (asked.rows()?, asked.measured_keys());
            attention.check_size(&app.model, observe.keys.len(), most)?;
            observe.top_keys = attention.top_keys(&app.model, &observe.rows, most)?;
            observe.selected = attention.selected;
            observe.norms = attention.lengths();
            observe.targets = attention.targets(&app.model, tokens.len())?;
            knockouts = asked.holes(&app.model.spec)?;
            let seed = generate.sampling.seed;
            let reason = "has no likelihoods of the prompt; leave out echo or logprobs";
            ensure(asked.eviction.is_none() || observe.likeliest.is_none(), "palimpsest.evict", reason)?;
            evict = asked.eviction.clone().map(|eviction| Eviction { seed, ..eviction });
            generate.tell_rows = common.stream && attention.each();
        }
        let thinks = generate.thinker.is_some();
        let mut branch = Branch { tokens, knockouts, evict, observe, ..Branch::default() };
        Cost::of(&branch, likeliest, asked, &app.model.spec).take(held, common.n, generate.room())?;
        let Generate { sampling, rules, stop, thinker, most, tell_rows, .. } = generate;
        let of_choice = |choice: usize| {
            let sampling = Sampling { seed: sampling.seed.wrapping_add(choice as u64), ..sampling };
            let (rules, thinker) = (rules.clone(), thinker.clone());
            let generate = Generate::new(sampling, stop.clone());
            Task::Generate(Box::new(Generate { rules, thinker, most, likeliest, tell_rows, ..generate }))
        };
        branch.tasks = (0..common.n).map(of_choice).collect();
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
            (listener(app.engine.cancelled(), writer, record, (choice == 0, progress), steps), received)
        });
        let (sinks, received): (Vec<Sink>, Vec<_>) = listened.unzip();
        let request = Request { reuse: Reuse::Longest, branches: vec![branch], ..Request::default() };
        app.engine.thread.submit_of(caller, request, sinks);
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
    mut writer: Writer,
    record: Arc<Record>,
    (counted, progress): (bool, bool),
    steps: UnboundedSender<Step>,
) -> Sink {
    let (mut read, mut before) = (0, None::<Instant>);
    Box::new(move |event| {
        if cancelled.load(Ordering::Relaxed) || steps.is_closed() {
            let _ = steps.send(Step::Failed(ApiError::closing()));
            return Next::Cancel;
        }
        let (step, next) = match event {
            Event::Begun(tokens) | Event::Prefilled(tokens) => {
                if let (Event::Begun(cached), true) = (&event, counted) {
                    record.begun(*cached);
                }
                read += tokens;
                ((progress && read > 0).then_some(Step::Read(read)), Next::Go)
            }
            Event::Prompt | Event::Logits(..) => (None, Next::Go),
            Event::Scored(prompt) => (Some(Step::Scored(prompt)), Next::Go),
            Event::Token(chosen) => {
                let now = Instant::now();
                record.token(before.replace(now).map(|before| now - before));
                match writer.push(chosen.token) {
                    Ok(piece) => {
                        let next = if writer.stopped() { Next::End } else { Next::Go };
                        (Some(Step::Token(piece, chosen)), next)
                    }
                    Err(error) => (Some(Step::Failed(ApiError::internal(error))), Next::Cancel),
                }
            }
            Event::Done(measured) => (Some(finished(&mut writer, *measured)), Next::Cancel),
            Event::Failed(error) => (Some(Step::Failed(error.into())), Next::Cancel),
        };
        if let Some(step) = step {
            let _ = steps.send(step);
        }
        next
    })
}

fn finished(writer: &mut Writer, measured: Measured) -> Step {
    let called = writer.calls() > 0;
    let (ending, reason) = match measured.generated.stop {
        _ if writer.stopped() => (Ending::StopString, "stop"),
        StopReason::EndOfTurn | StopReason::ThoughtOnly | StopReason::Refused => (Ending::Turn, "stop"),
        StopReason::MaxNewTokens | StopReason::ThoughtCut => (Ending::Limit, "length"),
    };
    let reason = if called && reason == "stop" { "tool_calls" } else { reason };
    match writer.finish(ending) {
        Ok((piece, has_answer)) => Step::Done(Box::new(Finished { piece, has_answer, reason, measured })),
        Err(error) => Step::Failed(ApiError::internal(error)),
    }
}
