//! Decode loop of one answer.

use candle_core::Tensor;

use super::phases::{Phases, Thinker};
use super::rules::{Applied, TokenRules};
use super::sampling::Sampling;
use super::stop_strings::StopWatch;
use super::{Engine, EngineError, Generated, Sampler};
use crate::attention::{Event, Observer};
use crate::model::{Cache, Phase};
use crate::timing;

/// An answer in progress.
pub struct Decoding {
    sampler: Sampler,
    /// `None` if there are no rules.
    rules: Option<Box<Applied>>,
    /// `None` without stop strings.
    watch: Option<StopWatch>,
    phases: Phases,
    /// Next-token logits, f32 (vocab).
    logits: Tensor,
    ended_by: Option<u32>,
    ended: bool,
}

impl Decoding {
    /// Starts after a prompt with last logits f32 (vocab).
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

    /// Adds token rules, some of which count prompt tokens. Call before the first token.
    #[must_use]
    pub fn with_rules(mut self, rules: &TokenRules, prompt: &[u32]) -> Self {
        self.rules = Applied::new(rules, prompt, self.phases.thinks());
        self
    }

    /// Adds stop strings; the token that completes one is kept. Call before the first token.
    #[must_use]
    pub fn watched(mut self, watch: Option<StopWatch>) -> Self {
        self.watch = watch;
        self
    }

    /// The next token; `None` if the answer has ended (no room, stop token, complete constraint). `observer` gets the thought's length.
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
            observer.observe(Event::Thought(thought))?;
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

    /// The latest token, if another may follow it.
    pub fn unread(&self) -> Option<u32> {
        let last = self.phases.tokens().last().copied();
        last.filter(|_| !self.ended && self.phases.has_room())
    }

    /// Sets the logits f32 (vocab) after the latest token.
    pub fn take(&mut self, logits: Tensor) {
        self.logits = logits;
    }

    /// Ends the answer as if by an end token.
    pub fn end_turn(&mut self) {
        self.ended = true;
    }

    /// Logits f32 (vocab) that the latest token was chosen from.
    pub fn logits(&self) -> &Tensor {
        &self.logits
    }

    /// Tokens so far.
    pub fn tokens(&self) -> &[u32] {
        self.phases.tokens()
    }

    /// True if the latest token belongs to the answer, not to a possible thought.
    pub fn in_answer(&self) -> bool {
        self.phases.in_answer()
    }

    /// The stop token that ended the answer, if any.
    pub fn ended_by(&self) -> Option<u32> {
        self.ended_by
    }

    /// The result. An answer closed near its limit counts as having reached it.
    pub fn finish(self) -> Generated {
        let closed = self.rules.as_ref().is_some_and(|rules| rules.was_closed());
        self.phases.end(self.ended && !closed)
    }
}

impl Engine {
    /// Reference implementation of decoding, on one sequence in place; answers to a [`super::Request`] must match it. Decodes after the
    /// cached tokens, with last logits f32 (vocab), until a stop token or `sampling.max_new_tokens`. `observer` sees every token read;
    /// `on_token` returns false to cancel, which gives [`EngineError::Interrupted`].
    pub fn decode(
        &self,
        cache: &mut Cache,
        logits: &Tensor,
        (sampling, stop): (&Sampling, &[u32]),
        observer: &mut dyn Observer,
        on_token: &mut dyn FnMut(u32) -> bool,
    ) -> Result<Generated, EngineError> {
        let mut decoding = Decoding::new(logits, sampling, None);
        while let Some(token) = decoding.choose(stop, observer)? {
            let unread = decoding.unread();
            // An answer that has already ended is not interrupted.
            if !on_token(token) && unread.is_some() {
                return Err(EngineError::Interrupted);
            }
            if let Some(token) = unread {
                let _span = timing::decode(1);
                let hidden = self.decoder.forward(&[token], 1, cache, Phase::Decode, &mut *observer)?;
                let logits = self.decoder.logits(&hidden, Phase::Decode)?;
                self.check_finite(&logits, cache.len() - 1)?;
                decoding.take(logits.squeeze(0)?);
            }
        }
        Ok(decoding.finish())
    }
}
