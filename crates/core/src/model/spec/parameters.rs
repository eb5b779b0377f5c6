//! Parameter counts of layers and their parts.

use super::{
    AttentionBias, AttentionSpec, FeedForwardSpec, KeyValues, LayerSpec, MixerSpec, MlpSpec, OutputGate,
    QkNorm, Routing,
};

impl MlpSpec {
    /// Parameter count for a residual stream of width `hidden`.
    pub fn parameters(&self, hidden: usize) -> u128 {
        let (hidden, intermediate) = (hidden as u128, self.intermediate as u128);
        let into = if self.activation.is_gated() { 2 } else { 1 };
        let biases = if self.bias { into * intermediate + hidden } else { 0 };
        (into + 1) * hidden * intermediate + biases
    }
}

impl AttentionSpec {
    /// Parameter count for a residual stream of width `hidden`.
    pub fn parameters(&self, hidden: usize) -> u128 {
        if let Some(latent) = self.latent {
            return latent.parameters(self.heads, self.rope.dims, hidden);
        }
        let (hidden, heads, head_dim) = (hidden as u128, self.heads as u128, self.head_dim as u128);
        let (q, kv) = (heads * head_dim, self.kv_heads as u128 * head_dim);
        let (queries, gate) = match self.gate {
            OutputGate::None => (q, 0),
            OutputGate::Elementwise => (2 * q, 0),
            OutputGate::PerHead => (q, heads),
        };
        let (maps, normed) = match self.key_values {
            KeyValues::Projected => (2, 1),
            KeyValues::Tied => (1, 1),
            KeyValues::Of(_) => (0, 0),
        };
        let biases = match self.bias {
            AttentionBias::None => 0,
            AttentionBias::Qkv => queries + maps * kv,
            AttentionBias::All => queries + maps * kv + hidden,
        };
        let norms = match self.qk_norm {
            QkNorm::None => 0,
            QkNorm::PerHead => (1 + normed) * head_dim,
            QkNorm::Whole => q + normed * kv,
        };
        let sinks = if self.sinks { heads } else { 0 };
        hidden * (queries + gate + maps * kv + q) + biases + norms + sinks
    }
}

impl FeedForwardSpec {
    /// Parameter count for a residual stream of width `hidden`.
    pub fn parameters(&self, hidden: usize) -> u128 {
        match self {
            FeedForwardSpec::None => 0,
            FeedForwardSpec::Dense(mlp) => mlp.parameters(hidden),
            FeedForwardSpec::Experts(e) => {
                let biases = match e.routing {
                    Routing::Sigmoid { .. } => e.experts,
                    _ => 0,
                } + if e.router_bias { e.experts } else { 0 };
                let gate = if e.shared_gate { hidden as u128 } else { 0 };
                let shared = e.shared.map_or(0, |mlp| mlp.parameters(hidden)) + gate;
                // Four norms, and a scale for each expert.
                let norms = if e.own_norms { 4 * hidden + e.experts } else { 0 };
                let extra = (biases + norms) as u128 + shared;
                e.experts as u128 * (hidden as u128 + e.expert.parameters(hidden)) + extra
            }
        }
    }
}

impl LayerSpec {
    /// Number of its norms of the residual stream's width.
    pub fn norms(&self) -> usize {
        let alone = self.mixer == MixerSpec::None || self.feed_forward == FeedForwardSpec::None;
        self.norms.count() / if alone { 2 } else { 1 }
    }

    /// Parameter count for a residual stream of width `hidden`.
    pub fn parameters(&self, hidden: usize) -> u128 {
        let mixer = match &self.mixer {
            MixerSpec::Attention(attention) => attention.parameters(hidden),
            MixerSpec::DeltaNet(delta_net) => delta_net.parameters(hidden),
            MixerSpec::ShortConv(conv) => conv.parameters(hidden),
            MixerSpec::Mamba2(mamba) => mamba.parameters(hidden),
            MixerSpec::None => 0,
        };
        mixer + self.feed_forward.parameters(hidden) + (self.norms() * hidden) as u128
    }
}
