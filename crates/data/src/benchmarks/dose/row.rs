//! A line of `dose.jsonl`: an item at one level of one factor, in one twin.
//!
//! Written by `palimpsest build dose` and read as a benchmark's data. The fields are those of the file.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::case::Turn;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DoseRow {
    pub id: String,
    /// The item: a subject, an attribute, its values and a template, the same at all levels and in all twins.
    pub item: String,
    /// The twin ([`super::terms`]): `ab`, `ba`, `no-update-ab`, ...
    pub twin: String,
    /// Every factor's level by name, and under `sweep` the name of the factor that is varied here: `base` where none is, two names
    /// with `*` between them where two are.
    pub factors: BTreeMap<String, Value>,
    /// In the order in which they are shown.
    pub sessions: Vec<DoseSession>,
    pub query_time: String,
    pub probes: Vec<DoseProbe>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DoseSession {
    /// When it took place: `2025-03-01 09:30`. Not in the order of place where place and date are crossed.
    pub time: String,
    pub turns: Vec<Turn>,
    /// Its part, one of [`super::terms::ROLES`]; absent for fillers and neutral sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DoseProbe {
    pub id: String,
    pub query: String,
    /// The beginning of the answer, put behind the generation prompt; the values follow it. Ends without white space.
    pub prefix: String,
    /// The value that holds now, as it follows the prefix: with a space before it where one is needed.
    pub current: String,
    /// The values that held before, oldest first.
    pub stale: Vec<String>,
    /// Values of the same set that the history gives to nobody or to somebody else. Where nothing is stale the contrast is with the
    /// first of them.
    pub absent: Vec<String>,
    /// The kind of value that a right answer names: `current`, or `none` where no value of the set holds (denied without replacement, or
    /// the history gives none).
    pub expects: String,
}
