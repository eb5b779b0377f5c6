//! What every retriever does, and what it searches.

use crate::data::{Case, Segment};

/// Orders the segments of a history for a query.
pub trait Rank {
    /// The places of all of the case's segments in its history, the best first.
    ///
    /// # Errors
    /// Why it cannot, for the error of the probe.
    fn rank(&mut self, case: &Case, query: &str) -> Result<Vec<usize>, String>;
}

/// What is searched of each segment: all that its turns say, its date and who speaks left out.
pub(super) fn texts(case: &Case) -> Vec<String> {
    let said = |segment: &Segment| {
        segment.turns.iter().map(|turn| turn.content.as_str()).collect::<Vec<_>>().join("\n")
    };
    case.history.segments.iter().map(said).collect()
}
