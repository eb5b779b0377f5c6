//! What a judge says of an answer.

use crate::benchmarks::Said;

/// A verdict on one response.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// What it is.
    pub said: Said,
    /// Where the judge was read by scoring: the probability of what was said against the other words; of `true`, where it is right
    /// or wrong.
    pub probability: Option<f64>,
    /// Why, in the judge's words.
    pub reason: Option<String>,
}
