//! Log-probabilities of given continuations.

use candle_core::{D, Tensor};

use super::{Engine, EngineError};
use crate::attention::{LayerHoles, NoObserver};
use crate::model::{Cache, Pass};
use crate::transfer;

impl Engine {
    /// Natural-log probability of each of `texts` after the cached prompt, whose last logits are `last` f32 (vocab): the sum over its
    /// tokens; `None` if a token has no logit. Knockouts of the prompt apply. The cache is restored.
    pub(super) fn score(
        &self,
        cache: &mut Cache,
        (last, knockouts): (&Tensor, &LayerHoles),
        texts: &[Vec<u32>],
    ) -> Result<Vec<Option<f64>>, EngineError> {
        let mark = cache.mark()?;
        let mut scores = Vec::with_capacity(texts.len());
        for tokens in texts {
            let mut rows = vec![last.unsqueeze(0)?];
            if let Some((_, read)) = tokens.split_last()
                && !read.is_empty()
            {
                let mut nothing = NoObserver;
                let pass = Pass::from(&mut nothing).hiding(knockouts);
                rows.push(self.prefill(cache, read, read.len(), pass, &mut |_| true)?);
                cache.roll_back(&mark)?;
            }
            // (tokens, vocab)
            let log_p = candle_nn::ops::log_softmax(&Tensor::cat(&rows, 0)?, D::Minus1)?;
            let vocabulary = log_p.dim(D::Minus1)?;
            let log_p = transfer::fetch(&log_p)?;
            let of_token = |(row, &token): (usize, &u32)| {
                let row = log_p.get(row * vocabulary..(row + 1) * vocabulary)?;
                row.get(token as usize).map(|&log_p| f64::from(log_p))
            };
            scores.push(tokens.iter().enumerate().map(of_token).sum::<Option<f64>>());
        }
        Ok(scores)
    }
}
