//! Choosing tokens.

use candle_core::{Result, Tensor};
use candle_transformers::generation::{LogitsProcessor, Sampling as Strategy};

use super::sampling::Sampling;
use crate::stats;
use crate::transfer;

/// A seeded sampler: greedy at temperature 0, else temperature with an optional nucleus.
pub struct Sampler(LogitsProcessor);

impl Sampler {
    /// A sampler with the settings given; the same seed and logits give the same tokens.
    pub fn new(sampling: &Sampling) -> Self {
        let strategy = match (sampling.temperature, sampling.top_p) {
            (t, _) if t <= 0.0 => Strategy::ArgMax,
            (temperature, p) if p < 1.0 => Strategy::TopP { p, temperature },
            (temperature, _) => Strategy::All { temperature },
        };
        Sampler(LogitsProcessor::from_sampling(sampling.seed, strategy))
    }

    /// The next token for logits f32 (vocab).
    pub fn sample(&mut self, logits: &Tensor) -> Result<u32> {
        let _span = stats::sampling();
        let _layouts = transfer::keep_layouts(logits.device());
        self.0.sample(logits)
    }
}
