//! CUDA devices and their free memory. Without the feature `cuda` the same functions report no device, so callers need no `cfg`.

#[cfg(not(feature = "cuda"))]
mod disabled;
#[cfg(feature = "cuda")]
mod enabled;

#[cfg(not(feature = "cuda"))]
pub(super) use disabled::{available_bytes, open};
#[cfg(feature = "cuda")]
pub(super) use enabled::{available_bytes, open};
