//! Callers, for fair scheduling and for the reuse of cached prompts.

use std::sync::atomic::{AtomicU64, Ordering};

/// Requests that may reuse each other's cached prompts. Requests of different scopes never do.
///
/// Scopes are equal if their digests are; names that clients choose need a cryptographic one. The default is a scope like any other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scope(pub [u8; 32]);

/// A source of requests. Prompts of one caller are read in order, in turn with those of other callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    number: u64,
    scope: Scope,
}

impl Caller {
    /// A unique caller in the default scope.
    #[expect(clippy::new_without_default, reason = "each one is another")]
    pub fn new() -> Self {
        Caller::within(Scope::default())
    }

    /// A unique caller in a scope.
    pub fn within(scope: Scope) -> Self {
        Caller { number: next_number(), scope }
    }

    /// Its scope.
    pub fn scope(self) -> Scope {
        self.scope
    }
}

pub(super) fn next_number() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}
