//! What a judge says of an answer.

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

/// What a judge can say of a response, by the kind of verdict that the rubric asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// Whether it is right.
    Correct(bool),
    /// How good it is.
    Score(u32),
    /// One of the rubric's words.
    Choice(String),
}

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Said::Correct(correct) => write!(f, "{correct}"),
            Said::Score(score) => write!(f, "{score}"),
            Said::Choice(choice) => write!(f, "{choice}"),
        }
    }
}
