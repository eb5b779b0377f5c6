//! The memory systems of a run: started before its identity is known, since what they say of themselves is part of it.

use super::header::MemoryIdentity;
use crate::memory::system::Searches;

/// Started systems.
#[derive(Default)]
pub struct MemorySystems {
    /// For the run's identity.
    pub identities: Vec<MemoryIdentity>,
    /// For its conditions.
    pub searches: Vec<Box<dyn Searches>>,
}
