//! The key/value cache: allocated once for a capacity, written in place, marked and rolled back.
//!
//! Owned by the caller and lent to the decoder, so that several questions can share one history: prefill the history,
//! take a [`Mark`], and for each question append, decode and roll back. Rolling back only moves the length: no history is
//! copied.

use candle_core::{DType, Device, Result, Tensor};

use super::DecoderSpec;

/// Keys and values of every layer for one sequence.
#[derive(Debug)]
pub struct Cache {
    layers: Vec<LayerCache>,
    length: usize,
    capacity: usize,
    deltas: std::collections::BTreeMap<usize, DeltaState>,
}

/// What a linear-attention layer remembers. Tensors are replaced, never written to, so that a clone is a copy.
#[derive(Debug, Clone)]
pub(super) struct DeltaState {
    /// The convolution's last inputs, (taps - 1, channels), in the model's dtype.
    pub conv: Tensor,
    /// (value_heads, key_dim, value_dim), f32.
    pub state: Tensor,
}

/// A length to roll back to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark(usize);

#[derive(Debug)]
struct LayerCache {
    /// (kv_heads, capacity, head_dim)
    k: Tensor,
    v: Tensor,
}

impl Mark {
    /// The mark after `tokens` tokens.
    pub fn at(tokens: usize) -> Self {
        Mark(tokens)
    }
}

impl Cache {
    /// An empty cache for up to `capacity` tokens. Allocates the whole of it; pages of system memory are touched only as
    /// they are written. A cache that no memory can hold is an error.
    pub fn new(spec: &DecoderSpec, capacity: usize, dtype: DType, device: &Device) -> Result<Self> {
        let bytes = spec.layers.iter().try_fold(0usize, |sum, layer| {
            let a = &layer.attention;
            let of_layer = [a.kv_heads, capacity, a.head_dim, 2, dtype.size_in_bytes()];
            sum.checked_add(of_layer.into_iter().try_fold(1usize, usize::checked_mul)?)
        });
        // The allocator ends the process where it is refused; asked this way, it says so first.
        let granted = |bytes| {
            let mut probe = Vec::<u8>::new();
            let granted = !device.is_cpu() || probe.try_reserve_exact(bytes).is_ok();
            // Or the compiler takes the allocation out and calls it granted.
            std::hint::black_box(&probe);
            granted
        };
        if !bytes.is_some_and(granted) {
            candle_core::bail!(
                "a key/value cache for {capacity} tokens needs {}, more than this machine gives; ask for a shorter context",
                bytes.map_or("an impossible amount of memory".to_owned(), |b| format!("{} MiB", b >> 20))
            );
        }
        let layers = spec
            .layers
            .iter()
            .map(|layer| {
                let shape = (layer.attention.kv_heads, capacity, layer.attention.head_dim);
                Ok(LayerCache {
                    k: Tensor::zeros(shape, dtype, device)?,
                    v: Tensor::zeros(shape, dtype, device)?,
                })
            })
            .collect::<Result<_>>()?;
        Ok(Cache { layers, length: 0, capacity, deltas: Default::default() })
    }

    /// Tokens in the cache.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the cache holds no token.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Tokens that fit.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Remembers the current length.
    pub fn mark(&self) -> Mark {
        Mark(self.length)
    }

    /// Forgets every token after the mark.
    pub fn roll_back(&mut self, mark: Mark) {
        self.length = self.length.min(mark.0);
    }

    /// Writes a layer's new keys and values, both (kv_heads, l, head_dim), after the tokens in the cache, and returns
    /// views of all of them, (kv_heads, length + l, head_dim). The length grows with [`Cache::advance`], once a forward.
    pub(super) fn append(&mut self, layer: usize, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let l = k.dim(1)?;
        let end = self.length + l;
        if end > self.capacity {
            candle_core::bail!(
                "the cache holds {} of {} tokens: {l} more do not fit",
                self.length,
                self.capacity
            );
        }
        let cache = &self.layers[layer];
        cache.k.slice_set(&k.contiguous()?, 1, self.length)?;
        cache.v.slice_set(&v.contiguous()?, 1, self.length)?;
        Ok((cache.k.narrow(1, 0, end)?, cache.v.narrow(1, 0, end)?))
    }

    /// The state of a linear-attention layer.
    pub(super) fn delta(&self, layer: usize) -> Result<DeltaState> {
        match self.deltas.get(&layer) {
            Some(state) => Ok(state.clone()),
            None => candle_core::bail!("This is a bug: layer {layer} keeps no state"),
        }
    }

    /// Replaces the state of a linear-attention layer by the one after this forward's tokens.
    pub(super) fn set_delta(&mut self, layer: usize, state: DeltaState) -> Result<()> {
        self.deltas.insert(layer, state);
        Ok(())
    }

    /// Counts `l` tokens that every layer has appended.
    pub(super) fn advance(&mut self, l: usize) {
        self.length += l;
    }
}
