//! The trait of retrievers, and the texts that they search.

use palimpsest_data::case::{Case, Segment};

/// Orders the segments of a history for a query.
pub trait Rank {
    /// The places of all of the case's segments in its history, the best first.
    fn rank(&mut self, case: &Case, query: &str) -> Result<Vec<usize>, String>;
}

/// The searched text of each segment: its date in words (`August 15, 1969`), where it has one, and all that its turns say. Who speaks
/// is left out.
pub(super) fn texts(case: &Case) -> Vec<String> {
    let said = |segment: &Segment| {
        let date = segment.time.map(|time| time.strftime("%B %-d, %Y").to_string());
        let turns = segment.turns.iter().map(|turn| turn.content.clone());
        date.into_iter().chain(turns).collect::<Vec<_>>().join("\n")
    };
    case.history.segments.iter().map(said).collect()
}
