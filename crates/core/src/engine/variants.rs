//! Batched readings of the same tokens after one cached history, each with different knockouts. Used to measure causal effects: a short
//! question and answer after a long history. As many readings as fill a chunk share a pass.

use candle_core::Tensor;

use super::{Engine, EngineError};
use crate::attention::LayerHoles;
use crate::model::{Cache, Phase};
use crate::timing;

/// Maximum positions of logits per callback.
pub const LOGITS_AT_ONCE: usize = 32;

/// Logits callback: reading index, first position among the requested ones, f32 (n, vocab).
type TakeLogits<'a> = &'a mut dyn FnMut(usize, usize, Tensor);

impl Engine {
    /// Reads `tokens` after the cache once per entry of `holes` and passes the logits of the last `keep` positions to `take`, at most
    /// [`LOGITS_AT_ONCE`] at a time. The cache is unchanged and needs room for the tokens. Fails if logits are not finite.
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

    /// Readings of `l` tokens per forward pass: as many as fill a prefill chunk.
    pub fn variants_together(&self, l: usize) -> usize {
        (self.chunk / l.max(1)).max(1)
    }
}
