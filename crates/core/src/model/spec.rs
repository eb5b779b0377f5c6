//! The decoder spec: the interface between architectures ([`super::arch`]), which map configs to it, and the loader and layers.

use std::sync::Arc;

use candle_core::DType;

use crate::attention::delta::BLOCK;
use crate::attention::{AttentionShape, LayerKind};

mod latent;
mod parameters;
mod recurrent;
mod sharing;

pub use latent::{IndexerSpec, LatentSpec, Sees};
pub use recurrent::{DeltaNetSpec, Mamba2Spec, ShortConvSpec, StateSpec};

/// A decoder-only transformer.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderSpec {
    /// The architecture's name in the table ([`super::arch`]).
    pub architecture: &'static str,
    /// Vocabulary size: rows of embedding and output head.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// RMS norms.
    pub norm: NormSpec,
    /// Embedding scale, if any (Gemma: the square root of `hidden`, rounded to the dtype).
    pub embedding_scale: Option<f64>,
    /// Scale of what each mixer and feed-forward block adds to the residual stream, if any (transformers, `GraniteDecoderLayer`).
    pub residual_scale: Option<f64>,
    /// Divisor of the logits, if any (transformers, `GraniteForCausalLM`).
    pub logit_divisor: Option<f64>,
    /// Soft cap c of the logits, if any: a logit x becomes c * tanh(x / c) (transformers, `Gemma4ForCausalLM`).
    pub logit_cap: Option<f64>,
    /// Width of the per-layer embeddings, if there are any: every layer adds what it makes of a second embedding of the token, of which
    /// it has its own part (transformers, `project_per_layer_inputs` of `Gemma4TextModel`).
    pub layer_inputs: Option<usize>,
    /// Each layer's output is multiplied by a learned number (transformers, `layer_scalar` of `Gemma4TextDecoderLayer`).
    pub layer_scalars: bool,
    /// The output head is the embedding.
    pub tied: bool,
    /// Maximum context of the model.
    pub max_positions: usize,
    /// Decoder layers, first to last.
    pub layers: Vec<LayerSpec>,
}

impl DecoderSpec {
    /// Kind of each layer, for knock-outs.
    pub fn layer_kinds(&self) -> Vec<LayerKind> {
        let kind = |layer: &LayerSpec| match &layer.mixer {
            MixerSpec::Attention(a) => {
                LayerKind::Softmax { window: a.window, sinks: a.sinks, indexed: a.is_indexed() }
            }
            _ => LayerKind::Linear,
        };
        self.layers.iter().map(kind).collect()
    }

    /// With full attention in place of sliding windows: the layout of a cache that keeps all keys.
    pub fn without_windows(&self) -> Self {
        let mut spec = self.clone();
        for layer in &mut spec.layers {
            if let MixerSpec::Attention(a) = &mut layer.mixer {
                a.window = None;
            }
        }
        spec
    }
}

/// Upper limit that rejects damaged configs before layers are allocated.
pub const MAX_LAYERS: usize = 4096;

/// RMS norms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormSpec {
    /// Added to the mean square.
    pub eps: f64,
    /// The factor is 1 + weight (transformers, `Gemma3RMSNorm`, `Qwen3_5RMSNorm`).
    pub plus_one: bool,
}

/// Where a layer normalises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerNorms {
    /// The inputs of mixer and feed-forward block.
    Inputs,
    /// Their inputs and outputs (transformers, `Gemma3DecoderLayer`).
    Both,
    /// Their outputs (transformers, `Olmo3DecoderLayer`).
    Outputs,
}

impl LayerNorms {
    /// Norms in a layer.
    pub fn count(self) -> usize {
        if self == LayerNorms::Both { 4 } else { 2 }
    }
}

/// One decoder layer: x += mixer(norm(x)); x += feed_forward(norm(x)), or with norms elsewhere.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerSpec {
    /// The token mixer.
    pub mixer: MixerSpec,
    /// The feed-forward block.
    pub feed_forward: FeedForwardSpec,
    /// Where it normalises.
    pub norms: LayerNorms,
}

/// Token mixer.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // said by the names
pub enum MixerSpec {
    Attention(AttentionSpec),
    DeltaNet(DeltaNetSpec),
    ShortConv(ShortConvSpec),
    Mamba2(Mamba2Spec),
    /// The layer is a feed-forward block alone.
    None,
}

impl LayerSpec {
    /// The softmax attention, if any.
    pub fn attention(&self) -> Option<&AttentionSpec> {
        match &self.mixer {
            MixerSpec::Attention(attention) => Some(attention),
            _ => None,
        }
    }

    /// The delta net, if any.
    pub fn delta_net(&self) -> Option<&DeltaNetSpec> {
        match &self.mixer {
            MixerSpec::DeltaNet(delta_net) => Some(delta_net),
            _ => None,
        }
    }

    /// The heads of linear attention, whose weights observers measure: of a delta net or of Mamba-2, if any.
    pub fn linear(&self) -> Option<&DeltaNetSpec> {
        match &self.mixer {
            MixerSpec::DeltaNet(heads) | MixerSpec::Mamba2(Mamba2Spec { heads, .. }) => Some(heads),
            _ => None,
        }
    }
}

impl MixerSpec {
    /// Sizes of the state that it carries from token to token instead of keys, if any.
    pub fn state(&self) -> Option<StateSpec> {
        match self {
            MixerSpec::Attention(_) | MixerSpec::None => None,
            MixerSpec::DeltaNet(delta_net) => Some(delta_net.state()),
            MixerSpec::Mamba2(mamba) => Some(mamba.heads.state()),
            MixerSpec::ShortConv(conv) => Some(conv.state()),
        }
    }
}

/// Grouped-query softmax attention.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Score scale.
    pub scale: f32,
    /// Sliding window in tokens, if any.
    pub window: Option<usize>,
    /// Every head has a sink: a learned logit in the softmax, without a value.
    pub sinks: bool,
    /// Gate of the heads' outputs, before the output projection.
    pub gate: OutputGate,
    /// Norms of queries and keys before rotation.
    pub qk_norm: QkNorm,
    /// Values are normed per head, without a weight.
    pub value_norm: bool,
    /// Where keys and values come from.
    pub key_values: KeyValues,
    /// Projections with biases.
    pub bias: AttentionBias,
    /// Rotary position embedding.
    pub rope: RopeSpec,
    /// Latent attention, if it is that.
    pub latent: Option<LatentSpec>,
}

impl AttentionSpec {
    /// Width of what a score is a product of, before latent attention changes it.
    pub fn score_width(&self) -> usize {
        self.latent.map_or(self.head_dim, |latent| latent.plain + self.rope.dims)
    }

    /// True if an indexer chooses the keys that a row sees: the layer's own, or that of a layer before.
    pub fn is_indexed(&self) -> bool {
        self.latent.is_some_and(|latent| latent.sees != Sees::All)
    }

    /// The indexer that chooses the layer's keys, if it has one of its own.
    pub fn indexer(&self) -> Option<IndexerSpec> {
        self.latent.and_then(|latent| latent.indexer())
    }

    /// Numbers that the cache keeps of a token: keys and values, or latent keys, which are the values, and an indexer's key.
    pub fn cached(&self) -> usize {
        let buffers = if self.latent.is_some() { 1 } else { 2 };
        self.kv_heads * self.head_dim * buffers + self.indexer().map_or(0, |indexer| indexer.width)
    }

    /// The properties that select its kernel, for a dtype.
    pub fn shape(&self, dtype: DType) -> AttentionShape {
        let AttentionSpec { heads, kv_heads, head_dim, scale, window, sinks, .. } = *self;
        // No supported architecture has a soft cap.
        AttentionShape { dtype, heads, kv_heads, head_dim, scale, window, softcap: None, sinks }
    }
}

/// Where an attention layer's keys and values come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyValues {
    /// Two projections.
    Projected,
    /// One projection: values are the keys before norm and rotation (transformers, `attention_k_eq_v` of `Gemma4TextConfig`).
    Tied,
    /// An earlier layer with the same key/value heads and window: this one has queries alone, and no cache (transformers,
    /// `is_kv_shared_layer` of `Gemma4TextAttention`).
    Of(usize),
}

/// A sigmoid that multiplies the heads' outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputGate {
    /// None.
    None,
    /// A number for each dimension of each head; the query projection yields them too (transformers, `Qwen3_5Attention`).
    Elementwise,
    /// A number for each head, with a projection of its own, without bias (transformers, `Lfm3Attention`).
    PerHead,
}

/// Norms of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    None,
    /// Per head, with one shared weight (transformers, `Qwen3Attention`).
    PerHead,
    /// Over the whole projection, before the split into heads (transformers, `MiniMaxM2Attention`).
    Whole,
}

/// Attention projections with biases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // said by the names
pub enum AttentionBias {
    None,
    Qkv,
    All,
}

/// Feed-forward block.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // said by the names
pub enum FeedForwardSpec {
    Dense(MlpSpec),
    Experts(ExpertsSpec),
    /// The layer is a token mixer alone.
    None,
}

/// Feed-forward: down(activation(gate(x)) * up(x)), or without a gate down(activation(up(x))).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MlpSpec {
    /// Width between the projections.
    pub intermediate: usize,
    /// All projections have biases.
    pub bias: bool,
    /// The activation.
    pub activation: Activation,
}

/// Activation of a feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// silu(gate) * up.
    Silu,
    /// gelu(gate) * up, tanh approximation.
    GeluTanh,
    /// min(gate, limit) * sigmoid(alpha * min(gate, limit)) * (clamp(up, -limit, limit) + 1) (transformers, `GptOssExperts`).
    Clamped {
        /// Slope of the sigmoid.
        alpha: f64,
        /// Upper bound of gate, and bound of |up|.
        limit: f64,
    },
    /// relu(up)^2, without a gate (transformers, `NemotronHMLP`).
    SquaredRelu,
}

impl Activation {
    /// The block has a gate.
    pub fn is_gated(self) -> bool {
        self != Activation::SquaredRelu
    }
}

/// Mixture of experts.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertsSpec {
    /// Number of experts.
    pub experts: usize,
    /// Experts per token.
    pub per_token: usize,
    /// Spec of each expert.
    pub expert: MlpSpec,
    /// Routing method.
    pub routing: Routing,
    /// The router has a bias on its logits.
    pub router_bias: bool,
    /// A shared expert, which every token gets.
    pub shared: Option<MlpSpec>,
    /// Each token's output of the shared expert is scaled by the sigmoid of a product with its input (transformers,
    /// `Qwen2MoeSparseMoeBlock`).
    pub shared_gate: bool,
    /// Router and experts norm the residual stream themselves, the outputs of experts and shared expert are normed before they are added,
    /// and each expert has a scale (transformers, `Gemma4TextRouter`, `Gemma4TextDecoderLayer`).
    pub own_norms: bool,
}

/// Expert selection and weights, in f32.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Routing {
    /// Softmax over all experts, then top k (transformers, `Qwen3MoeTopKRouter`).
    SoftmaxTopK {
        /// Normalise the selected weights to sum 1.
        normalise: bool,
    },
    /// Top k logits, then softmax over them (transformers, `GptOssTopKRouter`).
    TopKSoftmax,
    /// Sigmoids; top k by sigmoid plus correction bias, weighted by the sigmoid (transformers, `Glm4MoeTopkRouter`,
    /// `MiniMaxM2SparseMoeBlock`).
    Sigmoid {
        /// Divide the selected weights by their sum plus this epsilon.
        normalise: Option<f64>,
        /// Final scale of the weights.
        scale: f64,
        /// (groups, groups kept): keep the groups with the largest sum of their two best corrected scores.
        groups: Option<(usize, usize)>,
    },
    /// Softmax over all experts, then top k of the groups kept (transformers, `DeepseekV2Moe`, `Mistral4MoE`).
    SoftmaxGroups {
        /// Divide the selected weights by their sum plus this epsilon.
        normalise: Option<f64>,
        /// Final scale of the weights.
        scale: f64,
        /// (groups, groups kept): keep the groups with the largest sum of their best weights.
        groups: Option<(usize, usize)>,
        /// Number of a group's best weights that are summed.
        best: usize,
    },
}

/// Rotary position embedding, half-rotation layout (dimension i pairs with i + dims / 2).
#[derive(Debug, Clone, PartialEq)]
pub struct RopeSpec {
    /// Base of the frequencies.
    pub theta: f64,
    /// Rotated dimensions: the first ones of a head; 0 in layers that see no positions.
    pub dims: usize,
    /// Frequency scaling for longer contexts.
    pub scaling: RopeScaling,
}

/// Frequency scaling for longer contexts.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// All frequencies divided by a factor (transformers, `_compute_linear_scaling_rope_parameters`).
    Projection {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided by `factor`, high ones kept, linear blend between (transformers, `_compute_llama3_parameters`).
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Wavelengths longer than `original / low` are low.
        low: f64,
        /// Wavelengths shorter than `original / high` are high.
        high: f64,
        /// Context length before scaling.
        original: f64,
    },
    /// YaRN: high frequencies kept, low ones divided by `factor`, linear blend between (transformers, `_compute_yarn_parameters`).
    Yarn(Yarn),
    /// LongRoPE up to its original context: a divisor per frequency (transformers, `_compute_longrope_parameters`). There all positions of
    /// a longer sequence turn by other divisors, so that cached keys would not be those of its start; longer ones are refused.
    LongRope {
        /// The divisors, `short_factor`.
        short: Arc<[f32]>,
        /// Context length before scaling.
        original: usize,
        /// Scale of cosines and sines.
        attention_factor: f64,
    },
    /// A divisor per frequency, as stored in GGUF (`rope_freqs.weight`).
    Divisors(Arc<[f32]>),
}

/// YaRN parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Yarn {
    /// Divisor of the low frequencies.
    pub factor: f64,
    /// Context length before scaling.
    pub original: f64,
    /// Dimensions with more rotations than this within `original` are kept.
    pub beta_fast: f64,
    /// Dimensions with fewer rotations than this within `original` are divided.
    pub beta_slow: f64,
    /// Round the blend's borders outwards to whole dimensions.
    pub truncate: bool,
    /// Scale of cosines and sines.
    pub attention_factor: f64,
    /// `mscale_all_dim`: latent attention multiplies its scores by the square of 0.1 `score_scale` ln(factor) + 1 (transformers,
    /// `DeepseekV3Attention`).
    pub score_scale: f64,
    /// Queries at position p are scaled by 1 + `query_beta` ln(1 + floor(p / `original`)) (transformers, `get_llama_4_attn_scale`).
    pub query_beta: f64,
}

impl Yarn {
    /// Default attention factor: 0.1 ln(factor) + 1.
    pub fn default_attention_factor(factor: f64) -> f64 {
        if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 }
    }
}

impl RopeSpec {
    /// No rotation (transformers, `SmolLM3Attention` without `use_rope`).
    pub const NONE: RopeSpec = RopeSpec { theta: 1.0, dims: 0, scaling: RopeScaling::None };

    /// The `dims / 2` angular frequencies, in radians per position.
    pub fn frequencies(&self) -> Vec<f32> {
        let plain = (0..self.dims / 2).map(|i| self.theta.powf(-2.0 * i as f64 / self.dims as f64));
        match &self.scaling {
            RopeScaling::None => plain.map(|f| f as f32).collect(),
            RopeScaling::Projection { factor } => plain.map(|f| (f / factor) as f32).collect(),
            RopeScaling::Divisors(divisors) | RopeScaling::LongRope { short: divisors, .. } => {
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
                // The (fractional) dimension with `turns` rotations within the original context.
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

    /// Scale of cosines and sines.
    pub fn attention_factor(&self) -> f64 {
        match &self.scaling {
            RopeScaling::Yarn(yarn) => yarn.attention_factor,
            RopeScaling::LongRope { attention_factor, .. } => *attention_factor,
            _ => 1.0,
        }
    }

    /// Most positions that the frequencies are for, if there are others for more.
    pub fn limit(&self) -> Option<usize> {
        match self.scaling {
            RopeScaling::LongRope { original, .. } => Some(original),
            _ => None,
        }
    }

    /// Scale of the query at a position; `None` if queries are not scaled.
    pub fn query_scale(&self, position: usize) -> Option<f32> {
        match &self.scaling {
            RopeScaling::Yarn(yarn) if yarn.query_beta > 0.0 => {
                let windows = (position as f64 / yarn.original).floor();
                Some((1.0 + yarn.query_beta * windows.ln_1p()) as f32)
            }
            _ => None,
        }
    }
}

impl ExpertsSpec {
    /// An inconsistency in the routing, if any.
    pub fn contradiction(&self) -> Option<String> {
        let (experts, per_token) = (self.experts, self.per_token);
        let (groups, kept) = match self.routing {
            Routing::Sigmoid { groups: Some(groups), .. }
            | Routing::SoftmaxGroups { groups: Some(groups), .. } => groups,
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
    /// Prompts split at multiples of this are bit-equal on the CPU in f32 or bf16: 1, or the block size of linear attention.
    pub fn grain(&self) -> usize {
        if self.layers.iter().any(|layer| layer.linear().is_some()) { BLOCK } else { 1 }
    }

    /// An inconsistent or implausible value, if any.
    pub fn contradiction(&self) -> Option<String> {
        // A thousand times the largest model; derived sizes then fit 64 bits.
        const MOST_PARAMETERS: u128 = 1 << 50;
        let parameters = self.parameters();
        if parameters > MOST_PARAMETERS {
            return Some(format!("it would have {parameters} parameters"));
        }
        self.layers.iter().find_map(|layer| match &layer.feed_forward {
            FeedForwardSpec::Experts(experts) => experts.contradiction(),
            FeedForwardSpec::Dense(_) | FeedForwardSpec::None => None,
        })
    }

    /// Parameters of the checkpoint; a tied embedding counts once.
    pub fn parameters(&self) -> u128 {
        let layers: u128 = self.layers.iter().map(|layer| layer.parameters(self.hidden)).sum();
        let heads = if self.tied { 1 } else { 2 };
        let beside = self.layers.len() as u128 * self.beside_layer() + self.layer_embeddings();
        heads * self.vocab as u128 * self.hidden as u128 + self.hidden as u128 + layers + beside
    }

    /// Parameters of the per-layer embeddings of all layers, their projection and its norm.
    pub fn layer_embeddings(&self) -> u128 {
        let of = |width: usize| {
            let all = (self.layers.len() * width) as u128;
            all * (self.vocab + self.hidden) as u128 + width as u128
        };
        self.layer_inputs.map_or(0, of)
    }

    /// Parameters of a layer beside mixer and feed-forward block: what adds its per-layer embedding, and its scalar.
    pub fn beside_layer(&self) -> u128 {
        let input = self.layer_inputs.map_or(0, |width| (2 * width + 1) * self.hidden);
        input as u128 + u128::from(self.layer_scalars)
    }
}
