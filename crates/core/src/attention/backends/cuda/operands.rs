//! Kernel arguments from tensors and sites.

use candle_core::{CudaDevice, Result, Tensor};

use super::super::super::{Sinks, Site};
use crate::fused::launch::Argument::{Float, Int, Long};
use crate::fused::launch::{Argument, Module, Pointer, typed};

pub const MODULE: Module = Module {
    name: "palimpsest-attention",
    image: include_bytes!(concat!(env!("OUT_DIR"), "/attention.image")),
};

/// For compute capability 9.0 alone.
pub const HOPPER: Module =
    Module { name: "palimpsest-hopper", image: include_bytes!(concat!(env!("OUT_DIR"), "/hopper.image")) };

pub struct Operand {
    tensor: Tensor,
    pointer: Pointer,
}

impl Operand {
    /// Takes (.., .., d) without a copy if rows are aligned to 8 bytes. `dense`: rows must also be contiguous.
    pub fn new(x: &Tensor, dense: bool, device: &CudaDevice) -> Result<Self> {
        let (_, n, d) = x.dims3()?;
        let strides = x.stride();
        let pointer = pointer(x, device)?;
        let bytes = x.dtype().size_in_bytes();
        let apart = |stride: &usize| (stride * bytes).is_multiple_of(8);
        let lies = strides[2] == 1 && strides[..2].iter().all(apart) && pointer.is_aligned(8);
        if lies && (!dense || n <= 1 || strides[1] == d) {
            return Ok(Operand { tensor: x.clone(), pointer });
        }
        let tensor = x.force_contiguous()?;
        let pointer = self::pointer(&tensor, device)?;
        Ok(Operand { tensor, pointer })
    }

    pub fn heads(&self) -> usize {
        self.tensor.dims()[0]
    }

    /// True if rows are aligned to 16 bytes.
    pub fn is_wide(&self) -> bool {
        let bytes = self.tensor.dtype().size_in_bytes();
        self.pointer.is_aligned(16)
            && self.tensor.stride()[..2].iter().all(|s| (s * bytes).is_multiple_of(16))
    }

    /// Pointer and stride of the first dimension.
    pub fn by_first(&self) -> [Argument; 2] {
        [self.pointer.into(), Long(self.tensor.stride()[0] as i64)]
    }

    /// Pointer and strides of the first two dimensions.
    pub fn by_both(&self) -> [Argument; 3] {
        let strides = self.tensor.stride();
        [self.pointer.into(), Long(strides[0] as i64), Long(strides[1] as i64)]
    }
}

pub fn pointer(x: &Tensor, device: &CudaDevice) -> Result<Pointer> {
    typed!(x.dtype(), T => Pointer::strided::<T>(x, device))
}

pub fn sinks(sinks: Option<&Sinks>, device: &CudaDevice) -> Result<Pointer> {
    sinks.map_or(Ok(Pointer::NOTHING), |sinks| Pointer::to::<f32>(sinks.tensor(), device))
}

/// Scale, softcap and mask arguments: `Rule` in `attention.cu`.
pub fn rule(site: &Site) -> [Argument; 4] {
    use std::f32::consts::LOG2_E;
    let (unit, inner) = match site.softcap {
        Some(cap) => (LOG2_E, 2.0 * LOG2_E * site.scale / cap),
        None => (LOG2_E * site.scale, 0.0),
    };
    [Float(unit), Float(inner), Float(site.softcap.unwrap_or(0.0)), int(site.window.unwrap_or(0))]
}

/// Clamps to i32: contexts are shorter, and a larger window masks nothing.
pub fn int(n: usize) -> Argument {
    Int(i32::try_from(n).unwrap_or(i32::MAX))
}

pub fn width(d: usize, widths: &[usize]) -> Result<usize> {
    match widths.iter().find(|width| d <= **width) {
        Some(width) => Ok(*width),
        None => candle_core::bail!("This is a bug: there is no attention kernel for heads of {d}"),
    }
}

/// Shared memory of a block in bytes: double-buffered `keys` keys and values, and `kept` queries. Rows are padded by 16 bytes.
pub const fn shared_bytes(width: usize, keys: usize, kept: usize) -> u32 {
    ((kept + 4 * keys) * 2 * (width + 8)) as u32
}
