//! What came of every probe, as a benchmark's own tables count it.

use std::collections::BTreeMap;

use crate::data::Notes;
use crate::ground::sheet::Sheet;

/// One planned probe under one condition of one run, by one judge. Denominators are the plan's: what has no clean verdict is here too,
/// and counts as wrong.
#[derive(Debug, Clone, Copy)]
pub struct Graded<'a> {
    /// What the run is called; rows of a table that differ in the condition alone share it.
    pub run: &'a str,
    /// What answered.
    pub model: &'a str,
    /// The data's name.
    pub dataset: &'a str,
    /// Who judged; absent where nobody has.
    pub judge: Option<&'a str>,
    /// The setting; empty for the plain one.
    pub condition: &'a str,
    /// How often the same was asked before.
    pub repetition: u32,
    /// The case's id.
    pub case: &'a str,
    /// The probe's id.
    pub probe: &'a str,
    /// The case's labels.
    pub labels: &'a BTreeMap<String, String>,
    /// The probe's facets.
    pub facets: &'a BTreeMap<String, String>,
    /// What only the judge saw of the probe.
    pub notes: &'a Notes,
    /// Whether there is an answer.
    pub answered: bool,
    /// The answer.
    pub answer: Option<&'a str>,
    /// Right or wrong, where a clean verdict says so.
    pub correct: Option<bool>,
    /// The score of a clean verdict.
    pub score: Option<u32>,
    /// The word that a clean verdict chose.
    pub choice: Option<&'a str>,
    /// The probability of what a judge by scoring said.
    pub probability: Option<f64>,
}

/// How tables are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableOptions {
    /// Draws of every bootstrap.
    pub resamples: usize,
    /// Its seed.
    pub seed: u64,
}

/// A benchmark's own table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// One word, for files and JSON: `waterfall`.
    pub key: String,
    /// For people, with the table of the paper that it is.
    pub title: String,
    /// What it holds.
    pub sheet: Sheet,
}
