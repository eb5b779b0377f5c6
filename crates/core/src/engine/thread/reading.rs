//! A prompt that is being read into a trunk, chunk by chunk, so that others are served in between.
//!
//! What is read is the same to the last bit on the CPU in f32 however it is cut ([`Engine::border`]): a prompt may begin wherever its
//! trunk leaves it.

use std::time::Instant;

use candle_core::Tensor;

use super::request::{Choice, Event, Request, RequestError};
use super::shelf::Trunk;
use crate::engine::{Engine, EngineError, Likelihood, Measurement};
use crate::transfer;

/// Positions whose logits are asked for at once where all of a prompt's are: they take more memory than a model.
const SCORED: usize = 256;

/// Where a prompt has no better place to be left, a mark is set at a multiple of this.
const MARKED: usize = 256;

/// Fewer tokens than this in common are no reason for a mark.
const WORTH_A_MARK: usize = 32;

/// A prompt under way.
pub(super) struct Reading {
    /// Those who wait for it; at least one.
    pub choices: Vec<Choice>,
    /// What it is read into.
    pub trunk: u64,
    /// Tokens that were there already.
    pub reused: usize,
    /// Since when it is read.
    pub begun: Instant,
    measurement: Measurement,
    /// Where later prompts may begin, of models that cannot go back anywhere: ascending.
    marks: Vec<usize>,
    likelihoods: Vec<Likelihood>,
}

/// A prompt that was read.
pub(super) struct WholePrompt {
    /// f32 (keep, vocab)
    pub logits: Tensor,
    /// Of its tokens from the second on, where they were asked for.
    pub likelihoods: Vec<Likelihood>,
    pub measurement: Measurement,
}

/// The first position of a prompt that must be read: one whose logits or whose row is wanted, or the last one but one.
pub(super) fn first_to_read(request: &Request, engine: &Engine) -> usize {
    let Request { tokens, keep, rows, prompt_likeliest, .. } = request;
    let n = tokens.len();
    let measured = !rows.spans.is_empty() || rows.answer.any();
    // The keys of linear-attention layers are in no cache.
    let linear = || engine.decoder().spec().layers.iter().any(|layer| layer.delta_net().is_some());
    if prompt_likeliest.is_some() || (measured && linear()) {
        return 0;
    }
    // A token by itself would be summed in the order of decoding.
    let first = n - (*keep).max(2).min(n);
    rows.spans.iter().map(|row| row.start).fold(first, usize::min)
}

impl Reading {
    /// Of a prompt that has `common` tokens in common with some other one and `reused` with its trunk.
    ///
    /// # Errors
    /// Those of its spans.
    pub fn new(
        choices: Vec<Choice>,
        engine: &Engine,
        trunk: &Trunk,
        common: usize,
    ) -> Result<Self, (Vec<Choice>, RequestError)> {
        let Some(Choice { request, .. }) = choices.first() else {
            return Err((choices, EngineError::EmptyPrompt.into()));
        };
        let n = request.tokens.len();
        let last = engine.border(n - request.keep.max(2).min(n));
        let parting = match common.min(last) {
            common if common >= WORTH_A_MARK => engine.border(common),
            _ => last - last % MARKED,
        };
        let reused = trunk.cache.len();
        let marks = match trunk.cache.sees_all() {
            true => Vec::new(),
            // Two tokens at least lie between any two of them: none is read by itself.
            false => [parting, last].into_iter().filter(|mark| *mark > reused + 1).collect(),
        };
        let measurement = Measurement::new(request.rows.clone(), request.keys.clone(), n);
        let measurement = match measurement {
            Ok(measurement) => match request.top_keys {
                Some(wanted) => measurement.with_top_keys(wanted),
                None => measurement,
            },
            Err(error) => return Err((choices, error.into())),
        };
        let (begun, likelihoods) = (Instant::now(), Vec::new());
        Ok(Reading { choices, trunk: trunk.id, reused, begun, measurement, marks, likelihoods })
    }

    /// The prompt.
    pub fn tokens(&self) -> &[u32] {
        self.choices.first().map(|choice| choice.request.tokens.as_slice()).unwrap_or_default()
    }

    /// Tokens that are set aside for what is generated first.
    pub fn room(&self) -> usize {
        self.choices.iter().map(|choice| choice.request.room()).max().unwrap_or(0)
    }

    /// Tells everybody how far it is, by an event of so many tokens. Those who want no more leave.
    ///
    /// # Errors
    /// [`EngineError::Interrupted`] where nobody is left.
    pub fn tell(&mut self, event: impl Fn(usize) -> Event, tokens: usize) -> Result<(), RequestError> {
        for mut choice in std::mem::take(&mut self.choices) {
            match choice.hear_of_prompt(event(tokens)) {
                Ok(()) => self.choices.push(choice),
                Err(error) => choice.end(Err(error)),
            }
        }
        match self.choices.is_empty() {
            true => Err(EngineError::Interrupted.into()),
            false => Ok(()),
        }
    }

    /// Reads a chunk of at most `chunk` tokens into the trunk. Returns how many it was and, at the end, the logits of what is to
    /// be kept.
    ///
    /// # Errors
    /// Those of the engine: then nobody can go on from the trunk.
    pub fn step(
        &mut self,
        engine: &Engine,
        trunk: &mut Trunk,
        chunk: usize,
    ) -> Result<(usize, Option<Tensor>), EngineError> {
        let Some(Choice { request, .. }) = self.choices.first() else { return Err(EngineError::EmptyPrompt) };
        let Request { tokens, keep, prompt_likeliest, .. } = request;
        let (n, at) = (tokens.len(), trunk.cache.len());
        let kept = n - (*keep).clamp(1, n);
        let mark = self.marks.iter().copied().find(|mark| *mark > at);
        let chunk = if prompt_likeliest.is_some() { chunk.min(SCORED) } else { chunk };
        let end = match engine.next_border(at, mark.unwrap_or(n), chunk) {
            // What is to be kept comes in one piece.
            end if end > kept && prompt_likeliest.is_none() => n,
            end => end,
        };
        let part = tokens.get(at..end).unwrap_or_default();
        let mut go_on = |_: usize| true;
        let (cache, measurement) = (&mut trunk.cache, &mut self.measurement);
        let mut logits = None;
        match prompt_likeliest {
            Some(most) => {
                let of_part = measurement.prefill(engine, cache, part, part.len(), &mut go_on)?;
                let (rows, vocab) = of_part.dims2()?;
                for row in transfer::fetch(&of_part)?.chunks_exact(vocab.max(1)) {
                    let Some(&next) = tokens.get(self.likelihoods.len() + 1) else { break };
                    self.likelihoods.push(Likelihood::of(next, row, *most));
                }
                if end == n {
                    logits = Some(of_part.narrow(0, rows - 1, 1)?);
                }
            }
            None if end == n => {
                logits = Some(measurement.prefill(engine, cache, part, *keep, &mut go_on)?);
            }
            None => engine.fill_cache(cache, part, measurement, &mut go_on)?,
        }
        trunk.tokens.extend_from_slice(part);
        if mark == Some(end) {
            trunk.cache.mark()?;
        }
        Ok((end - at, logits))
    }

    /// The prompt as it was read, and those who wait for it.
    pub fn finish(self, logits: Tensor) -> (WholePrompt, Vec<Choice>) {
        let Reading { choices, measurement, likelihoods, .. } = self;
        (WholePrompt { logits, likelihoods, measurement }, choices)
    }
}
