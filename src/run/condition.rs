//! What differs between answers to one probe in one run.

use serde::{Deserialize, Serialize};

use crate::data::Probe;

/// A condition under which probes are put. Answers, verdicts and attention files are keyed by case, probe and the
/// condition's name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    /// Letters, digits and hyphens; empty for the plain condition.
    pub name: String,
    /// How often the same was asked before: samplers draw from a stream of their own each time.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub repetition: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Condition {
    /// `count` repetitions: the plain condition, `repeat-2`, `repeat-3`, ...
    pub fn repetitions(count: u32) -> Vec<Self> {
        let repeated = |repetition| Condition { name: format!("repeat-{}", repetition + 1), repetition };
        std::iter::once(Condition::default()).chain((1..count).map(repeated)).collect()
    }

    /// The condition that this one repeats, by its name: of `repeat-2` the plain one, of `x-repeat-2` it is `x`.
    pub fn base(&self) -> &str {
        if self.repetition == 0 {
            return &self.name;
        }
        let end = format!("repeat-{}", self.repetition + 1);
        self.name.strip_suffix(&end).map_or(&self.name, |base| base.trim_end_matches('-'))
    }
}

/// A probe under a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question<'a> {
    /// What is asked.
    pub probe: &'a Probe,
    /// Under which condition.
    pub condition: &'a Condition,
}

impl std::fmt::Display for Question<'_> {
    /// As progress and errors name it: `SR`, or `SR repeat-2`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&named(&self.probe.id, &self.condition.name))
    }
}

/// A probe and a condition by their names: `SR`, or `SR repeat-2`.
pub fn named(probe: &str, condition: &str) -> String {
    if condition.is_empty() { probe.to_owned() } else { format!("{probe} {condition}") }
}
