//! Decoding one token at a time: a token is chosen, its chooser looks at it, it is read.
//!
//! [`Engine::decode`] and its kin run it to the end. Batches choose by it too and read the tokens of all sequences together; so does
//! the thread that owns a model, which also tells probabilities and attention of each token and may end an answer in the middle.

use candle_core::Tensor;

use super::phases::{Phases, Thinker};
use super::rules::{Applied, TokenRules};
use super::sampling::Sampling;
use super::stop_strings::StopWatch;
use super::{Engine, EngineError, Generated, Sampler};
use crate::attention::{NoObserver, Observer};
use crate::model::Cache;

/// An answer under way.
pub struct Decoding {
    sampler: Sampler,
    /// `None` where nothing is asked for.
    rules: Option<Box<Applied>>,
    /// `None` where no string ends the answer.
    watch: Option<StopWatch>,
    phases: Phases,
    /// Of the next token, f32 (vocab).
    logits: Tensor,
    ended_by: Option<u32>,
    ended: bool,
}

impl Decoding {
    /// After a prompt whose last token gave `logits` f32 (vocab).
    pub fn new(logits: &Tensor, sampling: &Sampling, thinker: Option<Thinker>) -> Self {
        Decoding {
            sampler: Sampler::new(sampling),
            rules: None,
            watch: None,
            phases: Phases::new(sampling, thinker),
            logits: logits.clone(),
            ended_by: None,
            ended: false,
        }
    }

    /// The same, with rules for the choice of its tokens, some of which count those of the prompt. For the beginning of an answer.
    #[must_use]
    pub fn with_rules(mut self, rules: &TokenRules, prompt: &[u32]) -> Self {
        self.rules = Applied::new(rules, prompt, self.phases.thinks());
        self
    }

    /// The same, ended by strings too: behind the token that completes one, which is of the answer's tokens. For the beginning of an
    /// answer.
    #[must_use]
    pub fn watched(mut self, watch: Option<StopWatch>) -> Self {
        self.watch = watch;
        self
    }

    /// Chooses the next token; `None` where the answer has ended: there is no more room, one of `stop` was chosen, or its constraint
    /// is satisfied and lets nothing follow. `observer` hears where a thought was.
    ///
    /// # Errors
    /// Those of sampling, and [`EngineError::Constraint`].
    pub fn choose(&mut self, stop: &[u32], observer: &mut dyn Observer) -> Result<Option<u32>, EngineError> {
        if self.ended || !self.phases.has_room() {
            return Ok(None);
        }
        let token = match &mut self.rules {
            None => Some(self.sampler.sample(&self.logits)?),
            Some(rules) => rules.choose(&mut self.sampler, &self.logits, &self.phases, stop)?,
        };
        let Some(token) = token.filter(|token| !stop.contains(token)) else {
            self.ended_by = token;
            self.ended = true;
            return Ok(None);
        };
        if let Some(thought) = self.phases.push(token) {
            observer.skip_generated(thought);
        }
        if let Some(rules) = &mut self.rules {
            rules.push(token, &self.phases)?;
            self.ended = rules.must_end();
        }
        if let Some(watch) = &mut self.watch {
            self.ended |= watch.ends(&self.phases)?;
        }
        Ok(Some(token))
    }

    /// The token to be read next: the one chosen last, where another one may follow it.
    pub fn unread(&self) -> Option<u32> {
        let last = self.phases.tokens().last().copied();
        last.filter(|_| !self.ended && self.phases.has_room())
    }

    /// Takes the logits f32 (vocab) that reading the latest token gave.
    pub fn take(&mut self, logits: Tensor) {
        self.logits = logits;
    }

    /// Reads the token chosen last, where another one may follow it.
    ///
    /// # Errors
    /// Those of a forward pass, and [`EngineError::NotFinite`].
    pub fn read(
        &mut self,
        engine: &Engine,
        cache: &mut Cache,
        observer: &mut dyn Observer,
    ) -> Result<(), EngineError> {
        if let Some(token) = self.unread() {
            let logits = engine.step(cache, token, observer)?;
            self.take(logits);
        }
        Ok(())
    }

    /// Ends the answer here, as if the model had ended its turn.
    pub fn end_turn(&mut self) {
        self.ended = true;
    }

    /// The logits f32 (vocab) that the latest token was chosen from.
    pub fn logits(&self) -> &Tensor {
        &self.logits
    }

    /// The tokens so far.
    pub fn tokens(&self) -> &[u32] {
        self.phases.tokens()
    }

    /// Whether the latest token is one of the answer, not of a thought or of what may become one.
    pub fn in_answer(&self) -> bool {
        self.phases.in_answer()
    }

    /// The token of `stop` that ended the answer, if one did.
    pub fn ended_by(&self) -> Option<u32> {
        self.ended_by
    }

    /// What was generated. An answer that was closed for its limit's sake has reached the limit.
    pub fn finish(self) -> Generated {
        let closed = self.rules.as_ref().is_some_and(|rules| rules.was_closed());
        self.phases.end(self.ended && !closed)
    }
}

/// How an answer is generated: how its tokens are chosen, which of them end it, and where there is such a thing, who tells its thought
/// and which strings end it.
pub type How<'a> = (&'a Sampling, &'a [u32], Option<Thinker>, Option<StopWatch>);

impl Engine {
    /// Continues after the tokens in the cache, whose last one gave `logits` f32 (vocab), until one of `stop` is chosen or
    /// `sampling.max_new_tokens` are reached. Every token is shown to `on_token`, which returns whether to go on.
    pub fn decode(
        &self,
        cache: &mut Cache,
        logits: &Tensor,
        sampling: &Sampling,
        stop: &[u32],
        on_token: &mut dyn FnMut(u32) -> bool,
    ) -> Result<Generated, EngineError> {
        self.decode_observed(cache, logits, (sampling, stop, None, None), &mut NoObserver, on_token)
    }

    /// [`Engine::decode`] that shows the attention of every decoded token to `observer`, and that lets a thinker, where there is
    /// one, have a thought of up to its budget before the answer; a watch, where there is one, ends the answer at a string.
    pub fn decode_observed(
        &self,
        cache: &mut Cache,
        logits: &Tensor,
        (sampling, stop, thinker, watch): How<'_>,
        observer: &mut dyn Observer,
        on_token: &mut dyn FnMut(u32) -> bool,
    ) -> Result<Generated, EngineError> {
        let mut decoding = Decoding::new(logits, sampling, thinker).watched(watch);
        while let Some(token) = decoding.choose(stop, observer)? {
            // An answer that has ended by itself is whole.
            if !on_token(token) && decoding.unread().is_some() {
                return Err(EngineError::Interrupted);
            }
            decoding.read(self, cache, observer)?;
        }
        Ok(decoding.finish())
    }
}
