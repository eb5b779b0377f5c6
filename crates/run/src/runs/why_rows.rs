//! Rows of `why.jsonl`: a label for each answer, and the measurements behind it. The last row of an answer counts.

use std::collections::BTreeMap;
use std::path::Path;

use palimpsest_core::ablate::Measure;
use serde::{Deserialize, Serialize};

use super::rows::AnswerKey;
use palimpsest_data::ground::jsonl::{JsonlError, read_rows};

pub const WHY: &str = "why.jsonl";

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Label {
    #[serde(rename = "right")]
    Right,
    /// The answer names the current state, but was judged wrong.
    #[serde(rename = "misjudged")]
    Misjudged,
    /// No newer evidence is in the context.
    #[serde(rename = "not shown")]
    NotShown,
    /// Blocking the newer evidence has no larger effect than blocking random text of equal size. Files keep the name that they always had.
    #[serde(rename = "not read", alias = "no effect")]
    NoEffect,
    /// The newer evidence has an effect; the answer flips without the older one.
    #[serde(rename = "overridden")]
    Overridden,
    /// [`Label::Overridden`] through later positions: removing the older evidence has an effect, blocking it has none.
    #[serde(rename = "carried")]
    Carried,
    #[default]
    #[serde(rename = "undecided")]
    Undecided,
}

impl Label {
    pub const ALL: [Label; 7] = [
        Label::Right,
        Label::Misjudged,
        Label::NotShown,
        Label::NoEffect,
        Label::Overridden,
        Label::Carried,
        Label::Undecided,
    ];

    /// The name in print, and in filters.
    pub fn key(self) -> &'static str {
        match self {
            Label::Right => "right",
            Label::Misjudged => "misjudged",
            Label::NotShown => "not shown",
            Label::NoEffect => "no effect",
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
    /// Absent for the plain condition.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub condition: String,
    pub label: Label,
    pub why: String,
    pub judge: String,
    /// Unchanged metric; absent without a forward pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plain: Option<Plain>,
    /// Newer evidence; absent if not shown or not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newer: Option<SideReadings>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older: Option<SideReadings>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<SearchRow>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<Certificate>,
    /// Forward passes spent on the row.
    pub readings: usize,
    pub settings: WhySettings,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhySettings {
    pub seed: u64,
    pub controls: usize,
    pub readings: usize,
    /// Regenerate and judge answers that have no contrast.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub anew: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Plain {
    pub measure: Measure,
    pub value: f64,
}

/// Readings of one side's evidence, all sessions at once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SideReadings {
    pub sessions: Vec<String>,
    /// Drop when hidden from the question on.
    pub blocked: Compared,
    /// Drop when removed and the rest recomputed; absent if not needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed: Option<Compared>,
}

/// A drop, and that of equal-sized controls.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// Unchanged minus changed; positive if the metric depends on the evidence.
    pub drop: f64,
    /// 95th percentile of the controls' absolute drops; absent with too few controls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<f64>,
    pub controls: usize,
    pub flips: usize,
}

impl Compared {
    /// `None` with too few controls.
    pub fn is_beyond(&self) -> Option<bool> {
        self.threshold.map(|threshold| self.drop.abs() > threshold)
    }

    /// True if more than 5% of control sets flip the answer, so that a flip is uninformative.
    pub fn turns_by_chance(&self) -> bool {
        by_chance(self.flips, self.controls)
    }
}

/// More than 5% flips, counting the tested set as one more.
pub fn by_chance(flips: usize, controls: usize) -> bool {
    20 * (flips + 1) > controls + 1
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchRow {
    pub candidates: usize,
    pub sessions: usize,
    pub layers: usize,
    pub spent: bool,
}

/// Set of knock-outs that flips an answer: hiding the sessions from the question on changes the contrast's sign, or the verdict of a
/// regenerated answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Certificate {
    pub sessions: Vec<String>,
    /// Sufficient half-open layer range; absent if all are needed or no readings were left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<[usize; 2]>,
    /// No session can be dropped without losing the flip.
    pub irreducible: bool,
    pub before: f64,
    /// With the sessions hidden at all layers.
    pub after: f64,
    /// Regenerated answer whose verdict flipped; absent for contrasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// Equal-sized control sets, and how many flip the answer.
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

/// Rows in file order; empty if the file is absent.
pub fn read_why(dir: &Path) -> Result<Vec<WhyRow>, JsonlError> {
    read_rows(dir, WHY)
}

pub fn last_rows(rows: Vec<WhyRow>) -> BTreeMap<AnswerKey, WhyRow> {
    rows.into_iter().map(|row| (row.key().owned(), row)).collect()
}
