//! Token rules: penalties, biases, constraints and forced tokens. They modify a CPU copy of the logits in vLLM's order: biases, repetition
//! penalty, other penalties, constraint, `min_p`, `top_k`; then the sampler applies temperature and top-p. Reported probabilities are the
//! unmodified model's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use candle_core::{Device, Tensor};

use super::closing::Closing;
use super::constraint::{Constraint, Guide};
use super::phases::Phases;
use super::{EngineError, Sampler};
use crate::transfer;

/// Rules of a request; the default has none.
#[derive(Debug, Clone)]
pub struct TokenRules {
    /// Subtracted from a token's logit per occurrence in the answer (OpenAI `frequency_penalty`).
    pub frequency_penalty: f32,
    /// Subtracted from a token's logit once generated (OpenAI `presence_penalty`).
    pub presence_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens in prompt and answer (transformers, vLLM `repetition_penalty`); 1 is off.
    pub repetition_penalty: f32,
    /// Added to the logits of tokens.
    pub bias: Arc<[(u32, f32)]>,
    /// Keeps this many top tokens, and ties with the last; `None` keeps all.
    pub top_k: Option<usize>,
    /// Minimum probability relative to the top token, after temperature; 0 keeps all.
    pub min_p: f64,
    /// Grammar of the answer; thoughts are unconstrained.
    pub constraint: Option<Arc<Constraint>>,
    /// Forces the answer to these tokens, up to a stop token. Decoded step by step, so results are bit-equal to a generated answer's.
    pub forced: Option<Arc<[u32]>>,
    /// Closes a constrained JSON object within this many tokens of thought and answer.
    pub closed_within: Option<usize>,
}

impl Default for TokenRules {
    fn default() -> Self {
        TokenRules {
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repetition_penalty: 1.0,
            bias: Arc::default(),
            top_k: None,
            min_p: 0.0,
            constraint: None,
            closed_within: None,
            forced: None,
        }
    }
}

impl TokenRules {
    /// True without any rule.
    pub fn is_empty(&self) -> bool {
        let free = self.bias.is_empty() && self.constraint.is_none() && self.forced.is_none();
        free && !self.counts() && !self.repeats() && !self.narrows()
    }

    /// True if generated tokens are counted.
    fn counts(&self) -> bool {
        self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }

    /// True if tokens of prompt and answer are tracked.
    fn repeats(&self) -> bool {
        self.repetition_penalty != 1.0
    }

    /// True if unlikely tokens are dropped.
    fn narrows(&self) -> bool {
        self.top_k.is_some() || self.min_p > 0.0
    }
}

/// Attempts to replace a token that would complete a duplicate key.
const MOST_DOUBLING: usize = 32;

/// Rules with the state of one answer.
pub(super) struct Applied {
    rules: TokenRules,
    /// Counts of generated tokens, if a rule needs them.
    counts: BTreeMap<u32, u32>,
    /// Tokens of prompt and answer, if a rule needs them.
    seen: BTreeSet<u32>,
    guide: Option<Guide>,
    /// Closes the answer before its limit.
    closing: Option<Closing>,
    /// True if the answer was closed early.
    closed: bool,
    /// True after the thought, if any.
    begun: bool,
    /// Forced tokens so far.
    taken: usize,
}

impl Applied {
    /// `thinks`: the reply may start with a thought. `None` without rules.
    pub fn new(rules: &TokenRules, prompt: &[u32], thinks: bool) -> Option<Box<Self>> {
        let applied = || Applied {
            guide: rules.constraint.as_ref().map(Guide::new),
            closing: rules.closed_within.map(Closing::new),
            closed: false,
            rules: rules.clone(),
            counts: BTreeMap::new(),
            seen: if rules.repeats() { prompt.iter().copied().collect() } else { BTreeSet::new() },
            begun: !thinks,
            taken: 0,
        };
        (!rules.is_empty()).then(|| Box::new(applied()))
    }

    pub fn was_closed(&self) -> bool {
        self.closed
    }

    /// The next token for logits f32 (vocab); `None` if the answer must end.
    pub fn choose(
        &mut self,
        sampler: &mut Sampler,
        logits: &Tensor,
        phases: &Phases,
        stop: &[u32],
    ) -> Result<Option<u32>, EngineError> {
        if let Some(forced) = &self.rules.forced {
            return Ok(forced.get(self.taken).copied());
        }
        let kept = self.guide.as_ref().is_some_and(Guide::is_kept);
        if !kept || (!self.begun && !phases.may_begin()) {
            return self.sample(sampler, logits, false, &[]);
        }
        if !self.begun {
            // The first token may start a thought, so it is sampled unmasked; masked again if it starts the answer.
            let token = self.sample(sampler, logits, false, &[])?;
            if token.is_some_and(|token| !stop.contains(&token) && phases.goes_on_before_answer(token)) {
                return Ok(token);
            }
            if let Some(guide) = &mut self.guide {
                let before = guide.bytes(phases.tokens());
                if !fits(guide, &before)? {
                    // Only a partial thought marker so far: continue it.
                    return Ok(guide.spell(&phases.rest_of_marker()));
                }
                if let Some(closing) = &mut self.closing {
                    closing.push(&before);
                }
            }
            self.begun = true;
        }
        let Some(mut token) = self.sample(sampler, logits, true, &[])? else { return Ok(None) };
        let mut doubling = Vec::new();
        while let (Some(closing), Some(guide)) = (&self.closing, &self.guide) {
            if doubling.len() == MOST_DOUBLING || !closing.doubles(&guide.bytes(&[token])) {
                let in_time = closing.in_time(token, guide, phases.tokens().len());
                self.closed |= in_time != token;
                return Ok(Some(in_time));
            }
            doubling.push(token);
            match self.sample(sampler, logits, true, &doubling)? {
                Some(other) => token = other,
                None => break,
            }
        }
        Ok(Some(token))
    }

    /// Samples under the rules; `masked` adds the constraint, `without` excludes tokens.
    fn sample(
        &mut self,
        sampler: &mut Sampler,
        logits: &Tensor,
        masked: bool,
        without: &[u32],
    ) -> Result<Option<u32>, EngineError> {
        let TokenRules {
            frequency_penalty, presence_penalty, repetition_penalty, bias, top_k, min_p, ..
        } = &self.rules;
        let counted = !self.counts.is_empty() || !self.seen.is_empty();
        if !masked && !counted && bias.is_empty() && !self.rules.narrows() {
            return Ok(Some(sampler.sample(logits)?));
        }
        let mut numbers: Vec<f32> = transfer::fetch(logits)?;
        for &(token, bias) in bias.iter() {
            if let Some(logit) = numbers.get_mut(token as usize) {
                *logit += bias;
            }
        }
        for &token in &self.seen {
            if let Some(logit) = numbers.get_mut(token as usize) {
                *logit = if *logit > 0.0 { *logit / repetition_penalty } else { *logit * repetition_penalty };
            }
        }
        for (&token, &count) in &self.counts {
            if let Some(logit) = numbers.get_mut(token as usize) {
                *logit -= count as f32 * frequency_penalty + presence_penalty;
            }
        }
        if masked
            && let Some(guide) = &mut self.guide
            && !guide.mask(&mut numbers)?
        {
            return Ok(None);
        }
        for &token in without {
            if let Some(logit) = numbers.get_mut(token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        if numbers.iter().all(|&logit| logit == f32::NEG_INFINITY) {
            return Ok(None);
        }
        if *min_p > 0.0 {
            keep_likely(&mut numbers, *min_p, sampler.temperature());
        }
        if let Some(k) = top_k {
            keep_top(&mut numbers, *k);
        }
        let vocab = numbers.len();
        Ok(Some(sampler.sample(&transfer::upload(numbers, vocab, &Device::Cpu)?)?))
    }

    /// Takes a token, after `phases` has.
    pub fn push(&mut self, token: u32, phases: &Phases) -> Result<(), EngineError> {
        self.taken += 1;
        if self.rules.counts() {
            *self.counts.entry(token).or_default() += 1;
        }
        if self.rules.repeats() {
            self.seen.insert(token);
        }
        let Some(guide) = &mut self.guide else { return Ok(()) };
        if self.begun {
            if let Some(closing) = &mut self.closing {
                closing.push(&guide.bytes(&[token]));
            }
            return Ok(guide.push(token)?);
        }
        if !phases.in_answer() {
            return Ok(());
        }
        self.begun = true;
        let bytes = match phases.answer_begun() {
            Some(text) => text.into_bytes(),
            // No thought: all tokens belong to the answer.
            None => guide.bytes(phases.tokens()),
        };
        if let Some(closing) = &mut self.closing {
            closing.push(&bytes);
        }
        match fits(guide, &bytes)? {
            true => Ok(()),
            false => Err(guide.lost("the thought ends within a token that begins another answer").into()),
        }
    }

    pub fn must_end(&mut self) -> bool {
        if let Some(forced) = &self.rules.forced {
            return self.taken >= forced.len();
        }
        self.begun && self.guide.as_mut().is_some_and(Guide::must_end)
    }
}

/// Feeds the start of an answer to a guide, without leading white space.
fn fits(guide: &mut Guide, bytes: &[u8]) -> Result<bool, EngineError> {
    let bytes = bytes.trim_ascii_start();
    Ok(bytes.is_empty() || guide.push_bytes(bytes)?)
}

/// Masks tokens less likely than `least` times the top one, in place (vocab). Compares logits: a ratio of p is a difference of logits.
fn keep_likely(logits: &mut [f32], least: f64, temperature: f64) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let bound = f64::from(max) + temperature * least.ln();
    for logit in logits {
        if f64::from(*logit) < bound {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// Masks tokens below the k-th largest logit. In place (vocab).
fn keep_top(logits: &mut [f32], k: usize) {
    if k == 0 || k >= logits.len() {
        return;
    }
    let mut sorted = logits.to_vec();
    let (_, least, _) = sorted.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
    let least = *least;
    for logit in logits {
        if *logit < least {
            *logit = f32::NEG_INFINITY;
        }
    }
}
