//! bf16 on the CPU: conversions, and detection of AVX512-BF16.
//!
//! Two consecutive bf16 fill a `u32`, the first in the low half, as AVX512-BF16 expects: one instruction multiplies two pairs per lane
//! and adds both products to an f32. Attention and linear layers each have such a kernel and an f32 fallback.

use candle_core::{CpuStorage, DType, Device, Result, Storage, Tensor};
use half::bf16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

/// Elements per task.
const TASK: usize = 1 << 14;

/// True if the processor supports AVX512-BF16.
pub(crate) fn multiplies() -> bool {
    #[cfg(target_arch = "x86_64")]
    // The surrounding kernels are compiled by pulp and need vectors of the same width.
    return pulp::x86::V4::try_new().is_some() && std::arch::is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Bits of the nearest bf16, ties to even; NaN stays NaN.
#[inline(always)]
pub(crate) fn round(x: f32) -> u16 {
    let bits = x.to_bits();
    let nearest = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    (if x.is_nan() { (bits >> 16) | 0x40 } else { nearest }) as u16
}

#[inline(always)]
pub(crate) fn wide(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[inline(always)]
pub(crate) fn pair(first: u16, second: u16) -> u32 {
    u32::from(first) | u32::from(second) << 16
}

#[inline(always)]
pub(crate) fn both(pair: u32) -> [f32; 2] {
    [f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000)]
}

/// Reinterprets a vector as bf16; for unsafe blocks. A macro, since a function that is not inlined goes through memory.
#[cfg(target_arch = "x86_64")]
macro_rules! bf16s {
    ($bits:expr) => {
        std::mem::transmute::<std::arch::x86_64::__m512i, std::arch::x86_64::__m512bh>($bits)
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use bf16s;

/// Inlined, so that it is compiled with the features of the surrounding dispatch.
#[inline(always)]
pub(crate) fn widen(from: &[bf16], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from.reinterpret_cast()) {
        *to = wide(*from);
    }
}

/// Converts slices in parallel tasks.
fn by_tasks<A: Sync, B: Default + Clone + Send>(from: &[A], f: impl Fn(&[A], &mut [B]) + Sync) -> Vec<B> {
    let mut to = vec![B::default(); from.len()];
    to.par_chunks_mut(TASK).zip(from.par_chunks(TASK)).for_each(|(to, from)| f(from, to));
    to
}

/// Rounds f32 to bf16 bits.
pub(crate) struct Round<'a>(pub &'a [f32], pub &'a mut [u16]);

impl pulp::WithSimd for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        for (to, from) in self.1.iter_mut().zip(self.0) {
            *to = round(*from);
        }
    }
}

struct Widen<'a>(&'a [bf16], &'a mut [f32]);

impl pulp::WithSimd for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        widen(self.0, self.1);
    }
}

pub(crate) fn rounded(from: &[f32]) -> Vec<bf16> {
    by_tasks(from, |from, to: &mut [bf16]| pulp::Arch::new().dispatch(Round(from, to.reinterpret_cast_mut())))
}

/// Converts dtypes: f32 <-> bf16 on the CPU in parallel, others by Candle.
pub(crate) fn to_dtype(tensor: &Tensor, dtype: DType) -> Result<Tensor> {
    let (from, on_cpu) = (tensor.dtype(), tensor.device().is_cpu());
    if from == dtype || !on_cpu || tensor.elem_count() < TASK {
        return tensor.to_dtype(dtype);
    }
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let Some((start, end)) = layout.contiguous_offsets() else { return tensor.to_dtype(dtype) };
    match (&*storage, dtype) {
        (Storage::Cpu(CpuStorage::F32(data)), DType::BF16) => {
            Tensor::from_vec(rounded(&data[start..end]), tensor.shape(), &Device::Cpu)
        }
        (Storage::Cpu(CpuStorage::BF16(data)), DType::F32) => {
            let wide = by_tasks(&data[start..end], |from, to| pulp::Arch::new().dispatch(Widen(from, to)));
            Tensor::from_vec(wide, tensor.shape(), &Device::Cpu)
        }
        _ => tensor.to_dtype(dtype),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_and_widened_as_the_half_crate_does() -> Result<()> {
        let mut bits = 1u32;
        let mut numbers: Vec<f32> = (0..40_000)
            .map(|_| {
                bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                f32::from_bits(bits)
            })
            .collect();
        let ties = [0x3f80_8000u32, 0x3f81_8000, 0x7f7f_ffff, 0, 0x8000_0000, 0x7f80_0000, 0x0000_8001];
        numbers.extend(ties.map(f32::from_bits));
        let tensor = Tensor::from_slice(&numbers, numbers.len(), &Device::Cpu)?;
        let (ours, theirs) = (to_dtype(&tensor, DType::BF16)?, tensor.to_dtype(DType::BF16)?);
        let bits = |t: &Tensor| -> Result<Vec<u16>> {
            Ok(t.to_vec1::<bf16>()?
                .into_iter()
                .map(|x| if x.is_nan() { 0x7fc0 } else { x.to_bits() })
                .collect())
        };
        assert_eq!(bits(&ours)?, bits(&theirs)?);
        let back = to_dtype(&ours, DType::F32)?.to_vec1::<f32>()?;
        for (back, bf16) in back.iter().zip(ours.to_vec1::<bf16>()?) {
            assert!(back.to_bits() == bf16.to_f32().to_bits() || back.is_nan());
        }
        assert_eq!(both(pair(round(1.5), round(-2.0))), [1.5, -2.0]);
        Ok(())
    }
}
