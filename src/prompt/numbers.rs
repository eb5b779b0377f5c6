//! Under which numbers the segments of a history are shown.
//!
//! Chosen by `palimpsest run`, part of a run's identity, followed by the prompt builder.

use serde::{Deserialize, Serialize};

/// The number that a segment's template gets. In a history that was not cut the first two are the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum SegmentNumbers {
    /// From 1 without gaps, which would point at what was left
    #[default]
    Consecutive,
    /// Those of the whole history
    Original,
    /// None; needs a session.j2 that does without (docs/prompts.md)
    None,
}

impl SegmentNumbers {
    /// The number of the segment at zero-based `place` of what is shown, which is at `index` of the whole history.
    pub fn of(self, place: usize, index: usize) -> Option<usize> {
        match self {
            SegmentNumbers::Consecutive => Some(place + 1),
            SegmentNumbers::Original => Some(index + 1),
            SegmentNumbers::None => None,
        }
    }

    pub fn is_default(&self) -> bool {
        *self == SegmentNumbers::default()
    }
}
