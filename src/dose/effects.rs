//! Effects of sessions on the contrast, by role: knock-outs and removals of `contrast-causes.jsonl`, less the median of the answer's controls.
//!
//! A role of several sessions has the mean of their effects, each hidden alone.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::DoseError;
use crate::ground::jsonl::read_rows;
use crate::ground::numbers::quantile;
use crate::run::rows::AnswerKey;

/// The file of a run folder.
const FILE: &str = "contrast-causes.jsonl";

/// Stretches without evidence that were hidden for comparison.
const CONTROL: &str = "control";

/// A line of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EffectRow {
    /// The case's id.
    pub case: String,
    /// The probe's id.
    pub probe: String,
    /// The condition's name; absent for the plain one.
    #[serde(default)]
    pub condition: String,
    /// The session; empty for a control.
    #[serde(default)]
    pub span: String,
    /// Its role, if any.
    #[serde(default)]
    pub role: Option<String>,
    /// The layers at which it was hidden, half-open; absent where at all.
    #[serde(default)]
    pub layers: Option<[usize; 2]>,
    /// `blocked`, `removed` or `control`.
    pub ablation: String,
    /// Drop of the contrast in nats: above 0 the session speaks for the current value.
    pub drop: f64,
}

/// The effects of a run, by answer and name: `blocked_new`, and with layers `blocked_new@4-8`.
#[derive(Debug, Clone, Default)]
pub struct Effects(BTreeMap<AnswerKey, BTreeMap<String, f64>>);

impl Effects {
    /// Reads the file; none where there is none.
    ///
    /// # Errors
    /// A broken row.
    pub fn read(dir: &Path) -> Result<Self, DoseError> {
        Ok(Effects::of(&read_rows::<EffectRow>(&dir.join(FILE))?))
    }

    /// Of its rows.
    pub fn of(rows: &[EffectRow]) -> Self {
        type ByLayers = BTreeMap<Option<[usize; 2]>, Vec<f64>>;
        let mut controls: BTreeMap<AnswerKey, ByLayers> = BTreeMap::new();
        let mut drops: BTreeMap<(AnswerKey, String, Option<[usize; 2]>), Vec<f64>> = BTreeMap::new();
        for row in rows {
            let key = AnswerKey::of(&row.case, &row.probe, &row.condition).owned();
            if row.ablation == CONTROL {
                controls.entry(key).or_default().entry(row.layers).or_default().push(row.drop);
            } else if let Some(role) = &row.role {
                drops
                    .entry((key, format!("{}_{role}", row.ablation), row.layers))
                    .or_default()
                    .push(row.drop);
            }
        }
        let mut effects: BTreeMap<AnswerKey, BTreeMap<String, f64>> = BTreeMap::new();
        for ((key, named, layers), drops) in drops {
            let mut control =
                controls.get(&key).and_then(|all| all.get(&layers)).cloned().unwrap_or_default();
            control.sort_by(f64::total_cmp);
            let median = if control.is_empty() { 0.0 } else { quantile(&control, 0.5) };
            let effect = drops.iter().sum::<f64>() / drops.len() as f64 - median;
            let named = match layers {
                None => named,
                Some([from, to]) => format!("{named}@{from}-{to}"),
            };
            effects.entry(key).or_default().insert(named, effect);
        }
        Effects(effects)
    }

    /// Those of an answer.
    pub fn of_answer(&self, key: AnswerKey<&str>) -> BTreeMap<String, f64> {
        self.0.get(&key.owned()).cloned().unwrap_or_default()
    }
}
