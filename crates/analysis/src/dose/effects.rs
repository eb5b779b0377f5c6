//! Effects of sessions on the contrast, by role: blocking and removal in `contrast-causes.jsonl`, minus the session's control
//! ([`palimpsest_data::statistics::control`]).
//!
//! For a role with several sessions: the mean of their effects, each measured alone.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use super::error::DoseError;
use palimpsest_data::statistics::control::control_of;
use palimpsest_run::runs::causes::contrast_rows::{AblationKind, ContrastCauseRow, read_contrast_causes};
use palimpsest_run::runs::rows::AnswerKey;

/// Effects by answer and name: `blocked_new`, or `blocked_new@4-8` for a layer window.
#[derive(Debug, Clone, Default)]
pub struct Effects(BTreeMap<AnswerKey, BTreeMap<String, f64>>);

impl Effects {
    pub fn read(dir: &Path) -> Result<Self, DoseError> {
        Ok(Effects::of(&read_contrast_causes(dir)?))
    }

    pub fn of(rows: &[ContrastCauseRow]) -> Self {
        let range = |row: &ContrastCauseRow| row.tokens[0]..row.tokens[1];
        let mut controls: BTreeMap<_, Vec<(Range<usize>, f64)>> = BTreeMap::new();
        for row in rows.iter().filter(|row| row.ablation == AblationKind::Control) {
            controls.entry((&row.answer, row.layers)).or_default().push((range(row), row.drop));
        }
        let mut drops: BTreeMap<_, Vec<f64>> = BTreeMap::new();
        for row in rows {
            let ablation = match row.ablation {
                AblationKind::Blocked => "blocked",
                AblationKind::Removed => "removed",
                // Residues are reported in the summary of causes.
                AblationKind::Control
                | AblationKind::Replaced
                | AblationKind::Repaired
                | AblationKind::Carried
                | AblationKind::Forced => continue,
            };
            if let Some(role) = &row.role {
                let pool = controls.get(&(&row.answer, row.layers)).into_iter().flatten();
                // Without a control, nothing is subtracted.
                let control = control_of(&range(row), pool.map(|(stretch, drop)| (stretch, *drop)));
                let drop = row.drop - control.unwrap_or(0.0);
                let key = (&row.answer, format!("{ablation}_{role}"), row.layers);
                drops.entry(key).or_default().push(drop);
            }
        }
        let mut effects: BTreeMap<AnswerKey, BTreeMap<String, f64>> = BTreeMap::new();
        for ((key, named, layers), drops) in drops {
            let effect = drops.iter().sum::<f64>() / drops.len() as f64;
            let named = match layers {
                None => named,
                Some([from, to]) => format!("{named}@{from}-{to}"),
            };
            effects.entry(key.clone()).or_default().insert(named, effect);
        }
        Effects(effects)
    }

    pub fn of_answer(&self, key: AnswerKey<&str>) -> BTreeMap<String, f64> {
        self.0.get(&key.owned()).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_effect_is_less_the_control_of_its_own_length() {
        let row = |ablation: &str, role: Option<&str>, tokens: [usize; 2], drop: f64| -> ContrastCauseRow {
            let row = json!({
                "case": "case", "probe": "value", "condition": "", "span": "", "role": role, "tokens": tokens, "seed": 0,
                "ablation": ablation, "contrast": 0.0, "drop": drop, "current": 0.0, "stale": 0.0,
            });
            serde_json::from_value(row).unwrap()
        };
        let mut rows = vec![
            row("blocked", Some("new"), [100, 110], 8.0),
            row("blocked", Some("old"), [200, 300], 60.0),
            row("removed", Some("new"), [100, 110], 9.0),
        ];
        for nth in 0..5 {
            let (short, long) = (300 + 10 * nth, 400 + 100 * nth);
            rows.push(row("control", None, [short, short + 10], nth as f64));
            rows.push(row("control", None, [long, long + 100], 50.0 + nth as f64));
        }
        let effects =
            |rows: &[ContrastCauseRow]| Effects::of(rows).of_answer(AnswerKey::of("case", "value", ""));
        // Medians 2 and 52; the median of all ten is 27.
        let expected = [("blocked_new", 6.0), ("blocked_old", 8.0), ("removed_new", 7.0)];
        assert_eq!(effects(&rows), expected.map(|(name, drop)| (name.to_owned(), drop)).into());
        assert_eq!(effects(&rows[..3])["blocked_old"], 60.0, "without controls nothing is taken off");
    }
}
