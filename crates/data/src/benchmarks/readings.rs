//! Rule-based verdicts without a judge model ([`super::Benchmark::readings`]). Each reading counts as a judge of its own.

use std::collections::BTreeMap;

use crate::case::Notes;

#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    Correct(bool),
    Score(f64),
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

#[derive(Debug, Clone, Copy)]
pub struct Reading {
    pub name: &'static str,
    pub about: &'static str,
    /// Reads option scores, which not every model provides.
    pub of_scores: bool,
    /// False if no answer is right by this rule; the probe then gets no verdict and is not counted.
    pub asks: fn(&Notes) -> bool,
    pub read: fn(&Given<'_>) -> Result<Told, NotRead>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotRead(pub String);

#[derive(Debug, Clone, Copy)]
pub struct Given<'a> {
    pub case: &'a str,
    pub setting: &'a str,
    pub seed: u64,
    pub answer: Option<&'a str>,
    pub thought: Option<&'a str>,
    /// Natural-log probabilities of the options ([`crate::case::Probe::options`]) or contrasted values ([`crate::case::Probe::contrast`]).
    pub scores: Option<&'a BTreeMap<String, f64>>,
    pub notes: &'a Notes,
}

impl<'a> Given<'a> {
    pub(super) fn answer(&self) -> Result<&'a str, NotRead> {
        let none = "there is no answer; start the run again to get it, then judge again";
        self.answer.ok_or_else(|| NotRead(none.to_owned()))
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    pub said: Said,
    /// `None` if implied by `said`, or undefined.
    pub correct: Option<bool>,
    /// Probability of the choice among the alternatives.
    pub probability: Option<f64>,
}
