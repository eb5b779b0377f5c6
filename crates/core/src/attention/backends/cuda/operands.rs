//! The kernels' arguments for tensors and a site.

use candle_core::{CudaDevice, Result, Tensor};

use super::super::super::{Sinks, Site};
use crate::fused::launch::Argument::{Float, Int, Long};
use crate::fused::launch::{Argument, Module, Pointer, typed};

pub const MODULE: Module =
    Module { name: "palimpsest-attention", ptx: include_str!(concat!(env!("OUT_DIR"), "/attention.ptx")) };

/// A tensor whose last dimension lies side by side, with its pointer.
pub struct Operand {
    tensor: Tensor,
    pointer: Pointer,
}

impl Operand {
    /// A tensor (.., .., d) as it lies, or a copy of it where its rows do not begin at multiples of 8 bytes; `dense`: or do not
    /// follow each other.
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

    /// Its first dimension.
    pub fn heads(&self) -> usize {
        self.tensor.dims()[0]
    }

    /// True if rows begin at multiples of 16 bytes.
    pub fn is_wide(&self) -> bool {
        let bytes = self.tensor.dtype().size_in_bytes();
        self.pointer.is_aligned(16)
            && self.tensor.stride()[..2].iter().all(|s| (s * bytes).is_multiple_of(16))
    }

    /// Where it is, and the stride of its first dimension.
    pub fn by_first(&self) -> [Argument; 2] {
        [self.pointer.into(), Long(self.tensor.stride()[0] as i64)]
    }

    /// Where it is, and the strides of its first two dimensions.
    pub fn by_both(&self) -> [Argument; 3] {
        let strides = self.tensor.stride();
        [self.pointer.into(), Long(strides[0] as i64), Long(strides[1] as i64)]
    }
}

/// To the first element of f32, f16 or bf16.
pub fn pointer(x: &Tensor, device: &CudaDevice) -> Result<Pointer> {
    typed!(x.dtype(), T => Pointer::strided::<T>(x, device))
}

/// The logits of sinks, if there are any.
pub fn sinks(sinks: Option<&Sinks>, device: &CudaDevice) -> Result<Pointer> {
    sinks.map_or(Ok(Pointer::NOTHING), |sinks| Pointer::to::<f32>(sinks.tensor(), device))
}

/// The arguments by which `attention.cu` makes scores of products and knows the keys that a query sees: `Rule` there.
pub fn rule(site: &Site) -> [Argument; 4] {
    use std::f32::consts::LOG2_E;
    let (unit, inner) = match site.softcap {
        Some(cap) => (LOG2_E, 2.0 * LOG2_E * site.scale / cap),
        None => (LOG2_E * site.scale, 0.0),
    };
    [Float(unit), Float(inner), Float(site.softcap.unwrap_or(0.0)), int(site.window.unwrap_or(0))]
}

/// A count or a position. Contexts have fewer than an i32 counts; a window that is larger shows all, as none does.
pub fn int(n: usize) -> Argument {
    Int(i32::try_from(n).unwrap_or(i32::MAX))
}

/// The narrowest of the kernels for heads of `d`, if there is one.
pub fn width(d: usize, widths: &[usize]) -> Result<usize> {
    match widths.iter().find(|width| d <= **width) {
        Some(width) => Ok(*width),
        None => candle_core::bail!("This is a bug: there is no attention kernel for heads of {d}"),
    }
}

/// Bytes of shared memory of a block of the kernels of a width: two blocks of `keys` keys and values, and `kept` queries. A row is 16
/// bytes longer than its numbers.
pub fn shared_bytes(width: usize, keys: usize, kept: usize) -> u32 {
    ((kept + 4 * keys) * 2 * (width + 8)) as u32
}
