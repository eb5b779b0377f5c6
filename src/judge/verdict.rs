//! What a judge says of an answer.

/// A verdict on one response.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// Whether the response is right.
    pub correct: bool,
    /// The probability of `true` against `false`, where the judge was read by scoring.
    pub probability: Option<f64>,
    /// Why, in the judge's words.
    pub reason: Option<String>,
}
