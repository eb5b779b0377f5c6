//! The one door to attention, the observers that read it, and the store of what they saw.
//!
//! Decoders call [`run`] and nothing else. Which backend does the work is decided here by pure capability functions
//! and logged once. Nothing behind this door ever holds a matrix of all queries by all keys.

use std::sync::Once;

use candle_core::{Result, Tensor};

use crate::stats;

mod backends;
pub(crate) mod delta;
mod mass;
mod observer;
mod store;

pub use mass::{DeltaMasses, MassObserver, Masses, SpanError};
pub use observer::{DeltaSite, NoObserver, Observer};
pub use store::{AttentionStore, StoreError, Values, write_tensors};

/// Everything about one call to attention, other than its tensors.
#[derive(Debug, Clone)]
pub struct Site {
    /// Decoder layer, from 0.
    pub layer: usize,
    /// Position of the first query row.
    pub offset: usize,
    /// Position of the first key: above 0 where a layer with a window keeps only what can still be seen.
    pub first_key: usize,
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

    /// The same site with positions counted from the first key: causality and windows depend on distances alone.
    fn relative(&self) -> Self {
        Site { offset: self.offset - self.first_key, first_key: 0, ..self.clone() }
    }
}

/// Keys that a few queries' sums are cut at: with few rows (decoding) the CPU kernel sums over parts of so many keys, from the
/// first key on, and then joins the parts. Branches of a sequence begin at a multiple of it, so that their sums are those of
/// the whole sequence.
pub const KEY_PART: usize = 256;

/// Causal attention of the queries of one chunk over all keys so far.
///
/// `q`: (l, heads, head_dim), rotated; `k`, `v`: (kv_heads, offset + l - first_key, head_dim), `k` rotated, views of the
/// cache; keys before `first_key` must be outside the window of every query. Every
/// `heads / kv_heads` consecutive query heads share a key/value head. Returns (l, heads, head_dim) in `q`'s dtype; the
/// softmax and all sums are in f32. The observer is shown `q` and `k` first and cannot change the result. Tensors and
/// settings that do not fit together are an error.
pub fn run(q: &Tensor, k: &Tensor, v: &Tensor, site: &Site, observer: &mut dyn Observer) -> Result<Tensor> {
    let _span = stats::attention();
    check(q, k, v, site)?;
    if observer.wants(site) {
        observer.observe(site, q, k)?;
    }
    let site = &site.relative();
    static LOGGED: Once = Once::new();
    let backend = backends::choose_forward(q.device(), q.dtype(), q.dim(2)?, site);
    LOGGED.call_once(|| tracing::info!(%backend, device = ?q.device().location(), "attention"));
    match backend {
        backends::Backend::Cpu => backends::cpu::attention(q, k, v, site),
        backends::Backend::Chunked => backends::chunked::attention(q, k, v, site, backends::chunked::BLOCKS),
        #[cfg(feature = "flash-attn")]
        backends::Backend::Flash => backends::flash::attention(q, k, v, site),
    }
}

/// Refuses what the kernels would read past the end for, or quietly read wrongly.
fn check(q: &Tensor, k: &Tensor, v: &Tensor, site: &Site) -> Result<()> {
    let (l, heads, d) = q.dims3()?;
    let (kv_heads, keys, _) = k.dims3()?;
    if l == 0 || heads == 0 || d == 0 {
        candle_core::bail!("attention: queries of shape {:?} hold no rows", q.dims());
    }
    if kv_heads == 0 || heads % kv_heads != 0 {
        candle_core::bail!("attention: {heads} query heads are no multiple of {kv_heads} key/value heads");
    }
    if k.dims() != v.dims() || k.dim(2)? != d {
        candle_core::bail!(
            "attention: keys of shape {:?} and values of shape {:?} do not fit queries of shape {:?}",
            k.dims(),
            v.dims(),
            q.dims()
        );
    }
    let expected = site.offset.checked_add(l).and_then(|end| end.checked_sub(site.first_key));
    if expected != Some(keys) || site.first_key > site.offset {
        candle_core::bail!(
            "attention: {l} queries at offset {} see {} keys, but there are {keys} from position {}",
            site.offset,
            site.offset.saturating_add(l),
            site.first_key
        );
    }
    if site.first_key > site.visible(site.offset).start {
        candle_core::bail!(
            "attention: the query at position {} sees keys before the first, at position {}",
            site.offset,
            site.first_key
        );
    }
    if site.window == Some(0) {
        candle_core::bail!("attention: a window of 0 sees nothing; the smallest is 1, a token itself");
    }
    match &site.sinks {
        Some(sinks) if sinks.len() != heads => {
            candle_core::bail!("attention: {} sinks for {heads} query heads", sinks.len())
        }
        _ => Ok(()),
    }
}
