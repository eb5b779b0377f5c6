//! The rubrics of a benchmark, each by a name: instructions of judges.
//!
//! Two rubrics are two judges: verdicts carry the name, and tables have a row each.

use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rubric {
    /// One word, for the command line, verdict rows and tables: `released`.
    pub name: &'static str,
    pub about: &'static str,
    /// The judge's input: a template (minijinja) over the case's notes by their names, `probes` (each with `id`, `query`,
    /// `answer`, `cut`, `facets`, the `values` that its verdict can have, and its own notes), `labels`, and `reasons`: `first` where the reply's reason is to stand before its
    /// verdict, `last` after it, `none` where there is to be none.
    pub template: &'static str,
    pub unit: JudgeUnit,
    pub verdict: VerdictKind,
    /// Digests that verdict rows carry which were judged by it before rows named their rubric.
    pub earlier: &'static [&'static str],
}

/// No rubric of a benchmark has the name that was typed.
#[derive(Debug, thiserror::Error)]
#[error("{benchmark} has no rubric `{name}`; it has: {known}")]
pub struct UnknownRubric {
    pub benchmark: &'static str,
    pub name: String,
    pub known: String,
}

/// The probes of one call of a judge.
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
        /// Probes that get some of the whole numbers only. The first that fits a probe counts; one that none fits gets them all.
        grades: &'static [Grades],
    },
    /// `choice`, one of these words; right where it is the probe's note `expected`.
    Choice {
        of: &'static [&'static str],
    },
}

/// The scores that a rubric gives to some of its probes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Grades {
    pub facet: (&'static str, &'static str),
    pub scores: &'static [u32],
}

impl VerdictKind {
    /// The whole scores that a probe of these facets can get, ascending; none where verdicts are no scores.
    pub fn scores(self, facets: &BTreeMap<String, String>) -> Vec<u32> {
        let VerdictKind::Score { most, grades } = self else { return Vec::new() };
        let fits = |own: &&Grades| facets.get(own.facet.0).is_some_and(|value| value == own.facet.1);
        grades.iter().find(fits).map_or_else(|| (0..=most).collect(), |own| own.scores.to_vec())
    }

    /// True if a probe of these facets can get this score: a whole one that the rubric gives, or one between two neighbouring whole
    /// ones that it gives.
    pub fn gives(self, score: f64, facets: &BTreeMap<String, String>) -> bool {
        let scores = self.scores(facets);
        [score.floor(), score.ceil()]
            .iter()
            .all(|whole| scores.iter().any(|given| f64::from(*given) == *whole))
    }

    /// The best score; `None` where verdicts are no scores.
    pub fn most(self) -> Option<u32> {
        match self {
            VerdictKind::Score { most, .. } => Some(most),
            VerdictKind::Correct | VerdictKind::Label { .. } | VerdictKind::Choice { .. } => None,
        }
    }

    /// The key that a judge's JSON and a verdict's row have for it.
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

    /// The values that a probe of these facets can get, for a judge.
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

/// A question about the data itself, for a judge: which value of a facet it would have given, without being told it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LabelCheck {
    pub facet: &'static str,
    pub values: &'static [&'static str],
    /// Probes that share the value of this facet are asked about once, by the first of them.
    pub unit: &'static str,
    /// The judge's input: a template as that of [`Rubric::template`], of one probe, for a choice. It must not show the facet.
    pub template: &'static str,
}
