//! Requests to a local model, and their outputs. A [`Request`] is a prefix with branches; each [`Branch`] has tasks that follow its prompt.
//! The prefix is prefilled and measured once, and the answers of all branches decode together. [`super::thread::EngineThread`] and
//! [`super::Session`] serve requests.

use std::sync::Arc;

use candle_core::Tensor;
use ndarray::Array2;

use super::request_error::guarded;
use super::{
    EngineError, Generated, Likelihood, Measurement, Observe, RequestError, Sampling, StopWatch, Thinker,
    TokenRules,
};
use crate::attention::{Attributions, EachMasses, KeptShares, LargestKeys, LayerHoles, Masses, Norms};
use crate::evict::Eviction;

/// A shared prefix and its continuations.
#[derive(Debug, Default)]
pub struct Request {
    /// Tokens shared by all branches; may be empty.
    pub prefix: Arc<[u32]>,
    /// Cache reuse for the prefix.
    pub reuse: Reuse,
    /// The continuations.
    pub branches: Vec<Branch>,
}

/// Cache reuse policy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reuse {
    /// Reuse only the whole prefix of an earlier request: results never depend on earlier requests, on any device.
    #[default]
    Prefix,
    /// Reuse the longest common prefix with any cached prompt. Bit-equal on the CPU in f32 or bf16.
    Longest,
}

/// A continuation of the prefix.
#[derive(Debug, Default)]
pub struct Branch {
    /// Tokens after the prefix; both together are the branch's prompt.
    pub tokens: Vec<u32>,
    /// Keys masked from rows of the prompt and of the answer.
    pub knockouts: LayerHoles,
    /// Evicts keys of the prompt before the question's rows; not together with `knockouts`, norms, largest keys, attributions or
    /// routes.
    pub evict: Option<Eviction>,
    /// Measurements of the prompt and of generated tokens.
    pub observe: Observe,
    /// Tasks that follow the prompt; at least one.
    pub tasks: Vec<Task>,
}

/// A task after a branch's prompt.
#[derive(Debug)]
pub enum Task {
    /// Prefill and measure the prompt only.
    Read,
    /// Generate an answer.
    Generate(Box<Generate>),
    /// Natural-log probability of each continuation.
    Score(Vec<Vec<u32>>),
    /// Read these tokens as the answer in one pass and return the logits that predict them ([`Event::Logits`]). Not measured.
    Force(Arc<[u32]>),
}

/// Generation settings.
#[derive(Debug, Default)]
pub struct Generate {
    /// Sampling settings and the token limit.
    pub sampling: Sampling,
    /// Penalties, biases and constraints.
    pub rules: TokenRules,
    /// Token ids that end the answer.
    pub stop: Vec<u32>,
    /// Strings that end the answer.
    pub watch: Option<StopWatch>,
    /// Detects a thought before the answer.
    pub thinker: Option<Thinker>,
    /// Limit on thought plus answer, if below the sum of both limits.
    pub most: Option<usize>,
    /// Return each generated token's likelihood with this many top tokens.
    pub likeliest: Option<usize>,
    /// Stream each generated token's row of masses, if the branch measures `each`.
    pub tell_rows: bool,
}

impl Request {
    /// A request of one prompt and one task.
    pub fn of(prompt: Vec<u32>, observe: Observe, task: Task) -> Self {
        let branch = Branch { tokens: prompt, observe, tasks: vec![task], ..Branch::default() };
        Request { reuse: Reuse::Longest, branches: vec![branch], ..Request::default() }
    }
}

impl Generate {
    /// Default rules with these sampling settings and stop tokens.
    pub fn new(sampling: Sampling, stop: Vec<u32>) -> Self {
        Generate { sampling, stop, ..Generate::default() }
    }

    /// Maximum number of generated tokens.
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
    /// Maximum number of generated tokens.
    pub(super) fn room(&self) -> usize {
        match self {
            Task::Generate(generate) => generate.room(),
            Task::Read | Task::Score(_) | Task::Force(_) => 0,
        }
    }

    /// Number of tokens read for scores.
    pub(super) fn scored(&self) -> usize {
        match self {
            Task::Score(texts) => texts.iter().map(|text| text.len().saturating_sub(1)).sum(),
            _ => 0,
        }
    }

    /// Maximum number of tokens read after the prompt into its own cache.
    pub(super) fn read_behind(&self) -> usize {
        match self {
            Task::Score(texts) => texts.iter().map(Vec::len).max().unwrap_or(0),
            Task::Force(tokens) => tokens.len(),
            Task::Read | Task::Generate(_) => 0,
        }
    }
}

/// Events of a task, in order. The last is [`Event::Done`] or [`Event::Failed`].
#[derive(Debug)]
pub enum Event {
    /// Prefill started; number of tokens found in the cache.
    Begun(usize),
    /// Tokens prefilled since the last event; 0 while waiting.
    Prefilled(usize),
    /// Prompt read; continuations scored.
    Prompt,
    /// Likelihoods of the prompt's tokens from the second on, if requested; also in [`Measured`].
    Scored(Vec<Likelihood>),
    /// [`Task::Force`]: logits f32 (n, vocab) that predict the task's tokens from this index on.
    Logits(usize, Tensor),
    /// A token was generated.
    Token(Chosen),
    /// Finished.
    Done(Box<Measured>),
    /// Failed; [`EngineError::Interrupted`] if cancelled.
    Failed(RequestError),
}

/// A generated token.
#[derive(Debug, Clone)]
pub struct Chosen {
    /// Its id.
    pub token: u32,
    /// Its likelihood, if requested.
    pub likelihood: Option<Likelihood>,
    /// Rows of generated tokens, one token each, if requested: this token's, and those held back while a thought might have begun.
    pub rows: Vec<EachMasses>,
}

/// The output of a task.
#[derive(Debug)]
pub struct Measured {
    /// f32 (requested positions, vocab); only the last position if prompt likelihoods were requested, empty for [`Task::Force`].
    pub logits: Array2<f32>,
    /// The answer; empty if the task generates none.
    pub generated: Generated,
    /// Attention masses of the rows.
    pub masses: Masses,
    /// The measurement behind the masses, for rows that depend on the finished answer.
    pub measurement: Measurement,
    /// Keys with the largest weights, if requested.
    pub top_keys: Option<LargestKeys>,
    /// Norms, if requested.
    pub norms: Option<Norms>,
    /// Attributions, if targets were given.
    pub attributions: Option<Attributions>,
    /// By position, the share of the information-flow routes, summed over layers, if requested.
    pub routes: Option<Vec<f64>>,
    /// Shares of the spans' keys that an eviction kept, if there was one.
    pub kept: Option<KeptShares>,
    /// Prompt tokens found in the cache.
    pub reused: usize,
    /// Seconds of the call, if a server answered.
    pub call_seconds: Option<f64>,
    /// Likelihoods of the prompt's tokens from the second on, if requested.
    pub prompt: Vec<Likelihood>,
    /// Likelihood of the stop token that ended the answer, if there was one and likelihoods were requested.
    pub end: Option<Likelihood>,
    /// [`Task::Score`]: natural-log probability of each continuation; `None` if a token has no logit.
    pub scores: Vec<Option<f64>>,
}

/// A sink's response to an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Continue.
    Go,
    /// After a token: finish the answer with it. Earlier: same as [`Next::Cancel`].
    End,
    /// Cancel the task.
    Cancel,
}

impl From<bool> for Next {
    fn from(go_on: bool) -> Self {
        if go_on { Next::Go } else { Next::Cancel }
    }
}

/// Event callback; must not block.
pub type Sink = Box<dyn FnMut(Event) -> Next + Send>;

pub(super) struct Choice {
    pub task: Task,
    pub sink: Sink,
}

impl Choice {
    /// Sends a non-final event; returns the sink's response.
    pub fn hear(&mut self, event: Event) -> Result<Next, RequestError> {
        guarded(|| Ok::<_, RequestError>((self.sink)(event)))
    }

    /// Sends an event that precedes the first token. Fails with [`EngineError::Interrupted`] if the sink does not continue.
    pub fn hear_of_prompt(&mut self, event: Event) -> Result<(), RequestError> {
        match self.hear(event)? {
            Next::Go => Ok(()),
            Next::End | Next::Cancel => Err(EngineError::Interrupted.into()),
        }
    }

    /// Sends the final event.
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
