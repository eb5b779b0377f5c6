//! The activations of gated feed-forward blocks.

/// An activation of gated feed-forward blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Gate {
    /// silu(gate) * up
    Silu,
    /// gelu(gate) * up, gelu by its approximation with tanh
    GeluTanh,
    /// g * sigmoid(alpha * g) * (u + 1), where g is the gate, at most `limit`, and u is up, between -`limit` and `limit`
    Clamped { alpha: f32, limit: f32 },
}
