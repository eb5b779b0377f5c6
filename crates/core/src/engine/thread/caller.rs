//! Callers, for fair scheduling.

use std::sync::atomic::{AtomicU64, Ordering};

/// A source of requests. Prompts of one caller are read in order, in turn with those of other callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller(u64);

impl Caller {
    /// A unique caller.
    #[expect(clippy::new_without_default, reason = "each one is another")]
    pub fn new() -> Self {
        Caller(next_number())
    }
}

pub(super) fn next_number() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}
