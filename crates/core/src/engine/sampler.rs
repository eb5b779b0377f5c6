//! Token sampling.

use candle_core::{D, DType, Error, Result, Tensor};
use candle_nn::ops::softmax_last_dim;
use rand::SeedableRng;
use rand::distr::Distribution;
use rand::distr::weighted::WeightedIndex;
use rand::rngs::ChaCha12Rng;

use super::sampling::Sampling;
use crate::timing;
use crate::transfer;

/// Below this temperature sampling is greedy; divided logits could overflow.
const COLDEST: f64 = 1e-7;

/// Greedy at temperature 0, else temperature and top-p. Draws the same tokens as candle-transformers' `LogitsProcessor`.
pub struct Sampler {
    rng: ChaCha12Rng,
    temperature: f64,
    /// Top-p; `None` keeps all tokens.
    nucleus: Option<f32>,
}

impl Sampler {
    /// The same seed and logits give the same tokens.
    pub fn new(sampling: &Sampling) -> Self {
        // A smaller value would remove every token.
        let nucleus = (sampling.top_p < 1.0).then(|| (sampling.top_p as f32).max(f32::MIN_POSITIVE));
        let rng = ChaCha12Rng::seed_from_u64(sampling.seed);
        Sampler { rng, temperature: sampling.temperature, nucleus }
    }

    pub(super) fn temperature(&self) -> f64 {
        self.temperature
    }

    /// Samples the next token from logits f32 (vocab).
    pub fn sample(&mut self, logits: &Tensor) -> Result<u32> {
        let _span = timing::sampling();
        let _layouts = transfer::keep_layouts(logits.device());
        let logits = logits.to_dtype(DType::F32)?;
        if self.temperature < COLDEST {
            return logits.argmax(D::Minus1)?.to_scalar();
        }
        let mut probabilities = transfer::fetch(&softmax_last_dim(&(logits / self.temperature)?)?)?;
        if let Some(nucleus) = self.nucleus {
            keep_nucleus(&mut probabilities, nucleus);
        }
        let drawn = WeightedIndex::new(&probabilities).map_err(Error::wrap)?.sample(&mut self.rng);
        Ok(drawn as u32)
    }
}

/// Zeroes all but the largest probabilities that sum to `nucleus`.
fn keep_nucleus(probabilities: &mut [f32], nucleus: f32) {
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_by(|&a, &b| probabilities[b].total_cmp(&probabilities[a]));
    let mut sum = 0.0;
    for token in order {
        if sum >= nucleus {
            probabilities[token] = 0.0;
        } else {
            sum += probabilities[token];
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use candle_transformers::generation::{LogitsProcessor, Sampling as Strategy};

    use super::*;

    #[test]
    fn tokens_are_those_that_candles_processor_draws() {
        let logits: Vec<f32> = (0..5000).map(|i: i32| ((i * 7919) % 257) as f32 / 16.0).collect();
        let logits = Tensor::new(logits, &Device::Cpu).unwrap();
        for (temperature, top_p) in
            [(0.0f64, 1.0f64), (0.3, 1.0), (1.0, 1.0), (0.7, 0.9), (1.5, 0.5), (1.0, 0.999), (0.8, 1e-50)]
        {
            for seed in [0, 1, 42, u64::MAX] {
                let strategy = match (temperature, top_p) {
                    (0.0, _) => Strategy::ArgMax,
                    (temperature, 1.0) => Strategy::All { temperature },
                    (temperature, p) => Strategy::TopP { p: p.max(f32::MIN_POSITIVE.into()), temperature },
                };
                let mut theirs = LogitsProcessor::from_sampling(seed, strategy);
                let mut ours = Sampler::new(&Sampling { temperature, top_p, seed, max_new_tokens: 1 });
                for _ in 0..50 {
                    let drawn = ours.sample(&logits).unwrap();
                    assert_eq!(drawn, theirs.sample(&logits).unwrap(), "{temperature} {top_p} {seed}");
                }
            }
        }
    }

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
