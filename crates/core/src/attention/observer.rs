//! Observers read attention; they never change it.
//!
//! They are handed down through the decoder's forward pass as `&mut dyn Observer`, so that nothing is left behind when
//! the call ends. Of a prompt they get the rotated queries and keys rather than the weights, because no fast kernel ever forms
//! the weights of many rows: an observer recomputes just the rows that it wants. Of a token that is generated the kernel holds
//! the weights of the one row in any case, and sums them by segment as it goes: an observer says over which segments, and
//! gets the sums.

use candle_core::{Result, Tensor};

use super::{Holes, Site};

/// Something that reads attention.
pub trait Observer: Send {
    /// Whether [`Observer::observe`] is to be called for this site at all.
    fn wants(&self, site: &Site) -> bool;

    /// Reads one layer's chunk. `q`: (l, heads, head_dim), rotated; `k`: (kv_heads,
    /// offset + l - first_key, head_dim), rotated.
    fn observe(&mut self, site: &Site, q: &Tensor, k: &Tensor) -> Result<()>;

    /// The ascending borders of the segments, as positions, over which the kernel is to sum the softmax weights of the one row
    /// at this site: segment s is `borders[s]..borders[s + 1]`. `None`, the default, is for rows that are not wanted.
    /// The output of attention is the same, to the last bit, with and without.
    fn segments(&self, _site: &Site) -> Option<&[usize]> {
        None
    }

    /// Takes what [`Observer::segments`] asked for: what each head pays to the sinks and to each segment, (heads, 1 + segments),
    /// f64 on the CPU and f32 on other devices. `site.offset` is the row's position.
    fn take(&mut self, _site: &Site, _sums: Tensor) -> Result<()> {
        Ok(())
    }

    /// Whether [`Observer::observe_values`] is to be called for this site, and [`Observer::observe_gate`] before it.
    fn wants_values(&self, _site: &Site) -> bool {
        false
    }

    /// Reads what a layer's chunk reads with: as [`Observer::observe`], and `v`, (kv_heads, keys, head_dim).
    fn observe_values(&mut self, _site: &Site, _q: &Tensor, _k: &Tensor, _v: &Tensor) -> Result<()> {
        Ok(())
    }

    /// Of a layer whose heads are gated: what their outputs at the next site are multiplied by, (l, heads * head_dim).
    fn observe_gate(&mut self, _layer: usize, _gate: &Tensor) -> Result<()> {
        Ok(())
    }

    /// Which of the `l` positions from `offset` on are to be shown term by term ([`Observer::observe_term`]), as distances from
    /// `offset`.
    fn targets(&self, _offset: usize, _l: usize) -> Vec<usize> {
        Vec::new()
    }

    /// Reads a term of the residual stream at the targets of the chunk that begins at `offset`.
    fn observe_term(&mut self, _offset: usize, _term: Term<'_>) -> Result<()> {
        Ok(())
    }

    /// Told that the `thought` tokens generated so far are a thought before the answer, whose rows are not wanted; before the
    /// row that predicts the next token is read.
    fn skip_generated(&mut self, _thought: usize) {}

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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeltaSite {
    /// Decoder layer, from 0.
    pub layer: usize,
    /// Position of the chunk's first token.
    pub offset: usize,
    /// What rows were to be kept from seeing. The layer has no keys to hide, and refuses any.
    pub holes: Holes,
}

/// A part of what the decoder adds up at a position, f32 and a row a target.
#[derive(Debug, Clone, Copy)]
pub enum Term<'a> {
    /// The token's embedding, (targets, hidden).
    Embedding(&'a Tensor),
    /// What a linear-attention layer adds, after a norm behind it if there is one, (targets, hidden).
    LinearAttention(usize, &'a Tensor),
    /// What a feed-forward adds, likewise.
    FeedForward(usize, &'a Tensor),
    /// What the output of a softmax layer's heads is multiplied by behind its output projection, (targets, hidden), where there is a
    /// norm behind it; and the projection's bias, (hidden), if any.
    Attention(usize, Option<&'a Tensor>, Option<&'a Tensor>),
    /// What the sum of all of it is multiplied by before the output head: the final norm's scales, (targets, hidden).
    Final(&'a Tensor),
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
