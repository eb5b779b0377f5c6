//! The figure of `palimpsest ground-truth`: agreement of each method with exact effects, by measure.

use super::meaning::Meaning;
use super::rows::{Intervals, Line};
use super::{Figure, Origin};
use palimpsest_analysis::ground_truth::table::{MEASURES, Row};
use palimpsest_analysis::ground_truth::{CHANCE, EXACT, GroundTruth};

/// `None` if no measure has a value.
pub fn draw_ground_truth(truth: &GroundTruth, rows: &[Row]) -> Option<Figure> {
    let mut lines = Vec::new();
    // Nats are on no axis with correlations and shares.
    for (at, (key, head, _)) in MEASURES.iter().enumerate().filter(|(_, (key, ..))| *key != "top_drop") {
        for row in rows.iter().filter(|row| ![EXACT, CHANCE].contains(&&*row.method)) {
            let estimate = row.measures[at].estimate.clone();
            if estimate.value.is_none() {
                continue;
            }
            let names = [*head, &*row.run, &*row.group];
            let shown = [true, truth.runs.len() > 1, truth.options.by.is_some()];
            let group = names.into_iter().zip(shown).filter_map(|(name, shown)| shown.then_some(name));
            let chance = rows
                .iter()
                .find(|other| (&*other.method, &other.run, &other.group) == (CHANCE, &row.run, &row.group));
            lines.push(Line {
                group: group.collect::<Vec<_>>().join(" · "),
                label: row.method.clone(),
                estimate,
                colour: Meaning::Group(at).colour(),
                mark: match *key {
                    "spearman" | "lds" => Some(0.0),
                    _ => chance.and_then(|row| row.measures[at].estimate.value),
                },
            });
        }
    }
    let runs = truth.runs.iter().map(|run| format!("{} · {} · {}", run.name, run.model, run.data));
    let origin = Origin { line: runs.collect::<Vec<_>>().join("\n"), ..Origin::default() };
    let caption = format!(
        "Agreement of each method's scores with the exact effects of the sessions ({}), within an answer, then averaged over answers and \
         cases, with 95% intervals. Spearman: rank correlation with the effects. LDS: rank correlation of summed scores with the answer's \
         logit over random subsets of the sessions. mAP: average precision of effects above Q3 + 1.5 IQR. Found: the decisive session has \
         the highest score. The upright mark is chance. {}",
        truth.options.effects.in_words(),
        truth.remarks.join(". ")
    );
    let is_empty = lines.is_empty();
    let intervals =
        Intervals { axis: "agreement".to_owned(), mark: "chance", ends: (-0.1, 1.0), lines, percent: false };
    let title = "Scores held against exact effects".to_owned();
    (!is_empty).then(|| intervals.figure("ground-truth-methods", (title, &origin), caption))
}
