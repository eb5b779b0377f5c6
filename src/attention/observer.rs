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

/// Two observers of the same: the first may want generated tokens and linear-attention layers too, the second reads softmax
/// attention of the prompt alone.
pub struct Both<'a>(pub &'a mut dyn Observer, pub &'a mut dyn Observer);

impl Observer for Both<'_> {
    fn wants(&self, site: &Site) -> bool {
        self.0.wants(site) || self.1.wants(site)
    }

    fn observe(&mut self, site: &Site, q: &Tensor, k: &Tensor) -> Result<()> {
        if self.0.wants(site) {
            self.0.observe(site, q, k)?;
        }
        if self.1.wants(site) { self.1.observe(site, q, k) } else { Ok(()) }
    }

    fn segments(&self, site: &Site) -> Option<&[usize]> {
        self.0.segments(site)
    }

    fn take(&mut self, site: &Site, sums: Tensor) -> Result<()> {
        self.0.take(site, sums)
    }

    fn skip_generated(&mut self, thought: usize) {
        self.0.skip_generated(thought);
    }

    fn wants_delta(&self, site: &DeltaSite) -> bool {
        self.0.wants_delta(site)
    }

    fn observe_delta(
        &mut self,
        site: &DeltaSite,
        q: &Tensor,
        k: &Tensor,
        g: &Tensor,
        beta: &Tensor,
    ) -> Result<()> {
        self.0.observe_delta(site, q, k, g, beta)
    }
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
