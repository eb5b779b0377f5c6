//! The same tokens read several times at once after what a cache holds, each time with other paths blocked, and none of it kept.
//!
//! Called by the measure of causes: of a question and its answer after a long history, a reading takes what its own few rows take,
//! and as many of them as fill a chunk go through the weights together.

use candle_core::Tensor;

use super::{Engine, EngineError};
use crate::attention::LayerHoles;
use crate::model::{Cache, Phase};
use crate::timing;

/// Positions whose logits are handed on at once.
pub const LOGITS_AT_ONCE: usize = 32;

/// Takes the logits of a reading: which one, the first of their positions among those asked for, f32 (n, vocab).
type TakeLogits<'a> = &'a mut dyn FnMut(usize, usize, Tensor);

impl Engine {
    /// Reads `tokens` after those in the cache once for each of `holes`, and hands the logits of their last `keep` positions to `take`,
    /// reading by reading, at most [`LOGITS_AT_ONCE`] positions at a time. The cache stays as it is; it must have room for the
    /// tokens.
    ///
    /// # Errors
    /// The forward pass failed, or its output is not finite.
    pub(super) fn read_variants(
        &self,
        cache: &mut Cache,
        (tokens, keep): (&[u32], usize),
        holes: &[LayerHoles],
        take: TakeLogits<'_>,
    ) -> Result<(), EngineError> {
        let l = tokens.len();
        if l == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        let keep = keep.clamp(1, l);
        let _span = timing::prefill(l * holes.len());
        let hidden = self.decoder.forward_variants(tokens, cache, holes)?;
        for nth in 0..holes.len() {
            for at in (0..keep).step_by(LOGITS_AT_ONCE) {
                let rows = LOGITS_AT_ONCE.min(keep - at);
                let rows = hidden.narrow(0, (nth + 1) * l - keep + at, rows)?;
                let logits = self.decoder.logits(&rows, Phase::Prefill)?;
                self.check_finite(&logits, cache.len() + l - keep + at + rows.dim(0)? - 1)?;
                take(nth, at, logits);
            }
        }
        Ok(())
    }

    /// The number of readings of `l` tokens in one forward pass: as many as a chunk of a prefill holds.
    pub fn variants_together(&self, l: usize) -> usize {
        (self.chunk / l.max(1)).max(1)
    }
}
