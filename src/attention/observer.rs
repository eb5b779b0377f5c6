//! Observers read attention; they never change it.
//!
//! They are handed down through the decoder's forward pass as `&mut dyn Observer`, so that nothing is left behind when
//! the call ends. They get the rotated queries and keys rather than the weights, because no fast kernel ever forms the
//! weights: an observer recomputes just the rows that it wants.

use candle_core::{Result, Tensor};

use super::Site;

/// Something that reads attention.
pub trait Observer {
    /// Whether [`Observer::observe`] is to be called for this site at all.
    fn wants(&self, site: &Site) -> bool;

    /// Reads one layer's chunk. `q`: (l, heads, head_dim), rotated; `k`: (kv_heads,
    /// offset + l - first_key, head_dim), rotated.
    fn observe(&mut self, site: &Site, q: &Tensor, k: &Tensor) -> Result<()>;

    /// Whether [`Observer::observe_delta`] is to be called for this linear-attention layer's chunk.
    fn wants_delta(&self, _site: &DeltaSite) -> bool {
        false
    }

    /// Reads the chunk of a layer with a gated delta rule. `q`, `k`: (l, key_heads, key_dim) as they leave the convolution,
    /// in the model's dtype: neither normalised nor scaled yet. `g`, `beta`: (l, value_heads) f32, the log decays and the
    /// strengths of writing. Keys of earlier chunks are in no cache: an observer that needs them keeps them.
    fn observe_delta(
        &mut self,
        _site: &DeltaSite,
        _q: &Tensor,
        _k: &Tensor,
        _g: &Tensor,
        _beta: &Tensor,
    ) -> Result<()> {
        Ok(())
    }
}

/// Where a chunk of a linear-attention layer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaSite {
    /// Decoder layer, from 0.
    pub layer: usize,
    /// Position of the chunk's first token.
    pub offset: usize,
}

/// Wants nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn wants(&self, _site: &Site) -> bool {
        false
    }

    fn observe(&mut self, _site: &Site, _q: &Tensor, _k: &Tensor) -> Result<()> {
        Ok(())
    }
}
