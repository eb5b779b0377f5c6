//! Selection of CUDA attention kernels.

use std::fmt;
use std::str::FromStr;

use candle_core::DType;
use serde::Serialize;

/// CUDA attention kernels. Other devices have no choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AttentionKernel {
    /// The fastest verified: FlashAttention if built in, else the fused kernels if they pass a self-test on the device, else products.
    #[default]
    Auto,
    /// Matrix products with a softmax in between.
    Products,
    /// The fused kernels, without self-test, where they support a layer; else products.
    Fused,
    /// FlashAttention 2 where it supports a layer, else products. Needs the feature `flash-attn`.
    Flash,
    /// The fused kernels, with prefill by Hopper's warpgroup products where the card has them and they pass a self-test.
    Hopper,
}

use AttentionKernel::{Auto, Flash, Fused, Hopper, Products};

/// A kernel that is unknown or not compiled in.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct KernelError(String);

const ALL: [AttentionKernel; 5] = [Auto, Products, Fused, Flash, Hopper];

impl fmt::Display for AttentionKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Auto => "auto",
            Products => "products",
            Fused => "fused",
            Flash => "flash",
            Hopper => "hopper",
        })
    }
}

impl FromStr for AttentionKernel {
    type Err = KernelError;

    fn from_str(name: &str) -> Result<Self, KernelError> {
        let found = ALL.into_iter().find(|kernel| kernel.to_string() == name);
        let kernel = found.ok_or_else(|| {
            KernelError(format!(
                "`{name}` is no attention kernel; give auto, products, fused, flash or hopper"
            ))
        })?;
        let (built, feature) = match kernel {
            Auto | Products => (true, ""),
            Fused | Hopper => (cfg!(feature = "cuda"), "cuda"),
            Flash => (cfg!(feature = "flash-attn"), "flash-attn"),
        };
        built.then_some(kernel).ok_or_else(|| {
            KernelError(format!(
                "this build has no attention kernel `{kernel}`: build with `--features {feature}`, or give auto"
            ))
        })
    }
}

impl AttentionKernel {
    /// The kernel for a layer's attention on CUDA without hidden keys, if its self-test passes; never [`Auto`].
    pub fn of_layer(self, shape: &AttentionShape) -> Self {
        let flash = self == Flash || (self == Auto && cfg!(feature = "flash-attn"));
        match self {
            _ if flash && shape.flash_serves() => Flash,
            Hopper if shape.fused_serves() => Hopper,
            _ => self.of_branches(shape),
        }
    }

    /// As `of_layer`, for decode of several branches, which FlashAttention does not support.
    pub fn of_branches(self, shape: &AttentionShape) -> Self {
        if matches!(self, Auto | Fused | Hopper) && shape.fused_serves() { Fused } else { Products }
    }

    /// As `of_layer`, for segment sums.
    pub fn of_sums(self, shape: &AttentionShape) -> Self {
        if matches!(self, Auto | Fused | Hopper) && shape.sums_served() { Fused } else { Products }
    }
}

/// Layer properties that decide which CUDA kernels support it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// Dtype of queries, keys and values.
    pub dtype: DType,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Score scale.
    pub scale: f32,
    /// Sliding window: visible keys per query, itself included; `None` for all.
    pub window: Option<usize>,
    /// Soft cap of the scores.
    pub softcap: Option<f32>,
    /// Layer has attention sinks.
    pub sinks: bool,
}

impl AttentionShape {
    /// True if the fused kernels support it: half precision, supported head width, rows aligned to 8 bytes.
    pub fn fused_serves(&self) -> bool {
        self.dtype != DType::F32 && self.sums_served()
    }

    /// True if the fused kernels support its segment sums: any head in f32, supported heads in half precision.
    pub fn sums_served(&self) -> bool {
        match self.dtype {
            DType::F32 => true,
            // The tensor-core kernels take the largest product as the largest score, so the scale must be positive.
            DType::F16 | DType::BF16 => {
                self.head_dim <= 256 && self.head_dim.is_multiple_of(4) && self.scale > 0.0
            }
            _ => false,
        }
    }

    /// True if FlashAttention 2 supports it: half precision, supported head width, no sinks, no soft cap; windows are supported.
    pub fn flash_serves(&self) -> bool {
        matches!(self.dtype, DType::F16 | DType::BF16)
            && self.head_dim <= 256
            && self.head_dim.is_multiple_of(8)
            && !self.sinks
            && self.softcap.is_none()
    }
}

/// The kernels of a layer on a device, after their self-tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Settled {
    /// Attention output.
    pub forward: AttentionKernel,
    /// Segment sums.
    pub sums: AttentionKernel,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_named_and_those_that_are_not_built_refused() {
        assert_eq!("products".parse(), Ok(Products));
        assert_eq!("auto".parse(), Ok(Auto));
        let unknown = "fast".parse::<AttentionKernel>().unwrap_err();
        let expected = "`fast` is no attention kernel; give auto, products, fused, flash or hopper";
        assert_eq!(unknown.to_string(), expected);
        for ours in [Fused, Hopper] {
            match ours.to_string().parse::<AttentionKernel>() {
                Ok(kernel) => assert!(cfg!(feature = "cuda") && kernel == ours),
                Err(error) => assert!(error.to_string().contains("--features cuda"), "{error}"),
            }
        }
    }
}
