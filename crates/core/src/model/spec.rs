//! The description of a decoder as numbers: the meeting point of configs and layers.
//!
//! An architecture ([`super::arch`]) is a map from a config to these types; the loader and the layers know nothing else
//! about it.

use std::sync::Arc;

use candle_core::DType;

use crate::attention::delta::BLOCK;
use crate::attention::{AttentionShape, LayerKind};

/// A decoder-only transformer.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderSpec {
    /// The architecture's name in the table ([`super::arch`]).
    pub architecture: &'static str,
    /// Rows of the embedding and of the output head.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// The root-mean-square norms.
    pub norm: NormSpec,
    /// The factor of embeddings, if any (Gemma: the square root of `hidden`, rounded to the dtype).
    pub embedding_scale: Option<f64>,
    /// The output head is the embedding.
    pub tied: bool,
    /// Positions that the model was made for.
    pub max_positions: usize,
    /// From the first to the last.
    pub layers: Vec<LayerSpec>,
}

impl DecoderSpec {
    /// The kind of each layer, for knock-outs.
    pub fn layer_kinds(&self) -> Vec<LayerKind> {
        let kind = |layer: &LayerSpec| match &layer.mixer {
            MixerSpec::Attention(a) => LayerKind::Softmax { window: a.window, sinks: a.sinks },
            MixerSpec::DeltaNet(_) => LayerKind::Linear,
        };
        self.layers.iter().map(kind).collect()
    }
}

/// More layers than any model has: a config that asks for more is damaged, and is refused before they are listed.
pub const MAX_LAYERS: usize = 4096;

/// Root-mean-square norms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormSpec {
    /// Added to the mean square.
    pub eps: f64,
    /// The factor is 1 + weight rather than the weight (transformers, `Gemma3RMSNorm`, `Qwen3_5RMSNorm`).
    pub plus_one: bool,
}

/// One decoder layer: x += mixer(norm(x)); x += feed_forward(norm(x)).
#[derive(Debug, Clone, PartialEq)]
pub struct LayerSpec {
    /// The token mixer.
    pub mixer: MixerSpec,
    /// The feed-forward block.
    pub feed_forward: FeedForwardSpec,
    /// The outputs of both are normed too (transformers, `Gemma3DecoderLayer`).
    pub sandwich: bool,
}

/// The token mixer.
#[derive(Debug, Clone, PartialEq)]
pub enum MixerSpec {
    /// Softmax attention.
    Attention(AttentionSpec),
    /// A linear-attention layer with a gated delta rule.
    DeltaNet(DeltaNetSpec),
}

impl LayerSpec {
    /// The softmax attention of the layer, if it has one.
    pub fn attention(&self) -> Option<&AttentionSpec> {
        match &self.mixer {
            MixerSpec::Attention(attention) => Some(attention),
            MixerSpec::DeltaNet(_) => None,
        }
    }

    /// The delta net of the layer, if it has one.
    pub fn delta_net(&self) -> Option<&DeltaNetSpec> {
        match &self.mixer {
            MixerSpec::Attention(_) => None,
            MixerSpec::DeltaNet(delta_net) => Some(delta_net),
        }
    }
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
    /// The factor of the scores.
    pub scale: f32,
    /// Sliding window in tokens, if any.
    pub window: Option<usize>,
    /// Every head has a sink: a learned logit that joins the softmax and has no value.
    pub sinks: bool,
    /// The query projection brings a gate for the output of every head (transformers, `Qwen3_5Attention`).
    pub gated: bool,
    /// Norms of queries and keys before the rotation.
    pub qk_norm: QkNorm,
    /// Which projections have biases.
    pub bias: AttentionBias,
    /// Rotary position embedding.
    pub rope: RopeSpec,
}

impl AttentionSpec {
    /// The properties that decide which kernels compute it, in a dtype.
    pub fn shape(&self, dtype: DType) -> AttentionShape {
        let AttentionSpec { heads, kv_heads, head_dim, scale, window, sinks, .. } = *self;
        // No architecture of the table caps its scores.
        AttentionShape { dtype, heads, kv_heads, head_dim, scale, window, softcap: None, sinks }
    }
}

/// Norms of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    None,
    /// Of every head, with one weight for all (transformers, `Qwen3Attention`).
    PerHead,
    /// Of the whole projection before it is split into heads (transformers, `MiniMaxM2Attention`).
    Whole,
}

/// Which of the attention's projections have biases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionBias {
    /// None.
    None,
    /// Query, key and value.
    Qkv,
    /// Those and the output.
    All,
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

/// The feed-forward block.
#[derive(Debug, Clone, PartialEq)]
pub enum FeedForwardSpec {
    /// One gated block.
    Dense(MlpSpec),
    /// A few of many.
    Experts(ExpertsSpec),
}

/// Gated feed-forward: down(activation(gate(x)) * up(x)).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MlpSpec {
    /// Width of the gate.
    pub intermediate: usize,
    /// The three projections have biases.
    pub bias: bool,
    /// The activation.
    pub activation: Activation,
}

/// The activation of a gated feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// silu(gate) * up.
    Silu,
    /// gelu(gate) * up, in the tanh approximation.
    GeluTanh,
    /// min(gate, limit) * sigmoid(alpha * min(gate, limit)) * (clamp(up, -limit, limit) + 1) (transformers, `GptOssExperts`).
    Clamped {
        /// Slope of the sigmoid.
        alpha: f64,
        /// Bound of gate (above) and up (on both sides).
        limit: f64,
    },
}

/// A router and its experts.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertsSpec {
    /// Experts.
    pub experts: usize,
    /// Experts of a token.
    pub per_token: usize,
    /// Each of them.
    pub expert: MlpSpec,
    /// The choice of experts and their weights.
    pub routing: Routing,
    /// The router has a bias on its logits.
    pub router_bias: bool,
    /// One more that every token goes to, unweighed.
    pub shared: Option<MlpSpec>,
}

/// The choice of experts and their weights, all in f32.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Routing {
    /// Softmax over all experts, then the best; their weights divided by their sum or not
    /// (transformers, `Qwen3MoeTopKRouter`).
    SoftmaxTopK {
        /// The weights of the chosen sum to 1.
        normalise: bool,
    },
    /// The best logits, then softmax over those (transformers, `GptOssTopKRouter`).
    TopKSoftmax,
    /// Sigmoids; the best by sigmoid plus a correction bias, weighed by the sigmoid alone
    /// (transformers, `Glm4MoeTopkRouter`, `MiniMaxM2SparseMoeBlock`).
    Sigmoid {
        /// The weights of the chosen are divided by their sum plus this.
        normalise: Option<f64>,
        /// The last factor of the weights.
        scale: f64,
        /// (groups, groups kept): experts outside the groups whose two best corrected scores sum highest are left out.
        groups: Option<(usize, usize)>,
    },
}

/// Rotary position embedding in the half-rotation layout (dimension i turns with i + dims / 2).
#[derive(Debug, Clone, PartialEq)]
pub struct RopeSpec {
    /// Base of the frequencies.
    pub theta: f64,
    /// Dimensions that turn: the first ones of a head.
    pub dims: usize,
    /// The change of frequencies for longer contexts.
    pub scaling: RopeScaling,
}

/// The change of rotary frequencies for longer contexts.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All divided by a factor (transformers, `_compute_linear_scaling_rope_parameters`).
    Projection {
        /// The divisor.
        factor: f64,
    },
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
    /// YaRN: dimensions that turn often are kept, those that turn seldom are divided by `factor`, a linear blend over the
    /// dimensions between (transformers, `_compute_yarn_parameters`).
    Yarn(Yarn),
    /// A divisor for every frequency, as GGUF files store the outcome of a scaling (`rope_freqs.weight`).
    Divisors(Arc<[f32]>),
}

/// The numbers of YaRN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Yarn {
    /// Divisor of the frequencies that turn seldom.
    pub factor: f64,
    /// The context length before scaling.
    pub original: f64,
    /// Dimensions that turn more often than this within `original` are kept.
    pub beta_fast: f64,
    /// Those that turn less often than this are divided.
    pub beta_slow: f64,
    /// The borders between the two are rounded outwards to whole dimensions.
    pub truncate: bool,
    /// The factor of cosines and sines.
    pub attention_factor: f64,
}

impl Yarn {
    /// The attention factor where a config names none: 0.1 ln(factor) + 1.
    pub fn default_attention_factor(factor: f64) -> f64 {
        if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 }
    }
}

impl RopeSpec {
    /// The `dims / 2` angular frequencies, radians a position.
    pub fn frequencies(&self) -> Vec<f32> {
        let plain = (0..self.dims / 2).map(|i| self.theta.powf(-2.0 * i as f64 / self.dims as f64));
        match &self.scaling {
            RopeScaling::None => plain.map(|f| f as f32).collect(),
            RopeScaling::Projection { factor } => plain.map(|f| (f / factor) as f32).collect(),
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
            RopeScaling::Yarn(yarn) => {
                // The (fractional) dimension that turns `turns` times within the original context.
                let dimension = |turns: f64| {
                    let wavelength = yarn.original / (turns * std::f64::consts::TAU);
                    self.dims as f64 * wavelength.ln() / (2.0 * self.theta.ln())
                };
                let (mut low, mut high) = (dimension(yarn.beta_fast), dimension(yarn.beta_slow));
                if yarn.truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                let (low, mut high) = (low.max(0.0), high.min(self.dims as f64 - 1.0));
                if low == high {
                    high += 0.001;
                }
                plain
                    .enumerate()
                    .map(|(i, f)| {
                        let divided = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                        (f / yarn.factor * divided + f * (1.0 - divided)) as f32
                    })
                    .collect()
            }
        }
    }

    /// The factor of cosines and sines.
    pub fn attention_factor(&self) -> f64 {
        match &self.scaling {
            RopeScaling::Yarn(yarn) => yarn.attention_factor,
            _ => 1.0,
        }
    }
}

impl MlpSpec {
    /// Parameters of one block for a residual stream of width `hidden`.
    pub fn parameters(&self, hidden: usize) -> u128 {
        let (hidden, intermediate) = (hidden as u128, self.intermediate as u128);
        let biases = if self.bias { 2 * intermediate + hidden } else { 0 };
        3 * hidden * intermediate + biases
    }
}

impl AttentionSpec {
    /// Parameters for a residual stream of width `hidden`.
    pub fn parameters(&self, hidden: usize) -> u128 {
        let (hidden, heads, head_dim) = (hidden as u128, self.heads as u128, self.head_dim as u128);
        let (q, kv) = (heads * head_dim, self.kv_heads as u128 * head_dim);
        let queries = if self.gated { 2 * q } else { q };
        let biases = match self.bias {
            AttentionBias::None => 0,
            AttentionBias::Qkv => queries + 2 * kv,
            AttentionBias::All => queries + 2 * kv + hidden,
        };
        let norms = match self.qk_norm {
            QkNorm::None => 0,
            QkNorm::PerHead => 2 * head_dim,
            QkNorm::Whole => q + kv,
        };
        let sinks = if self.sinks { heads } else { 0 };
        hidden * (queries + 2 * kv + q) + biases + norms + sinks
    }
}

impl DeltaNetSpec {
    /// Parameters for a residual stream of width `hidden`.
    pub fn parameters(&self, hidden: usize) -> u128 {
        let (channels, values, heads) =
            (self.channels() as u128, self.values() as u128, self.value_heads as u128);
        let projections = channels + 2 * values + 2 * heads;
        // Convolution, decay and step of every head, the gated norm.
        hidden as u128 * projections + channels * self.conv as u128 + 2 * heads + self.value_dim as u128
    }
}

impl FeedForwardSpec {
    /// Parameters for a residual stream of width `hidden`.
    pub fn parameters(&self, hidden: usize) -> u128 {
        match self {
            FeedForwardSpec::Dense(mlp) => mlp.parameters(hidden),
            FeedForwardSpec::Experts(e) => {
                let biases = match e.routing {
                    Routing::Sigmoid { .. } => e.experts,
                    _ => 0,
                } + if e.router_bias { e.experts } else { 0 };
                let shared = e.shared.map_or(0, |mlp| mlp.parameters(hidden));
                e.experts as u128 * (hidden as u128 + e.expert.parameters(hidden)) + biases as u128 + shared
            }
        }
    }
}

impl LayerSpec {
    /// Parameters for a residual stream of width `hidden`.
    pub fn parameters(&self, hidden: usize) -> u128 {
        let mixer = match &self.mixer {
            MixerSpec::Attention(attention) => attention.parameters(hidden),
            MixerSpec::DeltaNet(delta_net) => delta_net.parameters(hidden),
        };
        let norms = if self.sandwich { 4 } else { 2 };
        mixer + self.feed_forward.parameters(hidden) + norms * hidden as u128
    }
}

impl ExpertsSpec {
    /// A contradiction in the routing, if any.
    pub fn contradiction(&self) -> Option<String> {
        let (experts, per_token) = (self.experts, self.per_token);
        let (groups, kept) = match self.routing {
            Routing::Sigmoid { groups: Some(groups), .. } => groups,
            _ => (1, 1),
        };
        if groups == 0 || kept > groups || !experts.is_multiple_of(groups) {
            return Some(format!("{experts} experts in {groups} groups, of which {kept} are kept"));
        }
        let open = kept * (experts / groups);
        (per_token > open).then(|| format!("{per_token} experts a token of {open} that it could be sent to"))
    }
}

impl DecoderSpec {
    /// Tokens at whose multiples a prompt can be cut without a change of its bits on the CPU in f32 or bf16: 1, or where there are
    /// linear-attention layers a block of their rule.
    pub fn grain(&self) -> usize {
        if self.layers.iter().any(|layer| layer.delta_net().is_some()) { BLOCK } else { 1 }
    }

    /// A contradiction, or a value that no model has, if any.
    pub fn contradiction(&self) -> Option<String> {
        // A thousand times the largest model; what is reckoned of sizes up to here fits into 64 bits.
        const MOST_PARAMETERS: u128 = 1 << 50;
        let parameters = self.parameters();
        if parameters > MOST_PARAMETERS {
            return Some(format!("it would have {parameters} parameters"));
        }
        self.layers.iter().find_map(|layer| match &layer.feed_forward {
            FeedForwardSpec::Experts(experts) => experts.contradiction(),
            FeedForwardSpec::Dense(_) => None,
        })
    }

    /// Parameters of the checkpoint, the shared embedding counted once.
    pub fn parameters(&self) -> u128 {
        let layers: u128 = self.layers.iter().map(|layer| layer.parameters(self.hidden)).sum();
        let heads = if self.tied { 1 } else { 2 };
        heads * self.vocab as u128 * self.hidden as u128 + self.hidden as u128 + layers
    }
}
