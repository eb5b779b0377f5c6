//! Who gave the verdicts of a run: a judge by a rubric, and what tables call it.
//!
//! Two rubrics of one judge are two judges. What a row holds is the digest of all that the judge was told; people say the rubric's
//! name, and where one name stands for several ways of asking, what tells these apart.

use super::rows::{RubricRow, VerdictRow};
use crate::benchmarks::{is_reading, named};

/// Characters of a digest that tell two of them apart for people.
const SHORT: usize = 8;

/// A judge by one rubric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JudgeName {
    /// The judge, as verdict rows have it.
    pub judge: String,
    /// SHA-256 of what it was told; absent in runs of version 0.1.0.
    pub digest: Option<String>,
    /// The rubric's name; absent where a rule read the answers, and where nobody knows it.
    pub rubric: Option<String>,
    /// The judge with its rubric in brackets, as tables have it: no two of a run share it.
    pub label: String,
}

impl JudgeName {
    /// Whether a row is its verdict.
    pub fn gave(&self, row: &VerdictRow) -> bool {
        self.judge == row.judge && self.digest == row.rubric
    }

    /// What stands in brackets behind the judge's name; empty where nothing does.
    pub fn in_brackets(&self) -> &str {
        self.label.strip_prefix(self.judge.as_str()).map_or("", |rest| bracketed(rest).unwrap_or_default())
    }
}

/// Which judges are meant, as people type them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JudgeChoice<'a> {
    /// A judge's name, or that with its rubric in brackets; all where absent.
    pub judge: Option<&'a str>,
    /// A rubric's name; all where absent.
    pub rubric: Option<&'a str>,
}

impl<'a> JudgeChoice<'a> {
    /// By the judge's name or label alone.
    pub fn of(judge: Option<&'a str>) -> Self {
        JudgeChoice { judge, rubric: None }
    }

    /// Whether a judge of this label is meant.
    pub fn takes(&self, label: &str) -> bool {
        let is_judge = |name: &str| {
            label.strip_prefix(name).is_some_and(|rest| rest.is_empty() || bracketed(rest).is_some())
        };
        let brackets = label.rfind(" (").and_then(|at| bracketed(label.get(at..)?)).unwrap_or_default();
        // `strict` is also `strict, reasons first`.
        let is_rubric = |name: &str| {
            brackets.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(", "))
        };
        self.judge.is_none_or(is_judge) && self.rubric.is_none_or(is_rubric)
    }
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

/// What ` (...)` holds.
fn bracketed(text: &str) -> Option<&str> {
    text.strip_prefix(" (")?.strip_suffix(')')
}

/// Whether a row makes its judge one of the run's: a clean verdict, or any of a reading, which may have read nothing.
pub(super) fn names_judge(row: &VerdictRow) -> bool {
    row.error.is_none() || is_reading(&row.judge)
}

/// The judges of these rows, in order of first appearance.
pub(super) fn judge_names(verdicts: &[VerdictRow], rubrics: &[RubricRow], benchmark: &str) -> Vec<JudgeName> {
    let mut names: Vec<JudgeName> = Vec::new();
    for row in verdicts.iter().filter(|row| names_judge(row)) {
        // Rows of one judge stand together, so that the last one is nearly always it.
        if !names.iter().rev().any(|name| name.gave(row)) {
            let rubric = row.rubric_name.clone().or_else(|| earlier_name(benchmark, row));
            let (judge, digest) = (row.judge.clone(), row.rubric.clone());
            names.push(JudgeName {
                label: plain_label(&judge, &digest, rubric.as_deref()),
                judge,
                digest,
                rubric,
            });
        }
    }
    let plain: Vec<String> = names.iter().map(|name| name.label.clone()).collect();
    let asked: Vec<String> = names.iter().map(|name| asked_label(name, rubrics)).collect();
    let alone = |labels: &[String], label: &str| labels.iter().filter(|other| *other == label).count() == 1;
    for (at, name) in names.iter_mut().enumerate() {
        name.label = if alone(&plain, &plain[at]) {
            plain[at].clone()
        } else if alone(&asked, &asked[at]) {
            asked[at].clone()
        } else {
            let rubric = name.rubric.as_deref().unwrap_or(UNNAMED);
            format!("{} ({rubric}, {})", name.judge, short(name.digest.as_deref().unwrap_or_default()))
        };
    }
    names
}

/// In the place of a name that nobody knows.
const UNNAMED: &str = "unnamed rubric";

fn plain_label(judge: &str, digest: &Option<String>, rubric: Option<&str>) -> String {
    match (rubric, digest) {
        (Some(rubric), _) => format!("{judge} ({rubric})"),
        // A rule is its own judge, and of version 0.1.0 there is nothing to say.
        (None, Some(digest)) if !is_reading(judge) => format!("{judge} ({UNNAMED} {})", short(digest)),
        (None, _) => judge.to_owned(),
    }
}

/// The label with how the judge was asked.
fn asked_label(name: &JudgeName, rubrics: &[RubricRow]) -> String {
    let row = rubrics.iter().find(|row| Some(&row.rubric) == name.digest.as_ref());
    let (Some(RubricRow { reasons, thinking, accepted, .. }), Some(rubric)) = (row, &name.rubric) else {
        return name.label.clone();
    };
    let mut asked = format!("{} ({rubric}, reasons {reasons}", name.judge);
    if thinking.is_some() {
        asked += ", told about thinking";
    }
    if accepted.is_some() {
        asked += ", exact match";
    }
    asked + ")"
}

fn short(digest: &str) -> &str {
    digest.get(..SHORT).unwrap_or(digest)
}

/// The rubric of a row that does not name it, by its digest.
fn earlier_name(benchmark: &str, row: &VerdictRow) -> Option<String> {
    let digest = row.rubric.as_deref()?;
    let rubric = named(benchmark)?.rubrics().iter().find(|rubric| rubric.earlier.contains(&digest))?;
    Some(rubric.name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(judge: &str, digest: Option<&str>, name: Option<&str>) -> VerdictRow {
        VerdictRow {
            judge: judge.to_owned(),
            rubric: digest.map(str::to_owned),
            rubric_name: name.map(str::to_owned),
            correct: Some(true),
            ..VerdictRow::default()
        }
    }

    fn told(digest: &str, reasons: &str) -> RubricRow {
        RubricRow {
            rubric: digest.to_owned(),
            name: "fair".to_owned(),
            criteria: String::new(),
            reasons: reasons.to_owned(),
            thinking: None,
            accepted: None,
            template: String::new(),
        }
    }

    fn labels(rows: &[VerdictRow], rubrics: &[RubricRow]) -> Vec<String> {
        judge_names(rows, rubrics, "none").into_iter().map(|name| name.label).collect()
    }

    #[test]
    fn two_rubrics_of_one_judge_are_two_and_so_are_two_ways_of_asking() {
        let rows = [row("j", Some("aaaaaaaaa1"), Some("fair")), row("j", Some("b"), Some("hard"))];
        assert_eq!(labels(&rows, &[]), ["j (fair)", "j (hard)"]);
        let rows = [
            row("j", Some("aaaaaaaaa1"), Some("fair")),
            row("j", Some("bbbbbbbbb2"), Some("fair")),
            row("k", Some("bbbbbbbbb2"), Some("fair")),
        ];
        let rubrics = [told("aaaaaaaaa1", "first"), told("bbbbbbbbb2", "last")];
        assert_eq!(
            labels(&rows, &rubrics),
            ["j (fair, reasons first)", "j (fair, reasons last)", "k (fair)"]
        );
        // A text that changed under its name.
        assert_eq!(labels(&rows, &[])[..2], ["j (fair, aaaaaaaa)", "j (fair, bbbbbbbb)"]);
        let old = [row("j", None, None), row("j", Some("cccccccccc"), None)];
        assert_eq!(labels(&old, &[]), ["j", "j (unnamed rubric cccccccc)"]);
        let failed = VerdictRow { correct: None, error: Some("no".to_owned()), ..row("j", None, None) };
        assert!(labels(&[failed], &[]).is_empty(), "an error alone makes no judge");
    }

    #[test]
    fn a_choice_takes_a_judge_by_its_name_or_its_label_and_a_rubric_by_its_name() {
        let choice = |judge, rubric| JudgeChoice { judge, rubric };
        let label = "http://h/v1#m (strict, reasons first)";
        for judge in [None, Some("http://h/v1#m"), Some(label)] {
            for rubric in [None, Some("strict"), Some("strict, reasons first")] {
                assert!(choice(judge, rubric).takes(label), "{judge:?} {rubric:?}");
            }
        }
        for (judge, rubric) in [(Some("http://h/v1"), None), (None, Some("str")), (None, Some("released"))] {
            assert!(!choice(judge, rubric).takes(label), "{judge:?} {rubric:?}");
        }
        assert!(
            choice(Some("lenient"), None).takes("lenient") && !choice(None, Some("strict")).takes("lenient")
        );
    }

    #[test]
    fn rows_without_a_name_get_it_by_the_digests_of_earlier_texts() {
        for benchmark in crate::benchmarks::ALL {
            for rubric in benchmark.rubrics() {
                for digest in rubric.earlier {
                    let names = judge_names(&[row("j", Some(digest), None)], &[], benchmark.name());
                    assert_eq!(names[0].rubric.as_deref(), Some(rubric.name));
                }
            }
        }
    }
}
