//! Rules for the choice of tokens beside sampling: penalties, biases and a constraint; or the tokens themselves.
//!
//! They change a copy of the logits on the CPU before a token is chosen, in vLLM's order: biases, the repetition penalty, the other
//! penalties, the constraint, `min_p`, `top_k`; temperature and nucleus are the sampler's, over what is left. Where none of them
//! applies, the sampler gets the model's own. Probabilities that are told are those of the model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use candle_core::{Device, Tensor};

use super::closing::Closing;
use super::constraint::{Constraint, Guide};
use super::phases::Phases;
use super::{EngineError, Sampler};
use crate::transfer;

/// Rules of a request. The default asks for nothing.
#[derive(Debug, Clone)]
pub struct TokenRules {
    /// Taken from a token's logit for each time that it was generated, as OpenAI defines `frequency_penalty`.
    pub frequency_penalty: f32,
    /// Taken from a token's logit once it was generated, as OpenAI defines `presence_penalty`.
    pub presence_penalty: f32,
    /// Divides positive and multiplies negative logits of the tokens of prompt and answer so far, as transformers and vLLM define
    /// `repetition_penalty`; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Added to the logits of tokens.
    pub bias: Arc<[(u32, f32)]>,
    /// So many of the likeliest tokens are left to choose from, and those as likely as the last of them; `None` keeps all.
    pub top_k: Option<usize>,
    /// Tokens are left out that are less likely than this times the likeliest one, after temperature; 0 keeps all.
    pub min_p: f64,
    /// The grammar of the answer; thoughts before it are free.
    pub constraint: Option<Arc<Constraint>>,
    /// The answer itself: its tokens are taken one after the other in the place of sampled ones, and it ends with the last. It is read
    /// step by step like a generated one, so that its likelihoods and masses have the same bits. A token of `stop` ends it too.
    pub forced: Option<Arc<[u32]>>,
    /// Of a constraint to one JSON object: it is closed so that thought and answer have at most this many tokens.
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
    /// True if nothing is asked for.
    pub fn is_empty(&self) -> bool {
        let free = self.bias.is_empty() && self.constraint.is_none() && self.forced.is_none();
        free && !self.counts() && !self.repeats() && !self.narrows()
    }

    /// True if tokens count that were generated.
    fn counts(&self) -> bool {
        self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }

    /// True if tokens of prompt and answer count.
    fn repeats(&self) -> bool {
        self.repetition_penalty != 1.0
    }

    /// True if unlikely tokens are left out.
    fn narrows(&self) -> bool {
        self.top_k.is_some() || self.min_p > 0.0
    }
}

/// Tokens that are tried in the place of one that would complete a doubled key.
const MOST_DOUBLING: usize = 32;

/// Rules with what one answer has come to.
pub(super) struct Applied {
    rules: TokenRules,
    /// Counts of generated tokens, where a rule asks for them.
    counts: BTreeMap<u32, u32>,
    /// Tokens of prompt and answer, where that is asked about.
    seen: BTreeSet<u32>,
    guide: Option<Guide>,
    /// Where the answer is to be closed in time.
    closing: Option<Closing>,
    /// True if it was closed for its limit's sake.
    closed: bool,
    /// True if the answer has begun: thoughts come before it.
    begun: bool,
    /// Tokens so far, where they are given.
    taken: usize,
}

impl Applied {
    /// At the beginning of a reply to a prompt, which may begin with a thought where `thinks` is set; `None` where nothing is asked
    /// for.
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

    /// True if the answer was closed in the place of going on, since its limit was near.
    pub fn was_closed(&self) -> bool {
        self.closed
    }

    /// The next token for logits f32 (vocab); `None` where the answer can only end here.
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
            // The first token of a reply is a thought's or the answer's, which it decides itself; the answer's is masked.
            let token = self.sample(sampler, logits, false, &[])?;
            if token.is_some_and(|token| !stop.contains(&token) && phases.goes_on_before_answer(token)) {
                return Ok(token);
            }
            if let Some(guide) = &mut self.guide {
                let before = guide.bytes(phases.tokens());
                if !fits(guide, &before)? {
                    // The beginning of a thought's marker, and of nothing else.
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

    /// A token by the rules, by the constraint too where `masked`, and none of `without`.
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

    /// Takes the token that was chosen, after `phases` has.
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
            // There was no thought: all tokens are of the answer.
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

    /// True if nothing can follow.
    pub fn must_end(&mut self) -> bool {
        if let Some(forced) = &self.rules.forced {
            return self.taken >= forced.len();
        }
        self.begun && self.guide.as_mut().is_some_and(Guide::must_end)
    }
}

/// Tells a guide the beginning of an answer. White space before it is no part of it.
fn fits(guide: &mut Guide, bytes: &[u8]) -> Result<bool, EngineError> {
    let bytes = bytes.trim_ascii_start();
    Ok(bytes.is_empty() || guide.push_bytes(bytes)?)
}

/// Makes tokens impossible that are less likely than `least` times the likeliest one. Probabilities are a softmax of logits over the
/// temperature, so their ratio is a difference of logits. In place (vocab).
fn keep_likely(logits: &mut [f32], least: f64, temperature: f64) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let bound = f64::from(max) + temperature * least.ln();
    for logit in logits {
        if f64::from(*logit) < bound {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// Makes tokens impossible that are less likely than the k-th likeliest one. In place (vocab).
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
