//! What is asked of the choice of tokens beside sampling: penalties, biases and a constraint.
//!
//! They change a copy of the logits on the CPU before a token is chosen; where none of them applies, the sampler gets the model's
//! own. Probabilities that are told are those of the model.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::{Device, Tensor};

use super::constraint::{Constraint, Guide};
use super::phases::Phases;
use super::{EngineError, Sampler};
use crate::transfer;

/// Rules of a request. The default asks for nothing.
#[derive(Debug, Clone, Default)]
pub struct TokenRules {
    /// Taken from a token's logit for each time that it was generated, as OpenAI defines `frequency_penalty`.
    pub frequency_penalty: f32,
    /// Taken from a token's logit once it was generated, as OpenAI defines `presence_penalty`.
    pub presence_penalty: f32,
    /// Added to the logits of tokens.
    pub bias: Arc<[(u32, f32)]>,
    /// What the answer may be; thoughts before it are free.
    pub constraint: Option<Arc<Constraint>>,
}

impl TokenRules {
    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        let TokenRules { frequency_penalty, presence_penalty, bias, constraint } = self;
        *frequency_penalty == 0.0 && *presence_penalty == 0.0 && bias.is_empty() && constraint.is_none()
    }
}

/// Rules with what one answer has come to.
pub(super) struct Applied {
    rules: TokenRules,
    /// How often each token was generated, where that is asked about.
    counts: BTreeMap<u32, u32>,
    guide: Option<Guide>,
    /// Whether the answer has begun: thoughts come before it.
    begun: bool,
}

impl Applied {
    /// At the beginning of a reply, which may begin with a thought where `thinks` is set; `None` where nothing is asked for.
    pub fn new(rules: &TokenRules, thinks: bool) -> Option<Box<Self>> {
        let applied = || Applied {
            guide: rules.constraint.as_ref().map(Guide::new),
            rules: rules.clone(),
            counts: BTreeMap::new(),
            begun: !thinks,
        };
        (!rules.is_empty()).then(|| Box::new(applied()))
    }

    /// The next token for logits f32 (vocab); `None` where the answer can only end here.
    ///
    /// # Errors
    /// Those of sampling, and [`EngineError::Constraint`].
    pub fn choose(
        &mut self,
        sampler: &mut Sampler,
        logits: &Tensor,
        phases: &Phases,
        stop: &[u32],
    ) -> Result<Option<u32>, EngineError> {
        let kept = self.guide.as_ref().is_some_and(Guide::is_kept);
        if !kept || (!self.begun && !phases.may_begin()) {
            return self.sample(sampler, logits, false);
        }
        if !self.begun {
            // The first token of a reply is a thought's or the answer's, which it decides itself; the answer's is masked.
            let token = self.sample(sampler, logits, false)?;
            if token.is_some_and(|token| !stop.contains(&token) && phases.goes_on_before_answer(token)) {
                return Ok(token);
            }
            if let Some(guide) = &mut self.guide {
                let before = guide.bytes(phases.tokens());
                if !fits(guide, &before)? {
                    // The beginning of a thought's marker, and of nothing else.
                    return Ok(guide.spell(&phases.rest_of_marker()));
                }
            }
            self.begun = true;
        }
        self.sample(sampler, logits, true)
    }

    fn sample(
        &mut self,
        sampler: &mut Sampler,
        logits: &Tensor,
        masked: bool,
    ) -> Result<Option<u32>, EngineError> {
        let TokenRules { frequency_penalty, presence_penalty, bias, .. } = &self.rules;
        let counted = !self.counts.is_empty();
        if !masked && !counted && bias.is_empty() {
            return Ok(Some(sampler.sample(logits)?));
        }
        let mut numbers: Vec<f32> = transfer::fetch(logits)?;
        for (&token, &count) in &self.counts {
            if let Some(logit) = numbers.get_mut(token as usize) {
                *logit -= count as f32 * frequency_penalty + presence_penalty;
            }
        }
        for &(token, bias) in bias.iter() {
            if let Some(logit) = numbers.get_mut(token as usize) {
                *logit += bias;
            }
        }
        if masked
            && let Some(guide) = &mut self.guide
            && !guide.mask(&mut numbers)?
        {
            return Ok(None);
        }
        let vocab = numbers.len();
        Ok(Some(sampler.sample(&transfer::upload(numbers, vocab, &Device::Cpu)?)?))
    }

    /// Takes the token that was chosen, after `phases` has.
    ///
    /// # Errors
    /// [`EngineError::Constraint`].
    pub fn push(&mut self, token: u32, phases: &Phases) -> Result<(), EngineError> {
        if self.rules.frequency_penalty != 0.0 || self.rules.presence_penalty != 0.0 {
            *self.counts.entry(token).or_default() += 1;
        }
        let Some(guide) = &mut self.guide else { return Ok(()) };
        if self.begun {
            return Ok(guide.push(token)?);
        }
        if !phases.in_answer() {
            return Ok(());
        }
        self.begun = true;
        let bytes = match phases.answer_begun() {
            Some(text) => text.into_bytes(),
            // There was no thought: all tokens are of the answer.
            None => guide.bytes(phases.tokens()),
        };
        match fits(guide, &bytes)? {
            true => Ok(()),
            false => Err(guide.lost("the thought ends within a token that begins another answer").into()),
        }
    }

    /// Whether nothing can follow.
    pub fn must_end(&mut self) -> bool {
        self.begun && self.guide.as_mut().is_some_and(Guide::must_end)
    }
}

/// Tells a guide the beginning of an answer. White space before it is no part of it.
fn fits(guide: &mut Guide, bytes: &[u8]) -> Result<bool, EngineError> {
    let bytes = bytes.trim_ascii_start();
    Ok(bytes.is_empty() || guide.push_bytes(bytes)?)
}
