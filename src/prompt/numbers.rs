//! Under which numbers the segments of a history are shown.
//!
//! Chosen by `palimpsest run`, part of a run's identity, followed by the prompt builder.

use serde::{Deserialize, Serialize};

/// The number that a segment's template gets. In a history that was not cut the first two are the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SegmentNumbers {
    /// The place among the segments shown, from 1: gaps would point at what was left, and the evidence is always left.
    #[default]
    Consecutive,
    /// The place in the whole history, from 1.
    Original,
    /// Nothing: `number` is undefined.
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

    /// True if it is what runs have that say nothing of it.
    pub fn is_default(&self) -> bool {
        *self == SegmentNumbers::default()
    }
}
