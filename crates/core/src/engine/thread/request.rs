//! What the thread is asked, and what it says.

use std::panic::{self, AssertUnwindSafe};

use ndarray::Array2;

use crate::attention::{EachMasses, LargestKeys, Masses, SpanError};
use crate::engine::{
    EngineError, Generated, Likelihood, Measurement, Rows, Sampling, Thinker, TokenRules, TopRequest,
};
use crate::span::Span;

/// A prompt to prefill, measure and continue.
#[derive(Debug, Clone)]
pub struct Request {
    /// The prompt.
    pub tokens: Vec<u32>,
    /// Positions at its end whose logits are wanted, at least one.
    pub keep: usize,
    /// Whose attention is measured.
    pub rows: Rows,
    /// Over which spans.
    pub keys: Vec<Span>,
    /// Which keys of the rows are told one by one.
    pub top_keys: Option<TopRequest>,
    /// How tokens are chosen; none are where `max_new_tokens` is 0.
    pub sampling: Sampling,
    /// What else the choice of tokens is held to.
    pub rules: TokenRules,
    /// Tokens that end the answer.
    pub stop: Vec<u32>,
    /// Where the model thinks before it answers.
    pub thinker: Option<Thinker>,
    /// Most tokens of thought and answer together, where that is less than both.
    pub most: Option<usize>,
    /// Tells the likelihood of each generated token, with so many of the likeliest ones.
    pub likeliest: Option<usize>,
    /// The same of each token of the prompt but the first: nothing in the cache can be kept for such a request.
    pub prompt_likeliest: Option<usize>,
    /// Tells each generated token's row with it, where `rows` asks for such rows.
    pub tell_rows: bool,
}

impl Request {
    /// A prompt to continue, none of whose attention is measured.
    pub fn new(tokens: Vec<u32>, sampling: Sampling, stop: Vec<u32>) -> Self {
        Request {
            tokens,
            keep: 1,
            rows: Rows::default(),
            keys: Vec::new(),
            top_keys: None,
            sampling,
            rules: TokenRules::default(),
            stop,
            thinker: None,
            most: None,
            likeliest: None,
            prompt_likeliest: None,
            tell_rows: false,
        }
    }

    /// Most tokens that it generates.
    pub fn room(&self) -> usize {
        if self.sampling.max_new_tokens == 0 {
            return 0;
        }
        let thought = self.thinker.as_ref().map_or(0, |thinker| thinker.budget);
        let both = self.sampling.max_new_tokens.saturating_add(thought);
        self.most.map_or(both, |most| both.min(most))
    }
}

/// What comes of a request, in order. The last one is [`Event::Done`] or [`Event::Failed`].
#[derive(Debug)]
pub enum Event {
    /// The prompt is being read, from so many of its tokens that were in the cache.
    Begun(usize),
    /// So many more tokens of the prompt are in the cache; 0 while it waits.
    Prefilled(usize),
    /// The likelihoods of the prompt's tokens from the second on, where they were asked for; [`Measured`] has them, too.
    Scored(Vec<Likelihood>),
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
    /// How likely it was, where that was asked for.
    pub likelihood: Option<Likelihood>,
    /// The rows of generated tokens that are known with it, one token each, where they were asked for: its own, and those of the
    /// tokens before it that might have begun a thought.
    pub rows: Vec<EachMasses>,
}

/// What was asked for.
#[derive(Debug)]
pub struct Measured {
    /// f32 (keep, vocab); the last position's alone where the prompt's likelihoods were asked for.
    pub logits: Array2<f32>,
    /// The answer.
    pub generated: Generated,
    /// What the rows pay.
    pub masses: Masses,
    /// The keys that they pay most to, where they were asked for.
    pub top_keys: Option<LargestKeys>,
    /// Tokens of the prompt that were in the cache already.
    pub reused: usize,
    /// The likelihoods of the prompt's tokens from the second on, where they were asked for.
    pub prompt: Vec<Likelihood>,
    /// The likelihood of the token of `stop` that ended the answer, where one did and likelihoods were asked for.
    pub end: Option<Likelihood>,
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The model could not serve it.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Its spans cannot be measured.
    #[error(transparent)]
    Spans(#[from] SpanError),
    /// It is longer than the cache.
    #[error("{needed} tokens of prompt and answer do not fit the context of {context}; shorten them")]
    TooLong {
        /// Tokens of both.
        needed: usize,
        /// Tokens of the cache.
        context: usize,
    },
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

/// What whoever hears of an event wants next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// More.
    Go,
    /// After a token: the answer ends with it. Before, the same as [`Next::Cancel`].
    End,
    /// Nothing of it.
    Cancel,
}

impl From<bool> for Next {
    /// Whether to go on.
    fn from(go_on: bool) -> Self {
        if go_on { Next::Go } else { Next::Cancel }
    }
}

/// Hears of a request's events, and says what is wanted next. It must not block.
pub type Sink = Box<dyn FnMut(Event) -> Next + Send>;

/// Continuations of one prompt: what their requests say of the prompt is the same for all of them.
pub(super) struct Job {
    pub choices: Vec<Choice>,
}

/// One of them.
pub(super) struct Choice {
    pub request: Request,
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

    /// Tells how far the prompt is.
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

    /// What cannot be served whatever the cache holds.
    ///
    /// # Errors
    /// Why.
    pub fn check(&self, context: usize) -> Result<(), RequestError> {
        let Request { tokens, rows, keys, .. } = &self.request;
        let needed = tokens.len().saturating_add(self.request.room());
        if needed > context {
            return Err(RequestError::TooLong { needed, context });
        }
        if tokens.is_empty() {
            return Err(EngineError::EmptyPrompt.into());
        }
        Measurement::new(rows.clone(), keys.clone(), tokens.len())?;
        Ok(())
    }
}

impl RequestError {
    /// The same once more, for another continuation of the same prompt.
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
