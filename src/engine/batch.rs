//! Batched decoding of branches of one sequence: each step reads every weight, and every key of the shared prefix, once for all
//! branches.
//!
//! Called by the runner's local subject for the probes of a case. What each branch generates is what [`Engine::decode`]
//! would have generated in its place.

use candle_core::Tensor;

use super::phases::{Phases, Thinker};
use super::sampling::Sampling;
use super::{Engine, EngineError, Generated, Sampler, sizes};
use crate::attention::Observer;
use crate::model::{Branch, Cache, Phase};
use crate::stats;

/// A branch to decode in a batch.
#[derive(Debug)]
pub struct BatchSequence {
    /// Its KV cache beyond the shared prefix.
    pub branch: Branch,
    /// The logits of its last token, f32 (vocab).
    pub logits: Tensor,
    /// How its tokens are chosen.
    pub sampling: Sampling,
    /// Where the model thinks before it answers.
    pub thinker: Option<Thinker>,
}

/// Told of every token that branch `usize` generates, and of its end, also by an error, as `None`; returns whether to go on.
pub type OnToken<'a> = &'a mut dyn FnMut(usize, Option<u32>) -> bool;

/// A branch that has not ended.
struct Live<'o> {
    /// Which of the branches it is.
    nth: usize,
    branch: Branch,
    logits: Tensor,
    sampler: Sampler,
    phases: Phases,
    observer: Option<&'o mut dyn Observer>,
}

impl Engine {
    /// Continues every branch of `trunk` until one of `stop` is chosen or its `max_new_tokens` are reached; those that have
    /// ended leave the batch. `observers` are none, or one a branch, which is shown the attention of every token that the branch
    /// reads. A branch whose output is not finite fails alone; what fails for all of them is the error of
    /// the whole.
    pub fn decode_batch(
        &self,
        trunk: &Cache,
        sequences: Vec<BatchSequence>,
        observers: Vec<&mut dyn Observer>,
        stop: &[u32],
        on_token: OnToken<'_>,
    ) -> Result<Vec<Result<Generated, EngineError>>, EngineError> {
        if !observers.is_empty() && observers.len() != sequences.len() {
            let (observers, sequences) = (observers.len(), sequences.len());
            return Err(candle_core::Error::msg(format!(
                "This is a bug: {observers} observers of {sequences} branches"
            ))
            .into());
        }
        let mut done = Vec::new();
        done.resize_with(sequences.len(), || None);
        let mut observers = observers.into_iter();
        let sequences = sequences.into_iter().enumerate();
        let mut live: Vec<Live> =
            sequences.map(|(nth, sequences)| Live::new(nth, sequences, observers.next())).collect();
        while !live.is_empty() {
            // 1. A token each, or the end.
            let mut go_on = true;
            let mut going = Vec::with_capacity(live.len());
            for mut one in live {
                let nth = one.nth;
                let turn_ended = match one.choose(stop, &mut |token| go_on &= on_token(nth, Some(token))) {
                    Ok(false) if one.phases.has_room() => {
                        going.push(one);
                        continue;
                    }
                    ended => ended,
                };
                go_on &= on_token(nth, None);
                done[nth] = Some(turn_ended.map(|turn_ended| one.phases.end(turn_ended)));
            }
            if !go_on {
                return Err(EngineError::Interrupted);
            }
            live = going;
            if live.is_empty() {
                break;
            }

            // 2. What those that go on make of theirs.
            let last: Vec<u32> = live.iter().filter_map(|one| one.phases.tokens().last().copied()).collect();
            let mut branches = Vec::new();
            let mut observers: Vec<&mut dyn Observer> = Vec::new();
            for Live { branch, observer, .. } in &mut live {
                branches.push(branch);
                if let Some(observer) = observer {
                    observers.push(&mut **observer);
                }
            }
            let logits = {
                let _span = stats::decode(last.len());
                let hidden = self.decoder.forward_branches(&last, trunk, branches, observers)?;
                self.decoder.logits(&hidden, Phase::Decode)?
            };
            let sizes = sizes(&logits)?;
            let mut going = Vec::with_capacity(live.len());
            for (row, (mut one, size)) in live.into_iter().zip(sizes).enumerate() {
                if size.is_finite() {
                    one.logits = logits.get(row)?;
                    going.push(one);
                } else {
                    on_token(one.nth, None);
                    done[one.nth] = Some(Err(self.not_finite(one.branch.tokens() - 1, size)));
                }
            }
            live = going;
        }
        Ok(done.into_iter().flatten().collect())
    }
}

impl<'o> Live<'o> {
    fn new(nth: usize, sequences: BatchSequence, observer: Option<&'o mut dyn Observer>) -> Self {
        let BatchSequence { branch, logits, sampling, thinker } = sequences;
        let (sampler, phases) = (Sampler::new(&sampling), Phases::new(&sampling, thinker));
        Live { nth, branch, logits, sampler, phases, observer }
    }

    /// Chooses the next token, where there is room for one; returns whether it ended the turn.
    fn choose(&mut self, stop: &[u32], on_token: &mut dyn FnMut(u32)) -> Result<bool, EngineError> {
        if self.phases.has_room() {
            let token = self.sampler.sample(&self.logits)?;
            if stop.contains(&token) {
                return Ok(true);
            }
            if let (Some(thought), Some(observer)) = (self.phases.push(token), &mut self.observer) {
                observer.skip_generated(thought);
            }
            on_token(token);
        }
        Ok(false)
    }
}
