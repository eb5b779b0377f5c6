//! The retriever trait and the segment texts that retrievers search.

use palimpsest_data::case::{Case, Segment};

pub trait Rank {
    fn rank(&mut self, case: &Case, query: &str) -> Result<Vec<usize>, String>;
}

/// Searched text of each segment: the date in words if there is one (`August 15, 1969`), then the turns, without speakers.
pub(super) fn texts(case: &Case) -> Vec<String> {
    let said = |segment: &Segment| {
        let date = segment.time.map(|time| time.strftime("%B %-d, %Y").to_string());
        let turns = segment.turns.iter().map(|turn| turn.content.clone());
        date.into_iter().chain(turns).collect::<Vec<_>>().join("\n")
    };
    case.history.segments.iter().map(said).collect()
}
