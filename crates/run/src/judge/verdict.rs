use crate::chat::StopReason;
use palimpsest_data::benchmarks::Said;

#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    pub said: Said,
    /// By scoring: probability of the verdict; of `true` for right/wrong verdicts.
    pub probability: Option<f64>,
    pub reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum NoVerdict {
    #[error("there is no answer to judge; start the run again to get it, then judge again")]
    NoAnswer,
    #[error("two different verdicts in one reply of the judge: {0} and {1}")]
    Differing(Said, Said),
    #[error("the judge refused: {began}")]
    Refused { began: String },
    #[error(
        "the judge's reply was cut at {tokens} tokens before the verdict, twice; allow it more tokens; it began: {began}"
    )]
    Cut { tokens: usize, began: String },
    #[error("the judge gave no verdict: {}", .0.without_answer(None).unwrap_or_default())]
    Thought(StopReason),
    #[error(
        "the judge's reply has no \"{key}\" that the rubric gives ({values}), twice; the last one said {said}"
    )]
    OffScale { key: &'static str, values: String, said: String },
    #[error("no verdict in the judge's reply, twice (does it decline?); the last one began: {began}")]
    Unreadable { began: String },
    #[error("the judge gave {scores} scores for {words} words")]
    Scores { scores: usize, words: usize },
    #[error("the judge's log-probabilities are {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and "))]
    NotFinite(Vec<f64>),
    #[error("the judge said nothing")]
    Nothing,
}
