//! The texts of a case that go into prompts unchanged.

use crate::data::Case;

pub fn contents(case: &Case) -> impl Iterator<Item = &str> {
    let turns = case.history.segments.iter().flat_map(|segment| &segment.turns);
    let queries = case.probes.iter().flat_map(|probe| [probe.query.as_str(), probe.prefix.as_str()]);
    turns.map(|turn| turn.content.as_str()).chain(queries)
}
