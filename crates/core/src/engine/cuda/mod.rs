//! CUDA cards: opening one, and the free memory that its driver tells.
//!
//! Called by the list of devices and by the plan of memory. Builds without the feature `cuda` have the same functions, which
//! say that there is no card, so that callers need no `cfg`.

#[cfg(not(feature = "cuda"))]
mod disabled;
#[cfg(feature = "cuda")]
mod enabled;

#[cfg(not(feature = "cuda"))]
pub(super) use disabled::{available_bytes, open};
#[cfg(feature = "cuda")]
pub(super) use enabled::{available_bytes, open};
