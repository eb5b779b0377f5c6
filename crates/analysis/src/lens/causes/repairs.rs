//! Share of a session's effect that a repaired cache keeps, by the rows that were read again after the session's replacement.
//!
//! With *exact* the loss by the replacement and an exact prefill of all after it: left = 1 - sum over cases of the repaired cache's loss /
//! sum over cases of exact. Averages and intervals as those of residues ([`super::residue`]).

use palimpsest_data::ground::order::sorted_unique;
use palimpsest_data::ground::sheet::Columns;
use palimpsest_run::runs::causes::repair_rows::Later;

use super::residue::{Residues, SessionEffects, Whole, percent};
use crate::lens::band::Estimate;

#[derive(Debug, Clone, PartialEq)]
pub struct RepairPoint {
    pub role: String,
    /// Later rows that were asked for.
    pub later: Later,
    /// Mean number of rows read again, the session's own included.
    pub rows: Estimate,
    /// Mean loss, in nats.
    pub lost: Estimate,
    /// Share of the exact replacement's loss that is missing.
    pub left: Estimate,
}

impl Residues {
    /// By role and number of later rows, of sessions whose exact replacement was measured too.
    pub fn repairs(&self) -> Vec<RepairPoint> {
        let all = sorted_unique(self.sessions.iter().flat_map(|one| one.repairs.keys().copied()));
        let of_role = |role: &str| {
            let point = |later: Later| {
                let exact = |one: &SessionEffects| one.whole(Whole::Replaced);
                let repaired = |one: &SessionEffects| one.repairs.get(&later).copied().zip(exact(one));
                Some(RepairPoint {
                    role: role.to_owned(),
                    later,
                    rows: self.mean(role, |one| repaired(one).map(|((rows, _), _)| rows as f64))?,
                    lost: self.mean(role, |one| repaired(one).map(|((_, lost), _)| lost))?,
                    left: self.ratio(
                        role,
                        |one| repaired(one).map(|((_, lost), exact)| exact - lost),
                        |one| repaired(one).map(|(_, exact)| exact),
                    )?,
                })
            };
            all.iter().copied().filter_map(point).collect::<Vec<_>>()
        };
        self.roles().into_iter().flat_map(of_role).collect()
    }
}

/// One row per role and number of later rows; empty without repairs.
pub fn table(residues: &Residues) -> String {
    let points = residues.repairs();
    if points.is_empty() {
        return String::new();
    }
    let lost = if residues.of_contrasts { "contrast lost" } else { "log p lost" };
    let nats = |estimate: &Estimate| estimate.value.map_or("-".to_owned(), |value| format!("{value:+.4}"));
    let table = Columns::of(&points)
        .text("replaced", |point| &*point.role)
        .number("later rows", |point| point.later.to_string())
        .number("rows read again", |point| {
            point.rows.value.map_or("-".to_owned(), |rows| format!("{rows:.0}"))
        })
        .number(lost, |point| nats(&point.lost))
        .text("left of the session's effect", |point| percent(&point.left))
        .sheet(Vec::new());
    format!("\n{}", table.text())
}

#[cfg(test)]
mod tests {
    use palimpsest_core::engine::LaterRows;
    use palimpsest_run::runs::causes::contrast_rows::ContrastCauseRow;
    use serde_json::{Value, json};

    use super::*;

    fn row(case: usize, ablation: &str, rows: Value, drop: f64) -> ContrastCauseRow {
        let row = json!({
            "case": case.to_string(), "probe": "P", "condition": "", "span": "session[2]", "role": "old", "tokens": [3, 9],
            "neutral": "paper-1", "rows": rows, "seed": 0, "ablation": ablation, "contrast": 1.0, "drop": drop, "current": 0.0,
            "stale": 0.0,
        });
        serde_json::from_value(row).unwrap()
    }

    #[test]
    fn what_is_left_is_the_share_of_the_exact_loss_that_a_repair_lacks() {
        let mut rows = Vec::new();
        for case in 0..6 {
            let exact = 2.0 + case as f64 / 10.0;
            rows.push(row(case, "replaced", Value::Null, exact));
            rows.push(row(case, "repaired", json!({"k": 0, "recomputed": 6}), 1.0));
            rows.push(row(case, "repaired", json!({"k": 16, "recomputed": 20 + case}), exact - 0.25));
            rows.push(row(case, "repaired", json!({"k": null, "recomputed": 100}), exact));
        }
        // Without its exact replacement, a repair counts nowhere.
        rows.push(row(9, "repaired", json!({"k": 16, "recomputed": 1000}), 50.0));
        let found = Residues::of_contrast_rows(rows);
        let points = found.repairs();
        let by_later: Vec<_> =
            points.iter().map(|point| (point.later.0, point.rows.value.unwrap())).collect();
        let expected = [(LaterRows::Most(0), 6.0), (LaterRows::Most(16), 22.5), (LaterRows::All, 100.0)];
        assert_eq!(by_later, expected);
        let left: Vec<f64> = points.iter().map(|point| point.left.value.unwrap()).collect();
        for (left, expected) in left.iter().zip([1.0 - 6.0 / 13.5, 1.5 / 13.5, 0.0]) {
            assert!((left - expected).abs() < 1e-12, "{left}, not {expected}");
        }
        let (low, high) = points[0].left.band.unwrap();
        assert!(low < left[0] && left[0] < high && points.iter().all(|point| point.left.n == 6));
        let text = table(&found);
        assert!(text.contains("contrast lost") && text.contains("56% [") && text.contains("all"), "{text}");
        assert_eq!(table(&Residues::default()), "");
        assert!(!found.is_measured());
    }
}
