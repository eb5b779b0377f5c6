//! What every retriever does.

use crate::data::Case;

/// Orders the segments of a history for a query.
pub trait Rank {
    /// The places of all of the case's segments in its history, the best first.
    ///
    /// # Errors
    /// Why it cannot, for the error of the probe.
    fn rank(&mut self, case: &Case, query: &str) -> Result<Vec<usize>, String>;
}
