//! The decode loop of one answer: a token is chosen, its chooser looks at it, and what reading it gives comes back as logits.

use candle_core::Tensor;

use super::phases::{Phases, Thinker};
use super::rules::{Applied, TokenRules};
use super::sampling::Sampling;
use super::stop_strings::StopWatch;
use super::{Engine, EngineError, Generated, Sampler};
use crate::attention::{Event, Observer};
use crate::model::{Cache, Phase};
use crate::timing;

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

    /// The token to be read next: the one chosen last, where another one may follow it.
    pub fn unread(&self) -> Option<u32> {
        let last = self.phases.tokens().last().copied();
        last.filter(|_| !self.ended && self.phases.has_room())
    }

    /// Takes the logits f32 (vocab) that reading the latest token gave.
    pub fn take(&mut self, logits: Tensor) {
        self.logits = logits;
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

    /// True if the latest token is one of the answer, not of a thought or of what may become one.
    pub fn in_answer(&self) -> bool {
        self.phases.in_answer()
    }

    /// The token of `stop` that ended the answer, if one did.
    pub fn ended_by(&self) -> Option<u32> {
        self.ended_by
    }

    /// The generation. An answer that was closed for its limit's sake has reached the limit.
    pub fn finish(self) -> Generated {
        let closed = self.rules.as_ref().is_some_and(|rules| rules.was_closed());
        self.phases.end(self.ended && !closed)
    }
}

impl Engine {
    /// Continues one sequence in place: the definition that answers to a [`super::Request`] are held against. After the tokens in the
    /// cache, whose last one gave `logits` f32 (vocab), until one of `stop` is chosen or `sampling.max_new_tokens` are reached. `observer`
    /// is shown the attention of every token that is read; `on_token` gets each and says whether to go on.
    ///
    /// # Errors
    /// The forward pass failed, its output is not finite, or [`EngineError::Interrupted`].
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
            // An answer that has ended by itself is whole.
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
