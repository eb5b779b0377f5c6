//! Which kernels attention is computed by, where there is a choice.

use std::fmt;
use std::str::FromStr;

use candle_core::DType;
use serde::Serialize;

/// A choice of kernels for attention on CUDA. Elsewhere there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AttentionKernel {
    /// The fastest that is known to be right: FlashAttention where it is built in, else our own kernels after a check on the
    /// card, else products.
    #[default]
    Auto,
    /// Matrix products, and the softmax between them.
    Products,
    /// Our own kernels, unchecked, where they serve a layer; else products.
    Fused,
    /// FlashAttention 2 where it serves a layer, else products. Built with the feature `flash-attn` only.
    Flash,
}

use AttentionKernel::{Auto, Flash, Fused, Products};

/// Why a choice cannot be made.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum KernelError {
    /// No such kernels.
    #[error("`{0}` is no attention kernel; give auto, products, fused or flash")]
    Unknown(String),
    /// Not in this build.
    #[error("this build has no attention kernel `{kernel}`: build with `--features {feature}`, or give auto")]
    NotBuilt {
        /// The choice.
        kernel: AttentionKernel,
        /// The feature that brings it.
        feature: &'static str,
    },
}

const ALL: [AttentionKernel; 4] = [Auto, Products, Fused, Flash];

impl fmt::Display for AttentionKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Auto => "auto",
            Products => "products",
            Fused => "fused",
            Flash => "flash",
        })
    }
}

impl FromStr for AttentionKernel {
    type Err = KernelError;

    fn from_str(name: &str) -> Result<Self, KernelError> {
        let found = ALL.into_iter().find(|kernel| kernel.to_string() == name);
        let kernel = found.ok_or_else(|| KernelError::Unknown(name.to_owned()))?;
        match kernel {
            Fused if !cfg!(feature = "cuda") => Err(KernelError::NotBuilt { kernel, feature: "cuda" }),
            Flash if !cfg!(feature = "flash-attn") => {
                Err(KernelError::NotBuilt { kernel, feature: "flash-attn" })
            }
            _ => Ok(kernel),
        }
    }
}

impl AttentionKernel {
    /// The kernel of a layer's attention on a CUDA card, where nothing is hidden and the kernels hold there: never
    /// [`Auto`].
    pub fn of_layer(self, shape: &AttentionShape) -> Self {
        let flash = self == Flash || (self == Auto && cfg!(feature = "flash-attn"));
        if flash && shape.flash_serves() { Flash } else { self.of_branches(shape) }
    }

    /// The same for one query each of several branches, which FlashAttention has no kernel for.
    pub fn of_branches(self, shape: &AttentionShape) -> Self {
        if matches!(self, Auto | Fused) && shape.fused_serves() { Fused } else { Products }
    }

    /// The same for the sums of rows' weights over segments.
    pub fn of_sums(self, shape: &AttentionShape) -> Self {
        if matches!(self, Auto | Fused) && shape.sums_served() { Fused } else { Products }
    }
}

/// The properties of a layer that decide which kernels compute its attention on CUDA.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// Of queries, keys and values.
    pub dtype: DType,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// The factor of the scores.
    pub scale: f32,
    /// Keys that a query sees, itself among them, if not all before it.
    pub window: Option<usize>,
    /// The soft cap of the scores.
    pub softcap: Option<f32>,
    /// The layer has attention sinks.
    pub sinks: bool,
}

impl AttentionShape {
    /// True if our own kernels compute it on CUDA: half precision, heads whose rows begin at multiples of 8 bytes and are no wider
    /// than the widest kernel.
    pub fn fused_serves(&self) -> bool {
        self.dtype != DType::F32 && self.sums_served()
    }

    /// True if our own kernels sum its weights into segments on CUDA: in f32 of any head, in half precision of those whose
    /// attention they compute.
    pub fn sums_served(&self) -> bool {
        match self.dtype {
            DType::F32 => true,
            // The kernels on tensor cores take the greatest product for the greatest score.
            DType::F16 | DType::BF16 => {
                self.head_dim <= 256 && self.head_dim.is_multiple_of(4) && self.scale > 0.0
            }
            _ => false,
        }
    }

    /// True if FlashAttention 2 computes it on CUDA: half precision, heads that its kernels are built for, causal with or without
    /// a window, and neither sinks nor a soft cap.
    pub fn flash_serves(&self) -> bool {
        matches!(self.dtype, DType::F16 | DType::BF16)
            && self.head_dim <= 256
            && self.head_dim.is_multiple_of(8)
            && !self.sinks
            && self.softcap.is_none()
    }
}

/// The kernels of a layer's attention on a card, once a check there has held or failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Settled {
    /// Its forward.
    pub forward: AttentionKernel,
    /// The sums of rows' weights over segments.
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
        assert_eq!(unknown.to_string(), "`fast` is no attention kernel; give auto, products, fused or flash");
        match "fused".parse::<AttentionKernel>() {
            Ok(kernel) => assert!(cfg!(feature = "cuda") && kernel == Fused),
            Err(error) => assert!(error.to_string().contains("--features cuda"), "{error}"),
        }
    }
}
