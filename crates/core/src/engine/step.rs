//! One decode step of many branches: every weight is read once for all of them, and every key of a shared prefix once for those that
//! share it.

use candle_core::Tensor;

use super::{Engine, EngineError, sizes};
use crate::model::{Group, Phase};
use crate::timing;

impl Engine {
    /// Reads the next token of every branch, group by group ([`crate::model::Decoder::forward_groups`]), and returns the logits f32
    /// (vocab) after each, or that they are not finite. The bits are those of a sequence of its own.
    ///
    /// # Errors
    /// The forward pass failed: none of the branches can go on.
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
