//! Activations of gated feed-forward blocks.

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Gate {
    /// silu(gate) * up
    Silu,
    /// gelu(gate) * up, tanh approximation
    GeluTanh,
    /// g * sigmoid(alpha * g) * (u + 1) with g = min(gate, `limit`) and u = up clamped to [-`limit`, `limit`]
    Clamped { alpha: f32, limit: f32 },
}
