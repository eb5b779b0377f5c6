//! Effects of sessions on the contrast, by role: knock-outs and removals of `contrast-causes.jsonl`, less the median of the answer's controls.
//!
//! A role of several sessions has the mean of their effects, each hidden alone.

use std::collections::BTreeMap;
use std::path::Path;

use super::error::DoseError;
use crate::ground::numbers::quantile;
use crate::run::causes::contrast_rows::{AblationKind, ContrastCauseRow, read_contrast_causes};
use crate::run::rows::AnswerKey;

/// The effects of a run, by answer and name: `blocked_new`, and with layers `blocked_new@4-8`.
#[derive(Debug, Clone, Default)]
pub struct Effects(BTreeMap<AnswerKey, BTreeMap<String, f64>>);

impl Effects {
    /// Reads the file; none where there is none.
    ///
    /// # Errors
    /// A broken row.
    pub fn read(dir: &Path) -> Result<Self, DoseError> {
        Ok(Effects::of(&read_contrast_causes(dir)?))
    }

    /// Of its rows.
    pub fn of(rows: &[ContrastCauseRow]) -> Self {
        type Layers = Option<[usize; 2]>;
        type ByLayers = BTreeMap<Layers, Vec<f64>>;
        type Named = (AnswerKey, String, Layers);
        let mut controls: BTreeMap<AnswerKey, ByLayers> = BTreeMap::new();
        let mut drops: BTreeMap<Named, Vec<f64>> = BTreeMap::new();
        for row in rows {
            let key = row.answer.clone();
            let ablation = match row.ablation {
                AblationKind::Control => {
                    controls.entry(key).or_default().entry(row.layers).or_default().push(row.drop);
                    continue;
                }
                AblationKind::Blocked => "blocked",
                AblationKind::Removed => "removed",
                // What is left behind, and where, is told by the summary of causes.
                AblationKind::Replaced | AblationKind::Carried => continue,
            };
            if let Some(role) = &row.role {
                drops.entry((key, format!("{ablation}_{role}"), row.layers)).or_default().push(row.drop);
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

    /// Effects on an answer.
    pub fn of_answer(&self, key: AnswerKey<&str>) -> BTreeMap<String, f64> {
        self.0.get(&key.owned()).cloned().unwrap_or_default()
    }
}
