//! A row of `dose.jsonl`: an item, a factor level and a twin.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::case::Turn;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DoseRow {
    pub id: String,
    /// Same subject, attribute, values and template at all levels and twins.
    pub item: String,
    /// One of [`super::terms`]: `ab`, `ba`, `no-update-ab`, ...
    pub twin: String,
    /// Levels by factor; `sweep` names the varied factor: `base` if none, two joined by `*` for grids.
    pub factors: BTreeMap<String, Value>,
    pub sessions: Vec<DoseSession>,
    pub query_time: String,
    pub probes: Vec<DoseProbe>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DoseSession {
    /// `2025-03-01 09:30`; not ascending if dates are crossed.
    pub time: String,
    pub turns: Vec<Turn>,
    /// One of [`super::terms::ROLES`]; absent for fillers and neutral sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DoseProbe {
    pub id: String,
    pub query: String,
    /// Answer prefix after the generation prompt; no trailing white space.
    pub prefix: String,
    /// Follows the prefix, with a leading space if needed.
    pub current: String,
    /// Oldest first.
    pub stale: Vec<String>,
    /// Unused values of the set, or another person's. The first is the contrast if nothing is stale.
    pub absent: Vec<String>,
    /// `current`, or `none` if no value holds (denied without replacement, or never stated).
    pub expects: String,
}
