//! Mixers that carry a state from token to token instead of keys.

/// Sizes of a recurrent mixer's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateSpec {
    /// Last inputs of its convolution: (taps - 1, channels), in the activations' dtype.
    pub conv: (usize, usize),
    /// Its memory, if any, f32: (value_heads, key_dim, value_dim).
    pub memory: Option<(usize, usize, usize)>,
}

/// A linear-attention layer: causal convolution, gated delta rule, gated norm (transformers, `Qwen3_5GatedDeltaNet`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeltaNetSpec {
    /// Query and key heads; divides `value_heads`, and each serves `value_heads / key_heads` consecutive value heads.
    pub key_heads: usize,
    /// Value heads, also of decays and outputs.
    pub value_heads: usize,
    /// Width of a query or key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Taps of the causal convolution.
    pub conv: usize,
}

impl DeltaNetSpec {
    /// Total width of the queries, or of the keys.
    pub fn keys(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Total width of the values.
    pub fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution: queries, keys, values.
    pub fn channels(&self) -> usize {
        2 * self.keys() + self.values()
    }

    /// Sizes of its state.
    pub fn state(&self) -> StateSpec {
        let memory = Some((self.value_heads, self.key_dim, self.value_dim));
        StateSpec { conv: (self.conv - 1, self.channels()), memory }
    }
}

/// A Mamba-2 layer: causal convolution, a decaying sum of values written and read by keys and queries, gated norm by groups
/// (transformers, `NemotronHMamba2Mixer`, `GraniteMoeHybridMambaLayer`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mamba2Spec {
    /// Its groups are the key heads (keys B, queries C, as wide as the state), its heads the value heads.
    pub heads: DeltaNetSpec,
    /// The convolution has a bias.
    pub conv_bias: bool,
    /// Both projections have biases.
    pub bias: bool,
    /// Least time step, after the softplus.
    pub least_step: f64,
}

/// A gated short convolution: r * convolution(w * x), with r, w and x projections of the input (transformers, `Lfm2ShortConv`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortConvSpec {
    /// Channels of the convolution.
    pub channels: usize,
    /// Its taps, at least 2.
    pub taps: usize,
    /// Convolution and projections have biases.
    pub bias: bool,
}

impl DeltaNetSpec {
    /// Parameter count for a residual stream of width `hidden`.
    pub fn parameters(&self, hidden: usize) -> u128 {
        let (channels, values, heads) =
            (self.channels() as u128, self.values() as u128, self.value_heads as u128);
        let projections = channels + 2 * values + 2 * heads;
        // Convolution, decay and dt bias per head, gated norm.
        hidden as u128 * projections + channels * self.conv as u128 + 2 * heads + self.value_dim as u128
    }
}

impl Mamba2Spec {
    /// Parameter count for a residual stream of width `hidden`.
    pub fn parameters(&self, hidden: usize) -> u128 {
        let hidden = hidden as u128;
        let (channels, values) = (self.heads.channels() as u128, self.heads.values() as u128);
        let heads = self.heads.value_heads as u128;
        let inputs = values + channels + heads;
        let conv = channels * (self.heads.conv as u128 + u128::from(self.conv_bias));
        let biases = if self.bias { inputs + hidden } else { 0 };
        // Decay, time step bias and skip per head, gated norm.
        hidden * (inputs + values) + conv + biases + 3 * heads + values
    }
}

impl ShortConvSpec {
    /// Sizes of its state.
    pub fn state(&self) -> StateSpec {
        StateSpec { conv: (self.taps - 1, self.channels), memory: None }
    }

    /// Parameter count for a residual stream of width `hidden`.
    pub fn parameters(&self, hidden: usize) -> u128 {
        let (hidden, channels) = (hidden as u128, self.channels as u128);
        let biases = if self.bias { 4 * channels + hidden } else { 0 };
        4 * hidden * channels + channels * self.taps as u128 + biases
    }
}
