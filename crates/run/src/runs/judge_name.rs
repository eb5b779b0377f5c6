//! Names of judges: model, rubric and reply mode.
//!
//! Each rubric and reply mode of a judge counts as a separate judge. Rows store the digest of the judge's instructions. Labels always
//! include rubric and mode, so that a label keeps its meaning after further judging.

use std::collections::BTreeMap;

use super::rows::{RubricRow, VerdictRow};
use palimpsest_data::benchmarks::{is_reading, named};

const SHORT: usize = 8;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JudgeName {
    pub judge: String,
    /// SHA-256 of the judge's instructions; absent in version 0.1.0.
    pub digest: Option<String>,
    /// Absent for rule-based reading and unknown rubrics.
    pub rubric: Option<String>,
    /// Judge with rubric and mode in brackets; unique within a run.
    pub label: String,
}

impl JudgeName {
    pub fn gave(&self, row: &VerdictRow) -> bool {
        self.judge == row.judge && self.digest == row.rubric
    }

    pub fn short_label(&self) -> String {
        self.label.replacen(self.judge.as_str(), short_judge(&self.judge), 1)
    }

    pub fn in_brackets(&self) -> &str {
        self.label.strip_prefix(self.judge.as_str()).map_or("", |rest| bracketed(rest).unwrap_or_default())
    }
}

/// `http://host/v1#model` gives `model`.
pub fn short_judge(judge: &str) -> &str {
    let served = judge.starts_with("http").then(|| judge.rsplit_once('#')).flatten();
    served.map_or(judge, |(_, model)| model)
}

/// Short names of judges or labels; addresses are kept only where two would be equal.
pub fn short_judges<'a>(judges: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, &'a str> {
    let mut names: BTreeMap<&str, &str> = judges.map(|judge| (judge, short_judge(judge))).collect();
    let shorts: Vec<&str> = names.values().copied().collect();
    for (judge, name) in &mut names {
        if shorts.iter().filter(|other| *other == name).count() > 1 {
            *name = *judge;
        }
    }
    names
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JudgeChoice<'a> {
    /// Name with or without address, or a full label; all if absent.
    pub judge: Option<&'a str>,
    pub rubric: Option<&'a str>,
}

impl<'a> JudgeChoice<'a> {
    pub fn of(judge: Option<&'a str>) -> Self {
        JudgeChoice { judge, rubric: None }
    }

    pub fn takes(&self, label: &str) -> bool {
        let (judge, brackets) = parts(label);
        // `strict` also matches `strict, reasons first`.
        let is_rubric = |name: &str| {
            brackets.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(", "))
        };
        let is_name = |name: &str| name == judge || name == short_judge(judge);
        let is_judge = |name: &str| {
            let (of_name, rubric) = parts(name);
            name == label || is_name(name) || !rubric.is_empty() && is_name(of_name) && is_rubric(rubric)
        };
        self.judge.is_none_or(is_judge) && self.rubric.is_none_or(is_rubric)
    }
}

fn parts(label: &str) -> (&str, &str) {
    let split = label.rfind(" (").and_then(|at| label.split_at_checked(at));
    split.and_then(|(judge, rest)| Some((judge, bracketed(rest)?))).unwrap_or((label, ""))
}

impl std::fmt::Display for JudgeChoice<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.judge, self.rubric) {
            (Some(judge), Some(rubric)) => write!(f, "judge `{judge}` by the rubric `{rubric}`"),
            (Some(judge), None) => write!(f, "judge `{judge}`"),
            (None, Some(rubric)) => write!(f, "judge by the rubric `{rubric}`"),
            (None, None) => write!(f, "judge"),
        }
    }
}

fn bracketed(text: &str) -> Option<&str> {
    text.strip_prefix(" (")?.strip_suffix(')')
}

pub fn judge_names(verdicts: &[VerdictRow], rubrics: &[RubricRow], benchmark: &str) -> Vec<JudgeName> {
    let mut names: Vec<JudgeName> = Vec::new();
    for row in verdicts {
        // Rows of one judge are adjacent, so the last name nearly always matches.
        if !names.iter().rev().any(|name| name.gave(row)) {
            let rubric = row.rubric_name.clone().or_else(|| earlier_name(benchmark, row));
            let (judge, digest) = (row.judge.clone(), row.rubric.clone());
            let mut name = JudgeName { label: String::new(), judge, digest, rubric };
            name.label = labelled(&name, &brackets(&name, rubrics));
            names.push(name);
        }
    }
    // Disambiguates equal labels by digest.
    let labels: Vec<String> = names.iter().map(|name| name.label.clone()).collect();
    for name in &mut names {
        if labels.iter().filter(|label| **label == name.label).count() > 1 {
            let mut brackets = brackets(name, rubrics);
            if brackets.is_empty() {
                brackets.push(UNNAMED.to_owned());
            }
            brackets.push(short(name.digest.as_deref().unwrap_or_default()).to_owned());
            name.label = labelled(name, &brackets);
        }
    }
    names
}

const UNNAMED: &str = "unnamed rubric";

fn labelled(name: &JudgeName, brackets: &[String]) -> String {
    if brackets.is_empty() { name.judge.clone() } else { format!("{} ({})", name.judge, brackets.join(", ")) }
}

/// Rubric and mode, as far as known.
fn brackets(name: &JudgeName, rubrics: &[RubricRow]) -> Vec<String> {
    let mut brackets = match (&name.rubric, &name.digest) {
        (Some(rubric), _) => vec![rubric.clone()],
        // Rule-based reading needs no brackets; version 0.1.0 has none.
        (None, Some(digest)) if !is_reading(&name.judge) => vec![format!("{UNNAMED} {}", short(digest))],
        (None, _) => Vec::new(),
    };
    let row = rubrics.iter().find(|row| Some(&row.rubric) == name.digest.as_ref());
    if let Some(RubricRow { reasons, thinking, accepted, .. }) = row.filter(|_| name.rubric.is_some()) {
        brackets.push(format!("reasons {reasons}"));
        brackets.extend(thinking.as_deref().map(of_thinking));
        brackets.extend(accepted.as_ref().map(|_| "exact match".to_owned()));
    }
    brackets
}

/// `thinking on` if that is the only setting.
fn of_thinking(told: &str) -> String {
    let told: serde_json::Value = serde_json::from_str(told).unwrap_or_default();
    match (told.get("mode").and_then(serde_json::Value::as_str), told.as_object().map(serde_json::Map::len)) {
        (Some(mode), Some(1)) => format!("thinking {mode}"),
        _ => "told about thinking".to_owned(),
    }
}

fn short(digest: &str) -> &str {
    digest.get(..SHORT).unwrap_or(digest)
}

fn earlier_name(benchmark: &str, row: &VerdictRow) -> Option<String> {
    let digest = row.rubric.as_deref()?;
    let rubric = named(benchmark)?.rubrics.iter().find(|rubric| rubric.earlier.contains(&digest))?;
    Some(rubric.name.to_owned())
}
