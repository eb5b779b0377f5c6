//! Keys and values in the cache's layout and dtype.

use std::ops::Range;

use candle_core::{CpuStorage, Result, Storage, Tensor};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::bfloat;

#[derive(Debug, Clone, Copy)]
pub enum Stored<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
    F16(&'a [f16]),
}

impl<'a> Stored<'a> {
    pub fn part(&self, range: Range<usize>) -> Stored<'a> {
        match self {
            Stored::F32(data) => Stored::F32(&data[range]),
            Stored::Bf16(data) => Stored::Bf16(&data[range]),
            Stored::F16(data) => Stored::F16(&data[range]),
        }
    }

    /// The elements in f32: borrowed, or widened into `scratch`.
    #[inline(always)]
    pub fn wide<'b>(&self, scratch: &'b mut Vec<f32>) -> &'b [f32]
    where
        'a: 'b,
    {
        let len = match self {
            Stored::F32(data) => return data,
            Stored::Bf16(data) => data.len(),
            Stored::F16(data) => data.len(),
        };
        if scratch.len() < len {
            scratch.resize(len, 0.0);
        }
        let to = &mut scratch[..len];
        match self {
            Stored::F32(_) => {}
            Stored::Bf16(data) => bfloat::widen(data, to),
            Stored::F16(data) => data.convert_to_f32_slice(to),
        }
        to
    }

    pub fn f32(&self) -> Result<&'a [f32]> {
        match self {
            Stored::F32(data) => Ok(data),
            _ => candle_core::bail!("This is a bug: attention's kernel on the CPU expects f32 here"),
        }
    }
}

pub struct Sequence<'a> {
    k: Stored<'a>,
    v: Stored<'a>,
    /// Elements between heads.
    k_stride: usize,
    v_stride: usize,
    head: usize,
}

impl<'a> Sequence<'a> {
    pub fn new(k: &Tensor, v: &Tensor, k_data: Stored<'a>, v_data: Stored<'a>) -> Result<Self> {
        let (_, n, d) = k.dims3()?;
        Ok(Sequence { k: k_data, v: v_data, k_stride: k.stride()[0], v_stride: v.stride()[0], head: n * d })
    }

    /// (keys, d)
    pub fn keys(&self, kv_head: usize) -> Stored<'a> {
        let start = kv_head * self.k_stride;
        self.k.part(start..start + self.head)
    }

    /// (keys, d)
    pub fn values(&self, kv_head: usize) -> Stored<'a> {
        let start = kv_head * self.v_stride;
        self.v.part(start..start + self.head)
    }
}

/// Calls `f` with the elements of CPU tensors. The last two dimensions must be contiguous; the first may have any stride.
pub fn with_slices<T>(tensors: &[&Tensor], f: impl FnOnce(&[Stored<'_>]) -> Result<T>) -> Result<T> {
    let guards: Vec<_> = tensors.iter().map(|t| t.storage_and_layout()).collect();
    let mut slices = Vec::with_capacity(guards.len());
    for (storage, layout) in &guards {
        let (dims, stride) = (layout.dims(), layout.stride());
        if dims.len() != 3 || stride[2] != 1 || (dims[1] > 1 && stride[1] != dims[2]) {
            candle_core::bail!(
                "attention: a tensor of shape {dims:?} has strides {stride:?}, not rows of a cache"
            );
        }
        let first = layout.start_offset();
        slices.push(match &**storage {
            Storage::Cpu(CpuStorage::F32(data)) => Stored::F32(&data[first..]),
            Storage::Cpu(CpuStorage::BF16(data)) => Stored::Bf16(&data[first..]),
            Storage::Cpu(CpuStorage::F16(data)) => Stored::F16(&data[first..]),
            _ => candle_core::bail!(
                "attention: the CPU kernel was given a tensor that is none of f32, bf16 and f16 on the CPU"
            ),
        });
    }
    f(&slices)
}
