//! Number formats of a decoder.

use candle_core::{DType, Device};

use crate::transfer::cpu_kernels;

/// Number formats on a device.
///
/// bf16 on the CPU applies to weights and to factors of products, attention included; sums, hidden states, norms, softmax, router and
/// logits are f32. Other devices keep hidden states in the weights' dtype.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Formats {
    /// Weights and factors of products.
    pub dtype: DType,
    /// Hidden states.
    pub activations: DType,
    /// Keys and values in the cache.
    pub cache: DType,
}

/// A cache dtype that the device does not support.
#[derive(Debug, thiserror::Error)]
#[error(
    "a cache in {cache} beside {dtype} on {device}: only the CPU, in f32 or bf16, keeps its cache in another dtype (f32, bf16 or f16); leave `--cache-dtype` out"
)]
pub struct CacheFormat {
    cache: String,
    dtype: String,
    device: &'static str,
}

impl Formats {
    /// Formats for `dtype` on these devices; the cache defaults to `dtype`. Returns an error if the cache dtype differs from that of hidden
    /// states on a device other than the CPU, or with f16.
    pub fn new(dtype: DType, cache: Option<DType>, devices: &[Device]) -> Result<Self, CacheFormat> {
        Self::on(dtype, cache, devices.iter().all(cpu_kernels))
    }

    /// As `new`; `on_cpu`: all devices are the CPU.
    pub fn on(dtype: DType, cache: Option<DType>, on_cpu: bool) -> Result<Self, CacheFormat> {
        let by_slices = on_cpu && matches!(dtype, DType::F32 | DType::BF16);
        let activations = if by_slices { DType::F32 } else { dtype };
        let kept = cache.unwrap_or(dtype);
        let served = by_slices && matches!(kept, DType::F32 | DType::BF16 | DType::F16);
        if !served && kept != activations {
            let name = |dtype: DType| dtype.as_str().to_owned();
            let device = if on_cpu { "the CPU" } else { "an accelerator" };
            return Err(CacheFormat { cache: name(kept), dtype: name(dtype), device });
        }
        Ok(Formats { dtype, activations, cache: kept })
    }

    /// Everything in `dtype`, hidden states included, as on GPUs; on the CPU this is a reference for GPUs.
    pub fn throughout(dtype: DType) -> Self {
        Formats { dtype, activations: dtype, cache: dtype }
    }

    /// True if hidden states are f32.
    pub fn hidden_in_f32(&self) -> bool {
        self.activations == DType::F32
    }

    /// True if products are bf16 and hidden states f32, as on the CPU.
    pub fn half_products(&self) -> bool {
        self.dtype == DType::BF16 && self.activations == DType::F32
    }

    /// The note for formats that are slower than f32, given whether the processor multiplies bf16 (`bfloat::multiplies`). The speeds
    /// are those of docs/models.md.
    pub(super) fn slower_than_f32(&self, multiplies: bool) -> Option<&'static str> {
        (self.half_products() && !multiplies).then_some(
            "bf16 is slower than f32 on this processor, which has no AVX512-BF16: numbers are widened and multiplied in f32 (on a Skylake \
             at 0.82 of f32's speed for 2,048 tokens, 0.70 for 8,192). To halve the cache and multiply in f32, use --dtype f32 \
             --cache-dtype bf16",
        )
    }
}

impl std::fmt::Display for Formats {
    /// The dtype, and the cache's if it differs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.cache == self.dtype {
            true => f.write_str(self.dtype.as_str()),
            false => write!(f, "{} with a cache in {}", self.dtype.as_str(), self.cache.as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_keeps_its_cache_in_what_is_asked_for_and_others_in_their_own_dtype() {
        let of = |dtype, cache, on_cpu| Formats::on(dtype, cache, on_cpu).ok();
        let formats = |dtype, activations, cache| Some(Formats { dtype, activations, cache });
        use DType::{BF16, F16, F32};
        assert_eq!(of(F32, None, true), formats(F32, F32, F32));
        assert_eq!(of(BF16, None, true), formats(BF16, F32, BF16));
        assert_eq!(of(F32, Some(F16), true), formats(F32, F32, F16));
        assert_eq!(of(BF16, Some(F32), true), formats(BF16, F32, F32));
        assert_eq!(of(BF16, Some(BF16), false), formats(BF16, BF16, BF16));
        assert_eq!(of(F16, None, true), formats(F16, F16, F16));
        assert_eq!(of(F16, Some(BF16), true), None);
        assert_eq!(of(BF16, Some(F32), false), None);
        let refusal = Formats::on(BF16, Some(F32), false).unwrap_err().to_string();
        assert!(refusal.contains("a cache in f32 beside bf16 on an accelerator"), "{refusal}");
    }

    #[test]
    fn bf16_is_said_to_be_slower_exactly_where_the_cpu_multiplies_it_in_f32() {
        for (dtype, cache, on_cpu, multiplies, said) in [
            (DType::BF16, None, true, false, true),
            (DType::BF16, Some(DType::F32), true, false, true),
            (DType::BF16, None, true, true, false),
            (DType::BF16, None, false, false, false),
            (DType::F32, None, true, false, false),
            (DType::F32, Some(DType::BF16), true, false, false),
            (DType::F16, None, true, false, false),
        ] {
            let note = Formats::on(dtype, cache, on_cpu).unwrap().slower_than_f32(multiplies);
            assert_eq!(
                note.is_some(),
                said,
                "{dtype:?}, {cache:?}, on the CPU: {on_cpu}, has it: {multiplies}"
            );
            assert!(note.is_none_or(|note| note.contains("--dtype f32 --cache-dtype bf16")), "{note:?}");
        }
        let as_on_gpus = Formats::throughout(DType::BF16);
        assert_eq!(as_on_gpus.slower_than_f32(false), None);
    }
}
