//! Keys and values where they lie in the cache.

use candle_core::{CpuStorage, Result, Storage, Tensor};

/// The keys and values of a sequence.
pub struct Sequence<'a> {
    /// From the first key of the first head on.
    k: &'a [f32],
    v: &'a [f32],
    /// Elements from one head to the next.
    k_stride: usize,
    v_stride: usize,
    /// Elements of a head.
    head: usize,
}

impl<'a> Sequence<'a> {
    pub fn new(k: &Tensor, v: &Tensor, k_data: &'a [f32], v_data: &'a [f32]) -> Result<Self> {
        let (_, n, d) = k.dims3()?;
        Ok(Sequence { k: k_data, v: v_data, k_stride: k.stride()[0], v_stride: v.stride()[0], head: n * d })
    }

    /// (keys, d)
    pub fn keys(&self, kv_head: usize) -> &'a [f32] {
        &self.k[kv_head * self.k_stride..][..self.head]
    }

    /// (keys, d)
    pub fn values(&self, kv_head: usize) -> &'a [f32] {
        &self.v[kv_head * self.v_stride..][..self.head]
    }
}

/// Calls `f` with the elements of f32 CPU tensors, each from its first element on. The last two dimensions must be
/// contiguous; the first may have any stride.
pub fn with_slices<T>(tensors: &[&Tensor], f: impl FnOnce(&[&[f32]]) -> Result<T>) -> Result<T> {
    let guards: Vec<_> = tensors.iter().map(|t| t.storage_and_layout()).collect();
    let mut slices = Vec::with_capacity(guards.len());
    for (storage, layout) in &guards {
        let (dims, stride) = (layout.dims(), layout.stride());
        if dims.len() != 3 || stride[2] != 1 || (dims[1] > 1 && stride[1] != dims[2]) {
            candle_core::bail!(
                "attention: a tensor of shape {dims:?} has strides {stride:?}, not rows of a cache"
            );
        }
        let Storage::Cpu(CpuStorage::F32(data)) = &**storage else {
            candle_core::bail!("attention: the CPU kernel was given a tensor that is not f32 on the CPU");
        };
        slices.push(&data[layout.start_offset()..]);
    }
    f(&slices)
}
