//! Verdicts that follow from an answer by a rule, without a judging model.
//!
//! A benchmark whose answers say by themselves what they choose has readings ([`super::Benchmark::readings`]); each is a judge of its
//! own, beside the others.

use std::collections::BTreeMap;

use crate::case::Notes;

/// A statement on a response, by the kind of verdict that a rubric asks for.
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
    /// True if it reads the scores of a probe's options, which not every model gives.
    pub of_scores: bool,
    /// False of a probe, by its notes, to which no answer is right by this rule: it gets no verdict and counts nowhere.
    pub asks: fn(&Notes) -> bool,
    pub read: fn(&Given<'_>) -> Result<Told, NotRead>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotRead(pub String);

#[derive(Debug, Clone, Copy)]
pub struct Given<'a> {
    pub case: &'a str,
    /// The setting that it was asked under ([`super::Benchmark::arrange`]).
    pub setting: &'a str,
    pub seed: u64,
    pub answer: Option<&'a str>,
    pub thought: Option<&'a str>,
    /// The natural-log probability of each of the probe's options ([`crate::case::Probe::options`]) or contrasted values
    /// ([`crate::case::Probe::contrast`]), where the model gave them.
    pub scores: Option<&'a BTreeMap<String, f64>>,
    pub notes: &'a Notes,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    pub said: Said,
    /// True if that is right; `None` where it follows from what was said, or from nothing.
    pub correct: Option<bool>,
    /// The probability of what was said, where it was weighed against others.
    pub probability: Option<f64>,
}
