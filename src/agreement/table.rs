//! Agreement as text, Markdown, CSV, JSON and LaTeX: STALE's table 7 of what is right or wrong; of scores how often they are the same,
//! how often at most one apart, and kappa, plain and with quadratic weights.
//!
//! Shares are in percent with two decimals and kappa has four, as the paper prints them. What a count does not determine, such as
//! the precision of a judge that called nothing correct, is a dash.

use serde_json::json;

use super::score::{Counts, RaterScore, Scored, Subset};
use crate::ground::sheet::{Column, Format, Sheet, cell};
use crate::statistics::agreement::{Agreement, ScoreAgreement};
use crate::statistics::kappa::Weights;

const HEADS: [&str; 9] = ["subset", "N", "agree.", "kappa", "prec.", "recall", "F1", "FPR", "FNR"];
/// Of scores; the means are the rater's and the judge's.
const SCORE_HEADS: [&str; 8] =
    ["subset", "N", "agree.", "within 1", "kappa", "quadr. kappa", "mean rater", "mean judge"];
const COUNTS: [&str; 4] = ["true_positive", "false_positive", "false_negative", "true_negative"];

impl Scored {
    /// As `format` has it, with a line's end.
    pub fn written(&self, format: Format) -> String {
        match format {
            Format::Text => self.text(),
            Format::Md => self.markdown(),
            Format::Csv => self.csv(),
            Format::Json => format!("{:#}\n", self.json()),
            Format::Latex => self.latex(),
        }
    }

    fn heads(&self) -> &'static [&'static str] {
        if self.most.is_some() { &SCORE_HEADS } else { &HEADS }
    }

    fn units(&self) -> &'static str {
        if self.most.is_some() { "shares in %" } else { "in %, but for kappa" }
    }

    fn text(&self) -> String {
        let mut text = format!("judge: {}\ncondition: {}\n", self.judge_short, self.condition);
        for note in self.notes() {
            text += &format!("{note}\n");
        }
        for rater in &self.raters {
            let (name, left_out) = (&rater.rater, left_out(rater.unsure, rater.missing));
            text += &format!("\n{name} against the judge{left_out}; {}\n", self.units());
            text += &self.sheet(rater).text();
        }
        text
    }

    fn markdown(&self) -> String {
        let mut text = format!("Judge: {}. Condition: {}.\n", self.judge_short, self.condition);
        for note in self.notes() {
            text += &format!("\n{note}.\n");
        }
        for rater in &self.raters {
            let (name, left_out) = (&rater.rater, left_out(rater.unsure, rater.missing));
            text += &format!("\n{name} against the judge{left_out}; {}:\n\n", self.units());
            text += &self.sheet(rater).markdown();
        }
        text
    }

    fn latex(&self) -> String {
        let of = |rater: &RaterScore| {
            let about = format!("{} against {}, condition {}", rater.rater, self.judge_short, self.condition);
            Sheet { notes: vec![about], ..self.sheet(rater) }.latex()
        };
        self.raters.iter().map(of).collect()
    }

    fn sheet(&self, rater: &RaterScore) -> Sheet {
        let mut heads = self.heads().iter().map(|head| Column::number(*head)).collect::<Vec<_>>();
        heads[0].right = false;
        let row = |subset| cells(subset).into_iter().map(cell).collect();
        Sheet { columns: heads, rows: rater.subsets.iter().map(row).collect(), notes: Vec::new() }
    }

    fn csv(&self) -> String {
        let counts: &[&str] = if self.most.is_some() { &[] } else { &COUNTS };
        let heads = ["judge", "condition", "rater", "group"].iter().chain(self.heads()).chain(counts);
        let row = |rater: &RaterScore, subset: &Subset| {
            let counts = match &subset.counts {
                Counts::RightOrWrong(Agreement {
                    true_positive,
                    false_positive,
                    false_negative,
                    true_negative,
                }) => {
                    vec![true_positive, false_positive, false_negative, true_negative]
                }
                Counts::Scores(_) => Vec::new(),
            };
            let first = [&self.judge, &self.condition, &rater.rater, &subset.group].map(String::clone);
            let counts = counts.into_iter().map(usize::to_string);
            first.into_iter().chain(cells(subset)).chain(counts).map(cell).collect()
        };
        let rows =
            self.raters.iter().flat_map(|rater| rater.subsets.iter().map(move |subset| row(rater, subset)));
        let columns = heads.map(|head| Column::text(*head)).collect();
        // Into memory, in rows of one length: it cannot fail.
        Sheet { columns, rows: rows.collect(), notes: Vec::new() }.csv().unwrap_or_default()
    }

    fn json(&self) -> serde_json::Value {
        let subset = |subset: &Subset| {
            let mut row = json!({ "group": subset.group, "subset": subset.name });
            extend(&mut row, &subset.counts);
            row
        };
        let rater = |rater: &RaterScore| {
            let subsets: Vec<_> = rater.subsets.iter().map(subset).collect();
            json!({ "rater": rater.rater, "unsure": rater.unsure, "missing": rater.missing, "subsets": subsets })
        };
        let pair = |pair: &super::RatersCompared| {
            let mut row = json!({ "first": pair.first, "second": pair.second });
            extend(&mut row, &pair.counts);
            row
        };
        json!({
            "judge": self.judge,
            "other_judges": self.other_judges,
            "condition": self.condition,
            "items": self.items,
            "without_verdict": self.without_verdict,
            "between_scores": self.between,
            "raters": self.raters.iter().map(rater).collect::<Vec<_>>(),
            "between_raters": self.pairs.iter().map(pair).collect::<Vec<_>>(),
        })
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.other_judges.is_empty() {
            let others = self.other_judges.join(", ");
            notes.push(format!("the run was also judged by {others}: name one with --judge"));
        }
        if self.without_verdict > 0 {
            let (without, items) = (self.without_verdict, self.items);
            notes.push(format!("{without} of {items} items have no verdict of this judge and are left out"));
        }
        if self.between > 0 {
            let (between, items) = (self.between, self.items);
            notes.push(format!(
                "the judge scored {between} of {items} items between two whole scores, which raters cannot give; they are left out"
            ));
        }
        if self.rubric_unknown {
            let why = "verdicts of version 0.1.0 do not say by which rubric they were given";
            notes.push(format!("{why}: it may not be the one that the raters read"));
        }
        if self.earlier_wording {
            notes.push("the judge went by an earlier wording of the rubric that the raters read".to_owned());
        }
        if !self.asked_alike {
            notes.push(
                "the judge was not asked alike of all runs: reasons or thoughts stood elsewhere".to_owned(),
            );
        }
        for pair in &self.pairs {
            let (first, second) = (&pair.first, &pair.second);
            let (n, agreement, kappa) = match &pair.counts {
                Counts::RightOrWrong(counts) => (counts.n(), counts.agreement(), four(counts.kappa())),
                Counts::Scores(counts) => {
                    let [plain, quadratic] = kappas(counts);
                    (counts.n(), counts.agreement(), format!("{plain} (quadratic {quadratic})"))
                }
            };
            let agreement = percent(agreement);
            notes.push(format!(
                "{first} and {second}: agreement {agreement}%, kappa {kappa}, on {n} items that both rated"
            ));
        }
        notes
    }
}

fn left_out(unsure: usize, missing: usize) -> String {
    match (unsure, missing) {
        (0, 0) => String::new(),
        _ => format!(" ({unsure} unsure and {missing} not rated are left out)"),
    }
}

fn kappas(counts: &ScoreAgreement) -> [String; 2] {
    [Weights::Plain, Weights::Quadratic].map(|weights| four(counts.kappa(weights)))
}

fn cells(subset: &Subset) -> Vec<String> {
    let counts = match &subset.counts {
        Counts::RightOrWrong(counts) => counts,
        Counts::Scores(counts) => return score_cells(&subset.name, counts),
    };
    vec![
        subset.name.clone(),
        counts.n().to_string(),
        percent(counts.agreement()),
        four(counts.kappa()),
        percent(counts.precision()),
        percent(counts.recall()),
        percent(counts.f1()),
        percent(counts.false_positive_rate()),
        percent(counts.false_negative_rate()),
    ]
}

fn score_cells(name: &str, counts: &ScoreAgreement) -> Vec<String> {
    let [plain, quadratic] = kappas(counts);
    let two = |mean: f64| format!("{mean:.2}");
    let (rater, judge) = counts.means().map_or(("-".to_owned(), "-".to_owned()), |(a, b)| (two(a), two(b)));
    let (same, near) = (percent(counts.agreement()), percent(counts.within(1)));
    vec![name.to_owned(), counts.n().to_string(), same, near, plain, quadratic, rater, judge]
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| format!("{:.2}", 100.0 * share))
}

fn four(kappa: Option<f64>) -> String {
    kappa.map_or("-".to_owned(), |kappa| format!("{kappa:.4}"))
}

/// Counts and everything that follows from them, unrounded.
fn extend(row: &mut serde_json::Value, counts: &Counts) {
    let Some(row) = row.as_object_mut() else { return };
    let counts = match counts {
        Counts::RightOrWrong(counts) => counts,
        Counts::Scores(counts) => {
            let values = [
                ("n", json!(counts.n())),
                ("agreement", json!(counts.agreement())),
                ("within_1", json!(counts.within(1))),
                ("kappa", json!(counts.kappa(Weights::Plain))),
                ("kappa_quadratic", json!(counts.kappa(Weights::Quadratic))),
                ("mean_rater", json!(counts.means().map(|means| means.0))),
                ("mean_judge", json!(counts.means().map(|means| means.1))),
                ("table", json!(counts.table)),
            ];
            row.extend(values.map(|(name, value)| (name.to_owned(), value)));
            return;
        }
    };
    let values = [
        ("n", json!(counts.n())),
        ("agreement", json!(counts.agreement())),
        ("kappa", json!(counts.kappa())),
        ("precision", json!(counts.precision())),
        ("recall", json!(counts.recall())),
        ("f1", json!(counts.f1())),
        ("false_positive_rate", json!(counts.false_positive_rate())),
        ("false_negative_rate", json!(counts.false_negative_rate())),
        ("true_positive", json!(counts.true_positive)),
        ("false_positive", json!(counts.false_positive)),
        ("false_negative", json!(counts.false_negative)),
        ("true_negative", json!(counts.true_negative)),
    ];
    row.extend(values.map(|(name, value)| (name.to_owned(), value)));
}
