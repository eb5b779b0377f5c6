//! Table 7 as text, Markdown, CSV, JSON and LaTeX.
//!
//! Shares are in percent with two decimals and kappa has four, as the paper prints them. What a count does not determine, such as
//! the precision of a judge that called nothing correct, is a dash.

use serde_json::json;

use super::score::{Scored, Subset};
use crate::ground::table::aligned;
use crate::statistics::agreement::Agreement;

/// How a table is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Aligned columns.
    #[default]
    Text,
    /// A Markdown table.
    Markdown,
    /// Comma-separated values, with the counts.
    Csv,
    /// All numbers unrounded, with the counts.
    Json,
    /// A `tabular` with the rules of booktabs.
    Latex,
}

const HEADS: [&str; 9] = ["subset", "N", "agree.", "kappa", "prec.", "recall", "F1", "FPR", "FNR"];

impl Scored {
    /// As `format` has it, with a line's end.
    pub fn written(&self, format: Format) -> String {
        match format {
            Format::Text => self.text(),
            Format::Markdown => self.markdown(),
            Format::Csv => self.csv(),
            Format::Json => format!("{:#}\n", self.json()),
            Format::Latex => self.latex(),
        }
    }

    fn text(&self) -> String {
        let mut text = format!("judge: {}\n", self.judge);
        for note in self.notes() {
            text += &format!("{note}\n");
        }
        for rater in &self.raters {
            let mut rows = vec![HEADS.map(str::to_owned)];
            rows.extend(rater.subsets.iter().map(cells));
            let (rater, left_out) = (&rater.rater, left_out(rater.unsure, rater.missing));
            text += &format!("\n{rater} against the judge{left_out}; in %, but for kappa\n");
            text += &aligned(&rows, |column| column > 0);
        }
        text
    }

    fn markdown(&self) -> String {
        let mut text = format!("Judge: {}.\n", self.judge);
        for note in self.notes() {
            text += &format!("\n{note}.\n");
        }
        for rater in &self.raters {
            let left_out = left_out(rater.unsure, rater.missing);
            text += &format!("\n{} against the judge{left_out}; in %, but for kappa:\n\n", rater.rater);
            text += &format!("| {} |\n|:--{} |\n", HEADS.join(" | "), " | --:".repeat(HEADS.len() - 1));
            for row in rater.subsets.iter().map(cells) {
                text += &format!("| {} |\n", row.map(|cell| cell.replace('|', "\\|")).join(" | "));
            }
        }
        text
    }

    fn csv(&self) -> String {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let counts = ["true_positive", "false_positive", "false_negative", "true_negative"];
        let head: Vec<&str> = ["judge", "rater", "group"].into_iter().chain(HEADS).chain(counts).collect();
        // Into memory, in rows of one length: neither can fail.
        let _ = writer.write_record(head);
        for rater in &self.raters {
            for subset in &rater.subsets {
                let Agreement { true_positive, false_positive, false_negative, true_negative } =
                    subset.counts;
                let counts = [true_positive, false_positive, false_negative, true_negative];
                let first = [self.judge.clone(), rater.rater.clone(), subset.group.clone()];
                let row = first.into_iter().chain(cells(subset)).chain(counts.map(|n| n.to_string()));
                let _ = writer.write_record(row);
            }
        }
        String::from_utf8(writer.into_inner().unwrap_or_default()).unwrap_or_default()
    }

    fn json(&self) -> serde_json::Value {
        let subset = |subset: &Subset| {
            let mut row = json!({ "group": subset.group, "subset": subset.name });
            extend(&mut row, &subset.counts);
            row
        };
        let rater = |rater: &super::RaterScore| {
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
            "items": self.items,
            "without_verdict": self.without_verdict,
            "raters": self.raters.iter().map(rater).collect::<Vec<_>>(),
            "between_raters": self.pairs.iter().map(pair).collect::<Vec<_>>(),
        })
    }

    fn latex(&self) -> String {
        let mut text = String::new();
        for rater in &self.raters {
            let mut columns = "r".repeat(HEADS.len() - 1);
            columns.insert(0, 'l');
            text += &format!("% {} against {}\n", escaped(&rater.rater), escaped(&self.judge));
            text += &format!("\\begin{{tabular}}{{{columns}}}\n\\toprule\n");
            text += &HEADS.map(|head| if head == "kappa" { "$\\kappa$" } else { head }).join(" & ");
            text += " \\\\\n\\midrule\n";
            for row in rater.subsets.iter().map(cells) {
                text += &row.map(|cell| escaped(&cell)).join(" & ");
                text += " \\\\\n";
            }
            text += "\\bottomrule\n\\end{tabular}\n";
        }
        text
    }

    /// What a reader must know besides the rows.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.without_verdict > 0 {
            let (without, items) = (self.without_verdict, self.items);
            notes.push(format!("{without} of {items} items have no verdict of this judge and are left out"));
        }
        if self.rubric_unknown {
            let why = "verdicts of version 0.1.0 do not say by which rubric they were given";
            notes.push(format!("{why}: it may not be the one that the raters read"));
        }
        for pair in &self.pairs {
            let (first, second, n) = (&pair.first, &pair.second, pair.counts.n());
            let (agreement, kappa) = (percent(pair.counts.agreement()), four(pair.counts.kappa()));
            notes.push(format!(
                "{first} and {second}: agreement {agreement}%, kappa {kappa}, on {n} items that both rated"
            ));
        }
        notes
    }
}

/// The items of a rater that are in no count.
fn left_out(unsure: usize, missing: usize) -> String {
    match (unsure, missing) {
        (0, 0) => String::new(),
        _ => format!(" ({unsure} unsure and {missing} not rated are left out)"),
    }
}

fn cells(subset: &Subset) -> [String; 9] {
    let counts = &subset.counts;
    [
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

fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| format!("{:.2}", 100.0 * share))
}

fn four(kappa: Option<f64>) -> String {
    kappa.map_or("-".to_owned(), |kappa| format!("{kappa:.4}"))
}

/// Counts and everything that follows from them, unrounded.
fn extend(row: &mut serde_json::Value, counts: &Agreement) {
    let Some(row) = row.as_object_mut() else { return };
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

/// A text in LaTeX.
fn escaped(text: &str) -> String {
    let escape = |c: char| match c {
        '&' | '%' | '$' | '#' | '_' | '{' | '}' => format!("\\{c}"),
        '\\' => "\\textbackslash{}".to_owned(),
        '~' => "\\textasciitilde{}".to_owned(),
        '^' => "\\textasciicircum{}".to_owned(),
        c => c.to_string(),
    };
    text.chars().map(escape).collect()
}
