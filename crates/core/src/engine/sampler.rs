//! Choosing tokens.

use candle_core::{Result, Tensor};
use candle_transformers::generation::{LogitsProcessor, Sampling as Strategy};

use super::sampling::Sampling;
use crate::timing;
use crate::transfer;

/// Below this temperature the likeliest token is all that is left, and logits divided by it may be infinite.
const COLDEST: f64 = 1e-7;

/// A seeded sampler: greedy at temperature 0, else temperature with an optional nucleus.
pub struct Sampler {
    processor: LogitsProcessor,
    temperature: f64,
}

impl Sampler {
    /// A sampler with the settings given; the same seed and logits give the same tokens.
    pub fn new(sampling: &Sampling) -> Self {
        let strategy = match (sampling.temperature, sampling.top_p) {
            (t, _) if t < COLDEST => Strategy::ArgMax,
            // Less than the least f32 would leave no token, not even the likeliest.
            (temperature, p) if p < 1.0 => Strategy::TopP { p: p.max(f32::MIN_POSITIVE.into()), temperature },
            (temperature, _) => Strategy::All { temperature },
        };
        let processor = LogitsProcessor::from_sampling(sampling.seed, strategy);
        Sampler { processor, temperature: sampling.temperature }
    }

    /// What logits are divided by; 0 is greedy.
    pub(super) fn temperature(&self) -> f64 {
        self.temperature
    }

    /// The next token for logits f32 (vocab).
    pub fn sample(&mut self, logits: &Tensor) -> Result<u32> {
        let _span = timing::sampling();
        let _layouts = transfer::keep_layouts(logits.device());
        self.processor.sample(logits)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn however_narrow_the_choice_the_likeliest_token_is_left() {
        let logits = [0.5f32, 3.0, -2.0, 2.9];
        let tiny = [0.0, 5e-324, 1e-300, 1e-40, 1e-8];
        let settings = tiny.map(|t| (t, 0.9)).into_iter().chain(tiny[1..].iter().map(|&p| (1.0, p)));
        for (temperature, top_p) in settings {
            let sampling = Sampling { temperature, top_p, seed: 7, max_new_tokens: 1 };
            let chosen = Tensor::new(&logits, &Device::Cpu)
                .and_then(|logits| Sampler::new(&sampling).sample(&logits))
                .map_err(|error| error.to_string());
            assert_eq!(chosen, Ok(1), "temperature {temperature}, top_p {top_p}");
        }
    }
}
