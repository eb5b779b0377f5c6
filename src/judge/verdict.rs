//! Verdicts of a judge on an answer.

use crate::benchmarks::Said;
use crate::chat::StopReason;

/// A verdict on one response.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The verdict.
    pub said: Said,
    /// Where the judge was read by scoring: the probability of what was said against the other words; of `true`, where it is right
    /// or wrong.
    pub probability: Option<f64>,
    /// Why, in the judge's words.
    pub reason: Option<String>,
}

/// Why there is no verdict on an answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the messages print
pub enum NoVerdict {
    /// There is nothing to judge.
    #[error("there is no answer to judge; start the run again to get it, then judge again")]
    NoAnswer,
    /// The reply contradicts itself.
    #[error("two different verdicts in one reply of the judge: {0} and {1}")]
    Differing(Said, Said),
    /// The judge refused.
    #[error("the judge refused: {began}")]
    Refused { began: String },
    /// The limit of new tokens came before the verdict.
    #[error(
        "the judge's reply was cut at {tokens} tokens before the verdict, twice; allow it more tokens; it began: {began}"
    )]
    Cut { tokens: usize, began: String },
    /// Generation ended in the judge's thought.
    #[error("the judge gave no verdict: {}", .0.without_answer(None).unwrap_or_default())]
    Thought(StopReason),
    /// The reply says something else than a verdict of the rubric's kind.
    #[error(
        "the judge's reply has no \"{key}\" that the rubric gives ({values}), twice; the last one said {said}"
    )]
    OffScale { key: &'static str, values: String, said: String },
    /// A whole reply without a verdict.
    #[error("no verdict in the judge's reply, twice (does it decline?); the last one began: {began}")]
    Unreadable { began: String },
    /// A judge by scoring does not score every word.
    #[error("the judge gave {scores} scores for {words} words")]
    Scores { scores: usize, words: usize },
    /// A judge by scoring whose log-probabilities are no numbers to compare.
    #[error("the judge's log-probabilities are {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and "))]
    NotFinite(Vec<f64>),
    /// A judge by scoring gave nothing.
    #[error("the judge said nothing")]
    Nothing,
}
