//! The one door to attention, the observers that read it, and the store of what they saw.
//!
//! Decoders call [`run`] and nothing else. Which backend does the work is decided here by pure capability functions
//! and logged once. Nothing behind this door ever holds a matrix of all queries by all keys.

use std::sync::Once;

use candle_core::{Result, Tensor};

mod backends;
mod mass;
mod observer;
mod store;

pub use mass::{MassObserver, Masses, SpanError};
pub use observer::{NoObserver, Observer};
pub use store::{AttentionStore, StoreError, Values, write_tensors};

/// Everything about one call to attention, other than its tensors.
#[derive(Debug, Clone)]
pub struct Site {
    /// Decoder layer, from 0.
    pub layer: usize,
    /// Position of the first query row; the keys begin at position 0.
    pub offset: usize,
    /// What the scores are multiplied by before the softmax.
    pub scale: f32,
    /// Sliding window: a query at position p sees keys p - window + 1 ..= p.
    pub window: Option<usize>,
    /// Soft cap c: a scaled score s becomes c * tanh(s / c).
    pub softcap: Option<f32>,
    /// Attention sinks: one logit a head that joins the softmax's denominator and has no value.
    pub sinks: Option<Vec<f32>>,
}

impl Site {
    /// The half-open range of key positions that the query at `position` sees.
    pub fn visible(&self, position: usize) -> std::ops::Range<usize> {
        let end = position + 1;
        self.window.map_or(0, |window| end.saturating_sub(window))..end
    }
}

/// Causal attention of the queries of one chunk over all keys so far.
///
/// `q`: (l, heads, head_dim), rotated; `k`, `v`: (kv_heads, offset + l, head_dim), `k` rotated, views of the cache. Every
/// `heads / kv_heads` consecutive query heads share a key/value head. Returns (l, heads, head_dim) in `q`'s dtype; the
/// softmax and all sums are in f32. The observer is shown `q` and `k` first and cannot change the result.
pub fn run(q: &Tensor, k: &Tensor, v: &Tensor, site: &Site, observer: &mut dyn Observer) -> Result<Tensor> {
    if observer.wants(site) {
        observer.observe(site, q, k)?;
    }
    static LOGGED: Once = Once::new();
    let backend = backends::choose(q.device(), q.dtype());
    LOGGED.call_once(|| tracing::info!(%backend, device = ?q.device().location(), "attention"));
    match backend {
        backends::Backend::Cpu => backends::cpu::attention(q, k, v, site),
        backends::Backend::Chunked => backends::chunked::attention(q, k, v, site),
    }
}
