//! Text embedding from the decoder: the mean of its final hidden states.

use super::{Engine, EngineError, Measurement, Progress};
use crate::transfer;
use candle_core::DType;

impl Engine {
    /// Mean over `tokens` of the final normed hidden states, f32 (hidden): the input of the output head. Uses a temporary cache.
    pub fn mean_state(&self, tokens: &[u32], progress: Progress<'_>) -> Result<Vec<f32>, EngineError> {
        if tokens.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        let mut cache = self.decoder.cache(tokens.len())?;
        let mut nothing = Measurement::nothing(tokens.len());
        let states =
            self.prefill_chunks(&mut cache, tokens, tokens.len(), (&mut nothing).into(), progress)?;
        let mut sum = vec![0.0; self.decoder.spec().hidden];
        let mut position = 0;
        for states in states {
            // (l, hidden)
            let numbers: Vec<f32> = transfer::fetch(&states.to_dtype(DType::F32)?)?;
            for state in numbers.chunks_exact(sum.len().max(1)) {
                if let Some(&value) = state.iter().find(|value| !value.is_finite()) {
                    return Err(self.not_finite(position, value));
                }
                sum.iter_mut().zip(state).for_each(|(sum, &x)| *sum += f64::from(x));
                position += 1;
            }
        }
        Ok(sum.into_iter().map(|x| (x / tokens.len() as f64) as f32).collect())
    }
}
