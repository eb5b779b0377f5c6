//! The rows of `why.jsonl`: a label for each answer of a run, and the readings that it rests on.
//!
//! Written by `why`; read by tables, the report, exports and merging. Of several rows on one answer the last counts.

use std::collections::BTreeMap;
use std::path::Path;

use palimpsest_core::ablate::Measure;
use serde::{Deserialize, Serialize};

use super::rows::AnswerKey;
use palimpsest_data::ground::jsonl::{JsonlError, read_rows};

/// The file of a run's folder.
pub const WHY: &str = "why.jsonl";

/// Cause of an answer's verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Label {
    #[serde(rename = "right")]
    Right,
    /// It names the current state, and the verdict calls it wrong.
    #[serde(rename = "misjudged")]
    Misjudged,
    /// No newer evidence is in its context.
    #[serde(rename = "not shown")]
    NotShown,
    /// Blocking the newer evidence changes no more than blocking random text of its size does.
    #[serde(rename = "not read")]
    NotRead,
    /// The newer evidence is read, and without the older one the answer turns.
    #[serde(rename = "overridden")]
    Overridden,
    /// As [`Label::Overridden`], but the older evidence acts through later positions: blocking it changes nothing, removing it does.
    #[serde(rename = "carried")]
    Carried,
    #[default]
    #[serde(rename = "undecided")]
    Undecided,
}

impl Label {
    /// All, in the order of tables.
    pub const ALL: [Label; 7] = [
        Label::Right,
        Label::Misjudged,
        Label::NotShown,
        Label::NotRead,
        Label::Overridden,
        Label::Carried,
        Label::Undecided,
    ];

    /// As rows and tables write it.
    pub fn key(self) -> &'static str {
        match self {
            Label::Right => "right",
            Label::Misjudged => "misjudged",
            Label::NotShown => "not shown",
            Label::NotRead => "not read",
            Label::Overridden => "overridden",
            Label::Carried => "carried",
            Label::Undecided => "undecided",
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WhyRow {
    pub case: String,
    pub probe: String,
    /// The condition's name; absent for the plain one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub condition: String,
    pub label: Label,
    pub why: String,
    /// Label of the judge whose verdict it explains.
    pub judge: String,
    /// The number that was read, and its value with nothing changed; absent where nothing was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plain: Option<Plain>,
    /// Readings of the newer evidence; absent where none is shown or nothing was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newer: Option<SideReadings>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older: Option<SideReadings>,
    /// The search for a certificate; absent where none was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<SearchRow>,
    /// Its result; absent where nothing turns the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<Certificate>,
    /// All readings of the model that were made for the row.
    pub readings: usize,
    pub settings: WhySettings,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhySettings {
    pub seed: u64,
    pub controls: usize,
    /// Most readings of a search.
    pub readings: usize,
    /// True if answers are generated anew and judged where there is no contrast; absent if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub anew: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Plain {
    pub measure: Measure,
    pub value: f64,
}

/// Readings of the evidence of one side, all of its sessions at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SideReadings {
    pub sessions: Vec<String>,
    /// Drop of the number when they are hidden from the question on.
    pub blocked: Compared,
    /// Drop when they are removed and what follows is read again; absent where that was not needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed: Option<Compared>,
}

/// A drop of the number beside those of controls of equal size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// Plain minus changed: above 0 the number needs what was blocked or removed.
    pub drop: f64,
    /// The absolute drop that at most 5% of random sets of equal size exceed; absent where there are too few controls to say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<f64>,
    pub controls: usize,
    /// Control sets under which the answer turned.
    pub flips: usize,
}

impl Compared {
    /// True if the drop is beyond the controls'; `None` where these are too few.
    pub fn is_beyond(&self) -> Option<bool> {
        self.threshold.map(|threshold| self.drop.abs() > threshold)
    }

    /// True if random sets turn the answer too, in more than one of twenty: then its turning says nothing of the evidence.
    pub fn turns_by_chance(&self) -> bool {
        by_chance(self.flips, self.controls)
    }
}

/// True if control sets turn an answer in more than one of twenty, the set that they are compared with counted as one more.
pub fn by_chance(flips: usize, controls: usize) -> bool {
    20 * (flips + 1) > controls + 1
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchRow {
    pub candidates: usize,
    pub sessions: usize,
    pub layers: usize,
    /// True if the readings were spent before it ended.
    pub spent: bool,
}

/// A set of knock-outs that turns an answer: with the sessions hidden from the question on, its contrast has the other sign, or an answer
/// generated anew the other verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Certificate {
    pub sessions: Vec<String>,
    /// Layers at which blocking them is enough, half-open; absent where all are needed or no readings were left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<[usize; 2]>,
    /// True if the answer does not turn without any one of them.
    pub irreducible: bool,
    pub before: f64,
    /// The number with them blocked at all layers.
    pub after: f64,
    /// The answer generated anew under it, where a judge told that it turned; absent of contrasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// Control sets of as many stretches of equal length, and those under which the answer turned.
    pub controls: ControlFlips,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlFlips {
    pub sets: usize,
    pub flips: usize,
}

impl WhyRow {
    pub fn key(&self) -> AnswerKey<&str> {
        AnswerKey::of(&self.case, &self.probe, &self.condition)
    }
}

/// All rows of a run's folder, in the order in which they were made; none where there is no file.
pub fn read_why(dir: &Path) -> Result<Vec<WhyRow>, JsonlError> {
    read_rows(&dir.join(WHY))
}

/// Of rows the last on each answer.
pub fn last_rows(rows: Vec<WhyRow>) -> BTreeMap<AnswerKey, WhyRow> {
    rows.into_iter().map(|row| (row.key().owned(), row)).collect()
}
