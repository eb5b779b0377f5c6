//! The built-in sample: scenarios and distractor sessions written for this project in the shape of STALE.
//!
//! Owns the texts. Called by [`crate::data::dataset`] and `palimpsest data sample`, which put them together with
//! [`crate::data::haystack`]. The categories and attributes are those of the seed ontology (STALE, table 4).

use std::sync::LazyLock;

use super::Case;
use super::haystack::{Distractor, HaystackError, Scenario, assemble};

/// Sessions of a sample case unless asked otherwise. The history alone then has 3,800 to 4,150 tokens of SmolLM2's
/// tokeniser (4,000 on average), so that a context of 4,096 tokens, which also holds the question and the answer, shows
/// truncation at work.
pub const DEFAULT_SESSIONS: usize = 16;

/// How the sample is assembled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleSpec {
    /// Sessions of each case.
    pub sessions: usize,
    /// Seed of the assembly.
    pub seed: u64,
}

impl Default for SampleSpec {
    fn default() -> Self {
        SampleSpec { sessions: DEFAULT_SESSIONS, seed: 0 }
    }
}

/// The sample's scenarios, T1 and T2 by turns.
pub fn scenarios() -> &'static [Scenario] {
    static PARSED: LazyLock<Vec<Scenario>> = LazyLock::new(|| {
        // Part of the program, not input; a test reads it.
        serde_json::from_str(include_str!("scenarios.json")).unwrap_or_default()
    });
    &PARSED
}

/// The sample's distractor sessions.
pub fn distractors() -> &'static [Distractor] {
    static PARSED: LazyLock<Vec<Distractor>> = LazyLock::new(|| {
        // Part of the program, not input; a test reads it.
        serde_json::from_str(include_str!("distractors.json")).unwrap_or_default()
    });
    &PARSED
}

/// The sample's cases in the order of the scenarios.
pub fn cases(spec: SampleSpec) -> Result<Vec<Case>, HaystackError> {
    scenarios().iter().map(|scenario| assemble(scenario, distractors(), spec.seed, spec.sessions)).collect()
}
