//! What a decoder is made of, as numbers: the meeting point of configs and layers.

use std::sync::Arc;

/// A decoder-only transformer.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderSpec {
    /// The architecture's name in the table ([`super::arch`]).
    pub architecture: &'static str,
    /// Rows of the embedding and of the output head.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Epsilon of the root-mean-square norms.
    pub norm_eps: f64,
    /// Whether the output head is the embedding.
    pub tied: bool,
    /// Positions that the model was made for.
    pub max_positions: usize,
    /// From the first to the last.
    pub layers: Vec<LayerSpec>,
}

/// More layers than any model has: a config that asks for more is damaged, and is refused before they are listed.
pub const MAX_LAYERS: usize = 4096;

/// One decoder layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerSpec {
    /// Its attention.
    pub attention: AttentionSpec,
    /// Its feed-forward part.
    pub mlp: MlpSpec,
}

/// Softmax attention with grouped key/value heads.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// What scores are multiplied by.
    pub scale: f32,
    /// Sliding window in tokens, if any.
    pub window: Option<usize>,
    /// Whether the four projections have biases.
    pub bias: bool,
    /// Rotary position embedding.
    pub rope: RopeSpec,
}

/// Gated feed-forward: down(silu(gate(x)) * up(x)).
#[derive(Debug, Clone, PartialEq)]
pub struct MlpSpec {
    /// Width of the gate.
    pub intermediate: usize,
    /// Whether the three projections have biases.
    pub bias: bool,
}

/// Rotary position embedding in the half-rotation layout (dimension i turns with i + dims / 2).
#[derive(Debug, Clone, PartialEq)]
pub struct RopeSpec {
    /// Base of the frequencies.
    pub theta: f64,
    /// Dimensions that turn.
    pub dims: usize,
    /// How frequencies are changed for longer contexts.
    pub scaling: RopeScaling,
}

/// How rotary frequencies are changed for longer contexts.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Llama 3.1's: low frequencies divided by `factor`, high ones kept, a linear blend between
    /// (transformers, `_compute_llama3_parameters`).
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Wavelengths longer than `original / low` are low.
        low: f64,
        /// Wavelengths shorter than `original / high` are high.
        high: f64,
        /// The context length before scaling.
        original: f64,
    },
    /// A divisor for every frequency, as GGUF files store the outcome of a scaling (`rope_freqs.weight`).
    Divisors(Arc<[f32]>),
}

impl RopeSpec {
    /// The `dims / 2` angular frequencies, radians a position.
    pub fn frequencies(&self) -> Vec<f32> {
        let plain = (0..self.dims / 2).map(|i| self.theta.powf(-2.0 * i as f64 / self.dims as f64));
        match &self.scaling {
            RopeScaling::None => plain.map(|f| f as f32).collect(),
            RopeScaling::Divisors(divisors) => {
                plain.zip(divisors.iter()).map(|(f, &by)| (f / f64::from(by)) as f32).collect()
            }
            &RopeScaling::Llama3 { factor, low, high, original } => plain
                .map(|f| {
                    let wavelength = std::f64::consts::TAU / f;
                    let scaled = if wavelength > original / low {
                        f / factor
                    } else if wavelength < original / high {
                        f
                    } else {
                        let smooth = (original / wavelength - low) / (high - low);
                        (1.0 - smooth) * f / factor + smooth * f
                    };
                    scaled as f32
                })
                .collect(),
        }
    }
}

impl DecoderSpec {
    /// Parameters of the checkpoint, the shared embedding counted once.
    pub fn parameters(&self) -> usize {
        let layers: usize = self
            .layers
            .iter()
            .map(|LayerSpec { attention: a, mlp }| {
                let (q, kv) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
                let biases = if a.bias { q + 2 * kv + self.hidden } else { 0 }
                    + if mlp.bias { 2 * mlp.intermediate + self.hidden } else { 0 };
                2 * self.hidden * (q + kv) + 3 * self.hidden * mlp.intermediate + 2 * self.hidden + biases
            })
            .sum();
        let heads = if self.tied { 1 } else { 2 };
        heads * self.vocab * self.hidden + self.hidden + layers
    }
}

/// A linear-attention layer: causal convolution, gated delta rule, gated norm (transformers, `Qwen3_5GatedDeltaNet`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeltaNetSpec {
    /// Heads of queries and keys; divides `value_heads`, and each serves `value_heads / key_heads` consecutive value heads.
    pub key_heads: usize,
    /// Heads of values, decays and outputs.
    pub value_heads: usize,
    /// Width of a query or key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Taps of the causal convolution.
    pub conv: usize,
}

impl DeltaNetSpec {
    /// Width of all queries, or of all keys.
    pub fn keys(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Width of all values.
    pub fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution: queries, keys, values.
    pub fn channels(&self) -> usize {
        2 * self.keys() + self.values()
    }
}
