//! What only a CUDA driver can tell: the card, and the most memory that was taken of it. In builds without the feature
//! `cuda` the same functions tell nothing, so that callers need not ask which build they are in.

#[cfg(not(feature = "cuda"))]
mod disabled;
#[cfg(feature = "cuda")]
mod enabled;

#[cfg(not(feature = "cuda"))]
pub use disabled::{card, forget_most_used, most_used};
#[cfg(feature = "cuda")]
pub use enabled::{card, forget_most_used, most_used};

/// A card as its driver describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// Its name.
    pub name: String,
    /// Bytes of memory.
    pub total: u64,
    /// Of those, free.
    pub free: u64,
    /// Compute capability, major and minor.
    pub compute_capability: (i32, i32),
    /// The newest CUDA that the driver supports, major and minor.
    pub cuda: Option<(i32, i32)>,
    /// Whether memory comes from the driver's pool, which keeps a high-water mark.
    pub pool: bool,
}
