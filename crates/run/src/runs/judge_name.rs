//! Names of judges: a judge by a rubric, and its label in tables.
//!
//! Two rubrics of one judge are two judges, and so are two ways of asking by one rubric. What a row holds is the digest of all that the
//! judge was told; people say the rubric's name and how it was asked, whether or not it was asked otherwise, too: a name that stands
//! for one set of verdicts today stands for the same ones after another judging.

use std::collections::BTreeMap;

use super::rows::{RubricRow, VerdictRow};
use palimpsest_data::benchmarks::{is_reading, named};

/// Characters of a digest that tell two of them apart for people.
const SHORT: usize = 8;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JudgeName {
    pub judge: String,
    /// SHA-256 of what it was told; absent in runs of version 0.1.0.
    pub digest: Option<String>,
    /// The rubric's name; absent where a rule read the answers, and where nobody knows it.
    pub rubric: Option<String>,
    /// The judge with its rubric and how it was asked in brackets: no two of a run share it.
    pub label: String,
}

impl JudgeName {
    pub fn gave(&self, row: &VerdictRow) -> bool {
        self.judge == row.judge && self.digest == row.rubric
    }

    /// The label without the judge's address, for where no other judge stands beside it.
    pub fn short_label(&self) -> String {
        self.label.replacen(self.judge.as_str(), short_judge(&self.judge), 1)
    }

    /// Text in brackets behind the judge's name; empty where there is none.
    pub fn in_brackets(&self) -> &str {
        self.label.strip_prefix(self.judge.as_str()).map_or("", |rest| bracketed(rest).unwrap_or_default())
    }
}

/// A judge without its address: of `http://host/v1#model` the model.
pub fn short_judge(judge: &str) -> &str {
    let served = judge.starts_with("http").then(|| judge.rsplit_once('#')).flatten();
    served.map_or(judge, |(_, model)| model)
}

/// Short names of judges, without their addresses except where two would be the same. Takes labels too.
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

/// Which judges are meant, as people type them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JudgeChoice<'a> {
    /// A judge's name with or without its address, or that with its rubric in brackets; all where absent.
    pub judge: Option<&'a str>,
    /// A rubric's name; all where absent.
    pub rubric: Option<&'a str>,
}

impl<'a> JudgeChoice<'a> {
    pub fn of(judge: Option<&'a str>) -> Self {
        JudgeChoice { judge, rubric: None }
    }

    pub fn takes(&self, label: &str) -> bool {
        let (judge, brackets) = parts(label);
        // `strict` is also `strict, reasons first`.
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

/// A label's judge and what stands in brackets behind it.
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

/// The judges of these rows, in order of first appearance: also those of which nothing could be read.
pub fn judge_names(verdicts: &[VerdictRow], rubrics: &[RubricRow], benchmark: &str) -> Vec<JudgeName> {
    let mut names: Vec<JudgeName> = Vec::new();
    for row in verdicts {
        // Rows of one judge stand together, so that the last one is nearly always it.
        if !names.iter().rev().any(|name| name.gave(row)) {
            let rubric = row.rubric_name.clone().or_else(|| earlier_name(benchmark, row));
            let (judge, digest) = (row.judge.clone(), row.rubric.clone());
            let mut name = JudgeName { label: String::new(), judge, digest, rubric };
            name.label = labelled(&name, &brackets(&name, rubrics));
            names.push(name);
        }
    }
    // A text that changed under its name, or was told more than the name says.
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

/// The rubric and how the judge was asked by it, as far as the run says.
fn brackets(name: &JudgeName, rubrics: &[RubricRow]) -> Vec<String> {
    let mut brackets = match (&name.rubric, &name.digest) {
        (Some(rubric), _) => vec![rubric.clone()],
        // A rule is its own judge, and of version 0.1.0 there is nothing to say.
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

/// `thinking on` where that is all that a judge was told.
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

/// The rubric of a row that does not name it, by its digest.
fn earlier_name(benchmark: &str, row: &VerdictRow) -> Option<String> {
    let digest = row.rubric.as_deref()?;
    let rubric = named(benchmark)?.rubrics.iter().find(|rubric| rubric.earlier.contains(&digest))?;
    Some(rubric.name.to_owned())
}
