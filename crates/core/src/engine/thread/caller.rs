//! Callers of an engine's thread, and the numbers that tell them and their requests apart.

use std::sync::atomic::{AtomicU64, Ordering};

/// Someone with requests: their prompts are read one after the other, in turn with those of other callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller(u64);

impl Caller {
    /// A caller unlike all others.
    #[expect(clippy::new_without_default, reason = "each one is another")]
    pub fn new() -> Self {
        Caller(next_number())
    }
}

/// A number unlike all others.
pub fn next_number() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}
