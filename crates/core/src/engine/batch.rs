//! Batched decoding: each step reads every weight once for all branches, and every key of a shared prefix once for the branches
//! that share it.
//!
//! Called by the runner's local subject for the probes of a case, which are branches of one sequence, and step by step by the
//! thread that owns a model, whose branches are of several. What each branch generates is what [`Engine::decode`] would have
//! generated in its place.

use candle_core::Tensor;

use super::phases::Thinker;
use super::sampling::Sampling;
use super::stop_strings::StopWatch;
use super::{Decoding, Engine, EngineError, Generated, sizes};
use crate::attention::{NoObserver, Observer};
use crate::model::{Branch, Cache, Group, Phase};
use crate::timing;

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
    /// Where strings end the answer.
    pub watch: Option<StopWatch>,
}

/// Told of every token that branch `usize` generates, and of its end, also by an error, as `None`; returns whether to go on.
pub type OnToken<'a> = &'a mut dyn FnMut(usize, Option<u32>) -> bool;

/// A branch that has not ended.
struct Live<'o> {
    /// Which of the branches it is.
    nth: usize,
    branch: Branch,
    decoding: Decoding,
    observer: Option<&'o mut dyn Observer>,
}

impl Engine {
    /// Continues every branch of `trunk` until one of `stop` is chosen or its `max_new_tokens` are reached; those that have
    /// ended leave the batch. `observers` are none, or one a branch, which is shown the attention of every token that the branch
    /// reads. A branch whose output is not finite fails alone, and of a batch that `on_token` ends those that have not ended by themselves
    /// are [`EngineError::Interrupted`]; what fails for all of them is the error of the whole.
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
                let chosen = match &mut one.observer {
                    Some(observer) => one.decoding.choose(stop, *observer),
                    None => one.decoding.choose(stop, &mut NoObserver),
                };
                if let Ok(Some(token)) = chosen {
                    go_on &= on_token(nth, Some(token));
                    if one.decoding.unread().is_some() {
                        going.push(one);
                        continue;
                    }
                }
                go_on &= on_token(nth, None);
                done[nth] = Some(chosen.map(|_| one.decoding.finish()));
            }
            if !go_on {
                going.iter().for_each(|one| done[one.nth] = Some(Err(EngineError::Interrupted)));
                break;
            }
            live = going;
            if live.is_empty() {
                break;
            }

            // 2. What those that go on make of theirs.
            let last: Vec<u32> = live.iter().filter_map(|one| one.decoding.unread()).collect();
            let mut branches = Vec::new();
            let mut observers: Vec<&mut dyn Observer> = Vec::new();
            for Live { branch, observer, .. } in &mut live {
                branches.push(branch);
                if let Some(observer) = observer {
                    observers.push(&mut **observer);
                }
            }
            let read = self.step_groups(&last, vec![(trunk, branches)], observers)?;
            let mut going = Vec::with_capacity(live.len());
            for (mut one, logits) in live.into_iter().zip(read) {
                match logits {
                    Ok(logits) => {
                        one.decoding.take(logits);
                        going.push(one);
                    }
                    Err(error) => {
                        on_token(one.nth, None);
                        done[one.nth] = Some(Err(error));
                    }
                }
            }
            live = going;
        }
        Ok(done.into_iter().flatten().collect())
    }

    /// Reads the next token of every branch, group by group ([`crate::model::Decoder::forward_groups`]), and returns the logits f32
    /// (vocab) after each, or that they are not finite. `observers` are none, or one a branch.
    ///
    /// # Errors
    /// What fails for all of them: none of the branches can go on.
    pub(crate) fn step_groups<'a>(
        &self,
        tokens: &[u32],
        groups: Vec<Group<'a>>,
        observers: Vec<&'a mut dyn Observer>,
    ) -> Result<Vec<Result<Tensor, EngineError>>, EngineError> {
        let _span = timing::decode(tokens.len());
        let positions: Vec<usize> =
            groups.iter().flat_map(|(_, branches)| branches).map(|branch| branch.tokens()).collect();
        let hidden = self.decoder.forward_groups(tokens, groups, observers)?;
        let logits = self.decoder.logits(&hidden, Phase::Decode)?;
        let rows =
            sizes(&logits)?.into_iter().zip(positions).enumerate().map(|(row, (size, position))| match size
                .is_finite()
            {
                true => Ok(logits.get(row)?),
                false => Err(self.not_finite(position, size)),
            });
        Ok(rows.collect())
    }
}

impl<'o> Live<'o> {
    fn new(nth: usize, sequence: BatchSequence, observer: Option<&'o mut dyn Observer>) -> Self {
        let BatchSequence { branch, logits, sampling, thinker, watch } = sequence;
        let decoding = Decoding::new(&logits, &sampling, thinker).watched(watch);
        Live { nth, branch, decoding, observer }
    }
}
