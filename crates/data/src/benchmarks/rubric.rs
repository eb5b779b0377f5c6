//! Judge rubrics. Each rubric counts as a judge of its own: verdicts carry its name, tables have a row each.

use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rubric {
    /// For the command line, verdict rows and tables: `released`.
    pub name: &'static str,
    pub about: &'static str,
    /// Minijinja template of the judge's input, over the case's notes, `labels`, `probes` (`id`, `query`, `answer`, `cut`, `facets`,
    /// `values` and the probe's notes) and `reasons` (`first`, `last` or `none`: the position of the reply's reason).
    pub template: &'static str,
    pub unit: JudgeUnit,
    pub verdict: VerdictKind,
    /// Digests of verdict rows written before rows named their rubric.
    pub earlier: &'static [&'static str],
}

impl Rubric {
    /// Rubric of answers that are read by rules ([`super::Benchmark::readings`]).
    pub(super) const fn unused(name: &'static str, verdict: VerdictKind) -> Self {
        let about = "read by rules, put to nobody";
        Rubric { name, about, template: "", unit: JudgeUnit::Probe, verdict, earlier: &[] }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{benchmark} has no rubric `{name}`; it has: {known}")]
pub struct UnknownRubric {
    pub benchmark: &'static str,
    pub name: String,
    pub known: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JudgeUnit {
    /// All probes of a case under a condition.
    Case,
    Probe,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum VerdictKind {
    Correct,
    /// Right or wrong by one of two words: `label`. The reply is one object without ids, so a call covers one probe.
    Label {
        right: &'static str,
        wrong: &'static str,
    },
    Score {
        most: u32,
        /// Restricted integer scores per probe; the first match applies, without a match all scores are allowed.
        grades: &'static [Grades],
    },
    /// `choice` among these words; right if equal to the note `expected`.
    Choice {
        of: &'static [&'static str],
    },
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Grades {
    pub facet: (&'static str, &'static str),
    pub scores: &'static [u32],
}

impl VerdictKind {
    /// Integer scores for these facets, ascending; empty if verdicts are not scores.
    pub fn scores(self, facets: &BTreeMap<String, String>) -> Vec<u32> {
        let VerdictKind::Score { most, grades } = self else { return Vec::new() };
        let fits = |own: &&Grades| facets.get(own.facet.0).is_some_and(|value| value == own.facet.1);
        grades.iter().find(fits).map_or_else(|| (0..=most).collect(), |own| own.scores.to_vec())
    }

    /// True for an allowed integer, or a number between two adjacent allowed integers.
    pub fn gives(self, score: f64, facets: &BTreeMap<String, String>) -> bool {
        let scores = self.scores(facets);
        [score.floor(), score.ceil()]
            .iter()
            .all(|whole| scores.iter().any(|given| f64::from(*given) == *whole))
    }

    pub fn most(self) -> Option<u32> {
        match self {
            VerdictKind::Score { most, .. } => Some(most),
            VerdictKind::Correct | VerdictKind::Label { .. } | VerdictKind::Choice { .. } => None,
        }
    }

    /// JSON key in replies and verdict rows.
    pub fn key(self) -> &'static str {
        match self {
            VerdictKind::Correct => "correct",
            VerdictKind::Label { .. } => "label",
            VerdictKind::Score { .. } => "score",
            VerdictKind::Choice { .. } => "choice",
        }
    }

    pub fn is_right_or_wrong(self) -> bool {
        matches!(self, VerdictKind::Correct | VerdictKind::Label { .. })
    }

    pub fn values(self, facets: &BTreeMap<String, String>) -> String {
        let either = |words: Vec<String>| match words.split_last() {
            Some((last, before)) if !before.is_empty() => format!("{} or {last}", before.join(", ")),
            _ => words.concat(),
        };
        match self {
            VerdictKind::Correct => "true or false".to_owned(),
            VerdictKind::Label { right, wrong } => format!("\"{right}\" or \"{wrong}\""),
            VerdictKind::Score { .. } => either(self.scores(facets).iter().map(u32::to_string).collect()),
            VerdictKind::Choice { of } => either(of.iter().map(|word| format!("\"{word}\"")).collect()),
        }
    }
}

/// Asks a judge to predict a facet, to validate the data's label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LabelCheck {
    pub facet: &'static str,
    pub values: &'static [&'static str],
    /// One call per value of this facet, for its first probe.
    pub unit: &'static str,
    /// Template like [`Rubric::template`], for one probe; must not show the facet.
    pub template: &'static str,
}
