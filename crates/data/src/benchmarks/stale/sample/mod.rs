//! The built-in sample: scenarios and distractor sessions written for this project in the shape of STALE.
//!
//! Owns the texts. Put together with
//! [`super::haystack`]. The categories and attributes are those of the seed ontology (STALE, table 4).

use std::sync::LazyLock;

use super::haystack::{Distractor, HaystackError, Scenario, assemble};
use crate::benchmarks::SampleSpec;
use crate::case::Case;

pub(super) const FILE: &str = "stale-sample.json";

/// Sessions of a sample case unless asked otherwise. The history alone then has 3,800 to 4,150 tokens of SmolLM2's
/// tokeniser (4,000 on average), so that a context of 4,096 tokens, which also holds the question and the answer, shows
/// truncation at work.
pub const DEFAULT_SESSIONS: usize = 16;

pub fn scenarios() -> &'static [Scenario] {
    static PARSED: LazyLock<Vec<Scenario>> = LazyLock::new(|| {
        // Part of the program, not input; a test reads it.
        serde_json::from_str(include_str!("scenarios.json")).unwrap_or_default()
    });
    &PARSED
}

pub fn distractors() -> &'static [Distractor] {
    static PARSED: LazyLock<Vec<Distractor>> = LazyLock::new(|| {
        // Part of the program, not input; a test reads it.
        serde_json::from_str(include_str!("distractors.json")).unwrap_or_default()
    });
    &PARSED
}

pub fn cases(spec: SampleSpec) -> Result<Vec<Case>, HaystackError> {
    let sessions = spec.segments.unwrap_or(DEFAULT_SESSIONS);
    scenarios().iter().map(|scenario| assemble(scenario, distractors(), spec.seed, sessions)).collect()
}
