//! Which kernels attention is computed by, where there is a choice.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, Ordering};

/// A choice of kernels for attention on CUDA. Elsewhere there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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
        /// What brings it.
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

static CHOSEN: AtomicU8 = AtomicU8::new(0);

impl AttentionKernel {
    /// Makes this the choice of the process, from the next call to attention on.
    pub fn choose(self) {
        CHOSEN.store(self as u8, Ordering::Relaxed);
    }

    /// The choice of the process.
    pub fn chosen() -> Self {
        ALL.into_iter().find(|kernel| *kernel as u8 == CHOSEN.load(Ordering::Relaxed)).unwrap_or_default()
    }
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
        assert_eq!(AttentionKernel::chosen(), Auto);
    }
}
