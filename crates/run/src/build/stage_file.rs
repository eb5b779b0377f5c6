//! Lines of `stages/NN-name.jsonl`: the attempts at a row, then its outcome; at the end, that the stage is whole.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use palimpsest_data::build::Row;
use palimpsest_data::ground::jsonl::{JsonlError, RowLog, read_rows};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Line {
    Attempt(Box<Attempt>),
    Row(Box<Outcome>),
    /// All rows have outcomes. `rows`: how many the stage took.
    End {
        rows: usize,
        /// The number of outcomes of a maker of all rows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        outcomes: Option<usize>,
        /// Of the rows that a maker of all rows took and of the ids of its outcomes, in their order.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digest: Option<String>,
    },
}

/// One attempt at a row, or at a step of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attempt {
    pub row: String,
    /// From 0, over all steps.
    pub attempt: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<Asked>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Checked>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub judges: Vec<Judged>,
    /// `accepted`, or the reason: `error`, `refused`, `empty`, `cut`, `schema`, `check NAME`, `judge NAME`.
    pub verdict: String,
    /// Told to the next attempt.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

impl Attempt {
    /// The question, and the judges' ones.
    pub fn asked(&self) -> impl Iterator<Item = &Asked> {
        self.asked.iter().chain(self.judges.iter().map(|judge| &judge.asked))
    }
}

pub const ACCEPTED: &str = "accepted";
pub const ERROR: &str = "error";

/// A question to a model, and what it said.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    /// SHA-256 of the messages as JSON.
    pub prompt: String,
    pub seed: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reply: String,
    #[serde(default, skip_serializing_if = "is_turn")]
    pub ending: Ending,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parsed: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ending {
    #[default]
    Turn,
    /// At the limit of tokens.
    Cut,
    Refused,
    /// No text: the choices were scored.
    Scored,
}

fn is_turn(ending: &Ending) -> bool {
    *ending == Ending::Turn
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checked {
    pub name: String,
    pub pass: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Judged {
    pub name: String,
    pub pass: bool,
    pub asked: Asked,
}

/// The outcome of a row that the stage took.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    pub id: String,
    /// Rows of the stages, tables and sources that it was formed of.
    pub parents: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub made: Vec<Row>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rejected: Vec<Rejected>,
    /// Fields that the stage added to the row or changed, as they were before; null if there was none.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub before: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rejected {
    pub id: String,
    pub reason: String,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub fields: Map<String, Value>,
}

/// The attempts at a row, and what became of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Passed {
    pub attempts: Vec<Attempt>,
    pub outcome: Outcome,
}

impl Passed {
    /// The error of the last attempt, if it was one.
    pub fn error(&self) -> Option<&str> {
        self.attempts.last().filter(|last| last.verdict == ERROR).map(|last| last.why.as_str())
    }

    pub fn lines(self) -> impl Iterator<Item = Line> {
        let attempts = self.attempts.into_iter().map(|attempt| Line::Attempt(Box::new(attempt)));
        attempts.chain([Line::Row(Box::new(self.outcome))])
    }
}

/// Opens or creates a file. Attempts after the last outcome are cut off: their row is asked again.
pub fn open(dir: &Path, name: &str) -> Result<RowLog<Line>, JsonlError> {
    let mut log: RowLog<Line> = RowLog::open(dir, name)?;
    let torn = log.rows.iter().rev().take_while(|line| matches!(line, Line::Attempt(_))).count();
    if torn > 0 {
        let kept = log.rows[..log.rows.len() - torn].to_vec();
        log.rewrite(kept)?;
    }
    Ok(log)
}

/// Lines of a file that another process may be writing.
pub fn read(dir: &Path, name: &str) -> Result<Vec<Line>, JsonlError> {
    read_rows(dir, name)
}

pub fn outcomes(lines: &[Line]) -> impl Iterator<Item = &Outcome> {
    lines.iter().filter_map(|line| match line {
        Line::Row(outcome) => Some(&**outcome),
        _ => None,
    })
}

pub fn attempts(lines: &[Line]) -> impl Iterator<Item = &Attempt> {
    lines.iter().filter_map(|line| match line {
        Line::Attempt(attempt) => Some(&**attempt),
        _ => None,
    })
}

/// Rows that a stage took, if it is whole.
pub fn taken(lines: &[Line]) -> Option<usize> {
    match lines.last() {
        Some(Line::End { rows, .. }) => Some(*rows),
        _ => None,
    }
}

/// Rows that a stage made so far.
pub fn made(lines: &[Line]) -> impl Iterator<Item = &Row> {
    outcomes(lines).flat_map(|outcome| &outcome.made)
}
