//! Requests to a local model, and their outputs.
//!
//! A [`Request`] has a prefix and branches that continue it; each [`Branch`] has tasks, which are done after its tokens. The prefix is
//! read once, whatever is measured in it is measured once, and answers of all branches are generated together. Runs, judges, causes,
//! heads, estimates, `trace` and the server all send requests; [`super::thread::EngineThread`] and [`super::Session`] answer them.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use candle_core::Tensor;
use ndarray::Array2;

use super::{
    EngineError, Generated, Likelihood, Measurement, Rows, Sampling, StopWatch, Thinker, TokenRules,
    TopRequest,
};
use crate::attention::{
    Attributions, EachMasses, LargestKeys, LayerHoles, Masses, Norms, SpanError, Target, TargetError,
};
use crate::span::Span;

/// Branches that share a prefix.
#[derive(Debug, Default)]
pub struct Request {
    /// Tokens that all branches begin with; may be empty.
    pub prefix: Arc<[u32]>,
    /// Which cached tokens may be reused for the prefix.
    pub reuse: Reuse,
    /// Its continuations.
    pub branches: Vec<Branch>,
}

/// The cached tokens that a request may go on from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reuse {
    /// The whole prefix of a request, or nothing: results never depend on what was asked before, on any device.
    #[default]
    Prefix,
    /// The longest common beginning with anything that was read before. On the CPU in f32 or bf16 the results are the same to the bit.
    Longest,
}

/// A continuation of the prefix.
#[derive(Debug, Default)]
pub struct Branch {
    /// Tokens after the prefix: with it they are the branch's prompt.
    pub tokens: Vec<u32>,
    /// Keys that are hidden from rows of the prompt and of what is generated.
    pub knockouts: LayerHoles,
    /// The measurements of the prompt and of the generated tokens.
    pub observe: Observe,
    /// Tasks that follow the prompt, at least one.
    pub tasks: Vec<Task>,
}

/// The measurements of a branch. Positions count from the start of the prompt: prefix and tokens.
#[derive(Debug, Clone, Default)]
pub struct Observe {
    /// The rows whose masses are measured.
    pub rows: Rows,
    /// The key spans over which their attention is summed.
    pub keys: Vec<Span>,
    /// Single keys of the rows with the largest weights.
    pub top_keys: Option<TopRequest>,
    /// Also [`Norms`] of the rows.
    pub norms: bool,
    /// Positions whose logits are attributed to heads and key spans.
    pub targets: Vec<Target>,
    /// Leaves out linear-attention layers, whose keys are in no cache: then a prompt can go on behind one that was read.
    pub softmax_only: bool,
    /// Positions at the end of the prompt whose logits are returned; at least one is.
    pub logits: usize,
    /// The likelihood of each token of the prompt but the first, with so many of the likeliest ones.
    pub likeliest: Option<usize>,
}

/// A task after a branch's prompt.
#[derive(Debug)]
pub enum Task {
    /// Nothing more: the prompt is read and measured.
    Read,
    /// Generates an answer.
    Generate(Box<Generate>),
    /// The natural-log probability of each of these continuations.
    Score(Vec<Vec<u32>>),
    /// Reads these tokens as the answer in one pass and hands out the logits that predict each of them ([`Event::Logits`]). Nothing is
    /// measured.
    Force(Arc<[u32]>),
}

/// Settings for generating an answer.
#[derive(Debug, Default)]
pub struct Generate {
    /// The sampling settings and the limit on new tokens.
    pub sampling: Sampling,
    /// Further rules for the choice of tokens.
    pub rules: TokenRules,
    /// Tokens that end the answer.
    pub stop: Vec<u32>,
    /// Strings that end the answer.
    pub watch: Option<StopWatch>,
    /// Where the model thinks before it answers.
    pub thinker: Option<Thinker>,
    /// Most tokens of thought and answer together, where that is less than both.
    pub most: Option<usize>,
    /// Tells the likelihood of each generated token, with so many of the likeliest ones.
    pub likeliest: Option<usize>,
    /// Tells each generated token's row with it, where the branch's rows ask for such rows.
    pub tell_rows: bool,
}

impl Request {
    /// One prompt with one task.
    pub fn of(prompt: Vec<u32>, observe: Observe, task: Task) -> Self {
        let branch = Branch { tokens: prompt, observe, tasks: vec![task], ..Branch::default() };
        Request { reuse: Reuse::Longest, branches: vec![branch], ..Request::default() }
    }
}

impl Observe {
    /// True if any row is measured.
    pub fn any(&self) -> bool {
        !self.rows.spans.is_empty() || self.rows.answer.any() || self.norms || !self.targets.is_empty()
    }

    /// The first position that must be read for what is measured.
    pub(super) fn first_row(&self) -> Option<usize> {
        let rows = self.rows.spans.iter().map(|row| row.start);
        rows.chain(self.targets.iter().map(|target| target.position)).min()
    }
}

impl Generate {
    /// Of this sampling, ended by these tokens.
    pub fn new(sampling: Sampling, stop: Vec<u32>) -> Self {
        Generate { sampling, stop, ..Generate::default() }
    }

    /// Most tokens that are generated.
    pub fn room(&self) -> usize {
        if self.sampling.max_new_tokens == 0 {
            return 0;
        }
        let thought = self.thinker.as_ref().map_or(0, |thinker| thinker.budget);
        let both = self.sampling.max_new_tokens.saturating_add(thought);
        self.most.map_or(both, |most| both.min(most))
    }
}

impl Task {
    /// Most tokens that it generates.
    pub(super) fn room(&self) -> usize {
        match self {
            Task::Generate(generate) => generate.room(),
            Task::Read | Task::Score(_) | Task::Force(_) => 0,
        }
    }

    /// Tokens behind the prompt that are read into the prompt's own cache.
    pub(super) fn read_behind(&self) -> usize {
        match self {
            Task::Score(texts) => texts.iter().map(Vec::len).max().unwrap_or(0),
            Task::Force(tokens) => tokens.len(),
            Task::Read | Task::Generate(_) => 0,
        }
    }
}

/// The events of a task, in order. The last one is [`Event::Done`] or [`Event::Failed`].
#[derive(Debug)]
pub enum Event {
    /// The prompt is being read, from so many of its tokens that were in the cache.
    Begun(usize),
    /// So many more tokens of the prompt are in the cache; 0 while it waits.
    Prefilled(usize),
    /// The prompt is whole, and what was to be scored behind it is.
    Prompt,
    /// The likelihoods of the prompt's tokens from the second on, where they were asked for; [`Measured`] has them, too.
    Scored(Vec<Likelihood>),
    /// Of [`Task::Force`]: logits f32 (n, vocab) that predict the task's tokens from this one on.
    Logits(usize, Tensor),
    /// A token was generated.
    Token(Chosen),
    /// All of it.
    Done(Box<Measured>),
    /// Why there is nothing; [`EngineError::Interrupted`] where it was cancelled.
    Failed(RequestError),
}

/// A generated token.
#[derive(Debug, Clone)]
pub struct Chosen {
    /// Its id.
    pub token: u32,
    /// Its likelihood, if requested.
    pub likelihood: Option<Likelihood>,
    /// The rows of generated tokens that are known with it, one token each, where they were asked for: its own, and those of the
    /// tokens before it that might have begun a thought.
    pub rows: Vec<EachMasses>,
}

/// The output of a task.
#[derive(Debug)]
pub struct Measured {
    /// f32 (logits asked for, vocab); the last position's alone where the prompt's likelihoods were asked for, none of [`Task::Force`].
    pub logits: Array2<f32>,
    /// The answer; empty of tasks that generate none.
    pub generated: Generated,
    /// The masses of the rows.
    pub masses: Masses,
    /// The measurement behind the masses, for rows that are known only when the answer is.
    pub measurement: Measurement,
    /// The keys that they pay most to, where they were asked for.
    pub top_keys: Option<LargestKeys>,
    /// Where they were asked for.
    pub norms: Option<Norms>,
    /// Where targets were given.
    pub attributions: Option<Attributions>,
    /// Tokens of the prompt that were in the cache already.
    pub reused: usize,
    /// Seconds of the call, where a server answered.
    pub call_seconds: Option<f64>,
    /// The likelihoods of the prompt's tokens from the second on, where they were asked for.
    pub prompt: Vec<Likelihood>,
    /// The likelihood of the token of `stop` that ended the answer, where one did and likelihoods were asked for.
    pub end: Option<Likelihood>,
    /// Of [`Task::Score`]: the natural-log probability of each continuation; `None` for one with a token that has no logit.
    pub scores: Vec<Option<f64>>,
}

/// A task has no output.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The model could not serve it.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Its spans cannot be measured.
    #[error(transparent)]
    Spans(#[from] SpanError),
    /// Its targets cannot be attributed.
    #[error(transparent)]
    Targets(#[from] TargetError),
    /// It is longer than the cache.
    #[error("{needed} tokens of prompt and answer do not fit the context of {context}; shorten them")]
    TooLong {
        /// Tokens of both.
        needed: usize,
        /// Tokens of the cache.
        context: usize,
    },
    /// A server cannot be asked for it.
    #[error("a server cannot be asked for {what}; run the model itself for that")]
    NotServed {
        /// The part of the request.
        what: &'static str,
    },
    /// A server refused the request, or its reply cannot be used.
    #[error("{0}")]
    Refused(String),
    /// A server refused the request, since its prompt is longer than the context.
    #[error("{0}")]
    RefusedTooLong(String),
    /// A server did not reply.
    #[error("{0}")]
    Unreachable(String),
    /// Serving it panicked.
    #[error("This is a bug: the request made the model's thread panic; the next one is served")]
    Panicked,
    /// The thread is gone.
    #[error("the model's thread has ended; start it again")]
    Gone,
}

impl From<candle_core::Error> for RequestError {
    fn from(error: candle_core::Error) -> Self {
        RequestError::Engine(error.into())
    }
}

/// A sink's response to an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Go on.
    Go,
    /// After a token: the answer ends with it. Before, the same as [`Next::Cancel`].
    End,
    /// Cancel the task.
    Cancel,
}

impl From<bool> for Next {
    /// True to go on.
    fn from(go_on: bool) -> Self {
        if go_on { Next::Go } else { Next::Cancel }
    }
}

/// Hears of a task's events, and says what is wanted next. It must not block.
pub type Sink = Box<dyn FnMut(Event) -> Next + Send>;

/// A task and its listener.
pub(super) struct Choice {
    pub task: Task,
    pub sink: Sink,
}

impl Choice {
    /// Tells an event that is not the last one, and hears what is wanted next.
    ///
    /// # Errors
    /// [`RequestError::Panicked`].
    pub fn hear(&mut self, event: Event) -> Result<Next, RequestError> {
        // The panic itself has been printed.
        panic::catch_unwind(AssertUnwindSafe(|| (self.sink)(event))).map_err(|_| RequestError::Panicked)
    }

    /// Tells an event before the first token.
    ///
    /// # Errors
    /// [`EngineError::Interrupted`] where no more is wanted, and those of [`Choice::hear`].
    pub fn hear_of_prompt(&mut self, event: Event) -> Result<(), RequestError> {
        match self.hear(event)? {
            Next::Go => Ok(()),
            Next::End | Next::Cancel => Err(EngineError::Interrupted.into()),
        }
    }

    /// Tells the end.
    pub fn end(mut self, outcome: Result<Measured, RequestError>) {
        let event = match outcome {
            Ok(measured) => Event::Done(Box::new(measured)),
            Err(error) => Event::Failed(error),
        };
        if let Err(error) = self.hear(event) {
            let _ = self.hear(Event::Failed(error));
        }
    }
}

impl RequestError {
    /// The same once more, for another task of the same prompt.
    pub(super) fn again(&self) -> Self {
        match self {
            RequestError::Engine(EngineError::NotFinite { position, value, dtype }) => {
                EngineError::NotFinite { position: *position, value: *value, dtype: *dtype }.into()
            }
            RequestError::Engine(EngineError::Interrupted) => EngineError::Interrupted.into(),
            RequestError::Panicked => RequestError::Panicked,
            RequestError::Gone => RequestError::Gone,
            other => candle_core::Error::msg(other.to_string()).into(),
        }
    }
}
