//! Built-in sample in STALE's format, assembled by [`super::haystack`]. Categories follow the seed ontology (STALE, table 4).

use std::sync::LazyLock;

use super::haystack::{Distractor, HaystackError, Scenario, assemble};
use crate::benchmarks::SampleSpec;
use crate::case::Case;

pub(super) const FILE: &str = "stale-sample.json";

/// Default: 3,800 to 4,150 SmolLM2 tokens (4,000 on average), so that a 4,096-token context truncates.
pub const DEFAULT_SESSIONS: usize = 16;

pub fn scenarios() -> &'static [Scenario] {
    static PARSED: LazyLock<Vec<Scenario>> = LazyLock::new(|| {
        // Embedded; a test parses it.
        serde_json::from_str(include_str!("scenarios.json")).unwrap_or_default()
    });
    &PARSED
}

pub fn distractors() -> &'static [Distractor] {
    static PARSED: LazyLock<Vec<Distractor>> = LazyLock::new(|| {
        // Embedded; a test parses it.
        serde_json::from_str(include_str!("distractors.json")).unwrap_or_default()
    });
    &PARSED
}

pub fn cases(spec: SampleSpec) -> Result<Vec<Case>, HaystackError> {
    let sessions = spec.segments.unwrap_or(DEFAULT_SESSIONS);
    scenarios().iter().map(|scenario| assemble(scenario, distractors(), spec.seed, sessions)).collect()
}
