//! One decode step of a batch of branches: weights are read once, and keys of a shared prefix once for all branches that share it.

use candle_core::Tensor;

use super::{Engine, EngineError, sizes};
use crate::model::{Group, Phase};
use crate::timing;

impl Engine {
    /// Decodes one token of every branch, group by group ([`crate::model::Decoder::forward_groups`]). Returns logits f32 (vocab) each, or
    /// an error if they are not finite. Bit-equal to decoding each sequence alone. If the forward pass fails, no branch can continue.
    pub fn step<'a>(
        &self,
        tokens: &[u32],
        groups: Vec<Group<'a>>,
    ) -> Result<Vec<Result<Tensor, EngineError>>, EngineError> {
        let _span = timing::decode(tokens.len());
        let positions: Vec<usize> =
            groups.iter().flat_map(|(_, rows)| rows).map(|(branch, _)| branch.tokens()).collect();
        let hidden = self.decoder.forward_groups(tokens, groups)?;
        let logits = self.decoder.logits(&hidden, Phase::Decode)?;
        let rows = sizes(&logits)?.into_iter().zip(positions).enumerate();
        let rows = rows.map(|(row, (size, position))| match size.is_finite() {
            true => Ok(logits.get(row)?),
            false => Err(self.not_finite(position, size)),
        });
        Ok(rows.collect())
    }
}
