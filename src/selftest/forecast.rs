//! Seconds that a run should take on a card that is not here: what [`super::arithmetic`] counts, by the card's published rates.
//!
//! An estimate, never a measurement. It assumes the parts of the peaks of [`super::cards::REACHED`] and [`LAUNCH`] seconds a kernel,
//! and leaves out norms, activations, gates, tokenising, files and the loading of the model. Called by `model plan --card` and
//! `run --estimate --card`.

use std::iter::Sum;
use std::ops::{Add, Mul};

use super::arithmetic::{self, Kernel, LayerWork, Recording, Work};
use super::cards::Peaks;
use palimpsest_core::model::DecoderSpec;

/// Seconds of a kernel launch that nothing hides.
pub const LAUNCH: f64 = 5e-6;

/// One history, and what is asked about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaseShape {
    /// Tokens that all prompts begin with.
    pub shared: usize,
    /// Tokens of each prompt beyond them.
    pub own: Vec<usize>,
    /// Tokens of each answer.
    pub answer: usize,
    /// Rows whose attention is recorded, and the spans that it is summed into; no rows where nothing is recorded.
    pub recording: Recording,
}

/// Expected seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Expected {
    /// Of reading prompts.
    pub prefill: f64,
    /// Of recording attention.
    pub recording: f64,
    /// Of generating answers.
    pub decoding: f64,
}

impl Expected {
    /// All of them.
    pub fn total(&self) -> f64 {
        self.prefill + self.recording + self.decoding
    }
}

impl Add for Expected {
    type Output = Expected;

    fn add(self, other: Expected) -> Expected {
        Expected {
            prefill: self.prefill + other.prefill,
            recording: self.recording + other.recording,
            decoding: self.decoding + other.decoding,
        }
    }
}

impl Mul<f64> for Expected {
    type Output = Expected;

    fn mul(self, times: f64) -> Expected {
        let Expected { prefill, recording, decoding } = self;
        Expected { prefill: prefill * times, recording: recording * times, decoding: decoding * times }
    }
}

impl Sum for Expected {
    fn sum<I: Iterator<Item = Expected>>(all: I) -> Expected {
        all.fold(Expected::default(), Add::add)
    }
}

/// A decoder on a card.
#[derive(Debug, Clone, Copy)]
pub struct Forecast<'a> {
    /// The decoder.
    pub spec: &'a DecoderSpec,
    /// The card's rates.
    pub peaks: Peaks,
    /// Bytes of a number: 2 in half precision, 4 in f32.
    pub size: usize,
    /// How attention is computed.
    pub kernel: Kernel,
    /// Most answers that are decoded together.
    pub batch: usize,
}

impl Forecast<'_> {
    fn work(&self, of: impl Fn(&LayerWork) -> Work) -> Work {
        LayerWork::all(self.spec, self.size).map(|layer| of(&layer)).sum()
    }

    fn seconds(&self, work: Work) -> f64 {
        self.peaks.seconds(&work, self.size < 4)
    }

    /// Operations and bytes of a prefill of `tokens` from the beginning.
    pub fn prefill_work(&self, tokens: usize) -> Work {
        self.work(|layer| layer.prefill(tokens, self.kernel))
    }

    /// Seconds of reading `tokens` after `before` others.
    pub fn prefill(&self, before: usize, tokens: usize) -> f64 {
        let upto = |end| self.seconds(self.prefill_work(end));
        // A few tokens are read no faster than the weights and the cache.
        (upto(before + tokens) - upto(before)).max(self.step(before, tokens, 1))
    }

    /// Seconds of recording rows that see `tokens`.
    pub fn recording(&self, tokens: usize, recording: Recording) -> f64 {
        self.seconds(self.work(|layer| layer.recorded(tokens, recording, self.kernel)))
    }

    /// Bytes that a step of `answers` reads, each after `own` tokens beyond the `shared` ones.
    pub fn step_work(&self, shared: usize, own: usize, answers: usize) -> Work {
        self.work(|layer| layer.step(shared, own, answers, self.kernel))
            + arithmetic::token_head(self.spec, self.size)
    }

    /// Seconds of that step: of reading, or of launching kernels where that takes longer.
    pub fn step(&self, shared: usize, own: usize, answers: usize) -> f64 {
        let launches: f64 = LayerWork::all(self.spec, self.size).map(|layer| layer.launches()).sum();
        self.seconds(self.step_work(shared, own, answers)).max(launches * LAUNCH)
    }

    /// Seconds of a case whose answers all have their full length.
    pub fn case(&self, case: &CaseShape) -> Expected {
        let longest = case.own.iter().copied().max().unwrap_or(0);
        let own: f64 = case.own.iter().map(|&own| self.prefill(case.shared, own)).sum();
        let steps = case.own.chunks(self.batch.max(1)).map(|answers| {
            // On the average half of the answer is there.
            case.answer as f64 * self.step(case.shared, longest + case.answer / 2, answers.len())
        });
        Expected {
            prefill: self.prefill(0, case.shared) + own,
            recording: self.recording(case.shared + longest, case.recording),
            decoding: steps.sum(),
        }
    }
}

/// `42 s`, `12 min`, `3.4 h`.
pub fn duration(seconds: f64) -> String {
    match seconds {
        0.0..10.0 => format!("{seconds:.1} s"),
        10.0..120.0 => format!("{seconds:.0} s"),
        120.0..7200.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selftest::cards::{A100_80GB, REACHED};
    use palimpsest_core::model::ModelDescription;

    /// Three layers of width 8 with 2 heads of 4 and 1 key/value head, a window of 3 in all but the last.
    const CONFIG: &str = r#"{"model_type": "gemma3_text", "hidden_size": 8, "intermediate_size": 16,
        "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 32,
        "max_position_embeddings": 64, "sliding_window": 3, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "rope_local_base_freq": 10000.0, "query_pre_attn_scalar": 4, "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "tie_word_embeddings": true}"#;

    #[test]
    fn operations_are_those_of_every_product_of_every_token_counted_one_by_one() {
        let description = ModelDescription::from_config_text(CONFIG.as_bytes(), "config").unwrap();
        let spec = &description.spec;
        let forecast = Forecast { spec, peaks: A100_80GB, size: 2, kernel: Kernel::Fused, batch: 3 };
        let (hidden, inner, heads, kv, width, tokens) = (8, 16, 2, 1, 4, 20usize);
        let (mut maps, mut pairs) = (0usize, 0usize);
        for window in [Some(3), Some(3), None] {
            for query in 0..tokens {
                // Rows and columns of q, k, v, o, gate, up, down; a multiplication and an addition each.
                let shapes = [
                    (hidden, heads * width),
                    (hidden, kv * width),
                    (hidden, kv * width),
                    (heads * width, hidden),
                    (hidden, inner),
                    (hidden, inner),
                    (inner, hidden),
                ];
                maps += shapes.map(|(rows, columns)| 2 * rows * columns).iter().sum::<usize>();
                let keys = (0..=query).filter(|key| window.is_none_or(|window| key + window > query)).count();
                // Scores and the sum of values.
                pairs += 2 * (2 * heads * width * keys);
            }
        }
        let found = forecast.prefill_work(tokens);
        let norms: f64 = spec.layers.iter().map(|layer| layer.parameters(hidden) as f64).sum::<f64>()
            - maps as f64 / (2.0 * tokens as f64);
        // Norms' weights count as products, and half a key more or less for every query.
        let slack = 2.0 * norms * tokens as f64 + (3 * 4 * heads * width * tokens) as f64 / 2.0;
        assert!((found.products - (maps + pairs) as f64).abs() <= slack, "{found:?}: {maps} {pairs}");
        assert!(norms < 250.0, "{norms}");
        assert_eq!((found.products_f32, found.bytes), (0.0, 0.0));
    }

    #[test]
    fn hours_are_operations_and_bytes_by_the_part_of_the_rates_that_is_assumed() {
        let llama = ModelDescription::released("llama-3.1-8b-instruct").unwrap().unwrap();
        let (peaks, kernel) = (A100_80GB, Kernel::Fused);
        let forecast = Forecast { spec: &llama.spec, peaks, size: 2, kernel, batch: 3 };
        let near =
            |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 0.01, "{found} {expected}");
        // 100,000 tokens: 2 x 6.98e9 weights a token, and 4 x 128 x 32 heads x half the square in 32 layers, at 156 TFLOP/s.
        let products = 2.0 * 6.98e9 * 1e5 + 4.0 * 128.0 * 32.0 * 32.0 * 5e9;
        near(forecast.prefill(0, 100_000), products / (312e12 * REACHED.half));
        // A step of three reads 7.5e9 weights with the head and 131,072 bytes for every key, at 1.53 TB/s.
        let bytes = 2.0 * (6.98e9 + 128_256.0 * 4096.0) + 131_072.0 * (100_000.0 + 3.0 * 612.0);
        near(forecast.step(100_000, 612, 3), bytes / (2.04e12 * REACHED.bandwidth));
        let recording = Recording { rows: 0, spans: 0 };
        let case = CaseShape { shared: 100_000, own: vec![100; 3], answer: 1024, recording };
        let expected = forecast.case(&case);
        near(expected.decoding, 1024.0 * bytes / (2.04e12 * REACHED.bandwidth));
        let alone = Forecast { batch: 1, ..forecast }.case(&case);
        assert!(alone.decoding > 2.5 * expected.decoding, "{alone:?} {expected:?}");
        assert!(expected.prefill > forecast.prefill(0, 100_000) && expected.recording == 0.0);
        // A hundred tokens more take at least the reading of the weights.
        assert!(forecast.prefill(1000, 1) >= 2.0 * 6.98e9 / 1.6e12);
    }

    #[test]
    fn launches_bound_a_model_that_is_read_faster_than_its_kernels_start() {
        let small = ModelDescription::released("smollm2-135m").unwrap().unwrap();
        let (peaks, kernel) = (A100_80GB, Kernel::Fused);
        let forecast = Forecast { spec: &small.spec, peaks, size: 2, kernel, batch: 1 };
        assert_eq!(forecast.step(100, 0, 1), 30.0 * 20.0 * LAUNCH);
    }

    #[test]
    fn durations_are_in_units_that_people_read() {
        let shown = [3.21, 59.6, 600.0, 36_000.0].map(duration);
        assert_eq!(shown, ["3.2 s", "60 s", "10 min", "10.0 h"]);
    }
}
