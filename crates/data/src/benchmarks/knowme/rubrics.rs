//! Judge instructions by task, in our words (section 4.4): the authors' scale, and one that defines every score. One call per question.

use super::terms::{BEST, EXPECTS, TASK};
use crate::benchmarks::{Grades, JudgeUnit, Rubric, VerdictKind};

macro_rules! judge {
    ($scales:literal, notes: $notes:literal) => {
        concat!(
            "{% set notes = ",
            $notes,
            " %}",
            include_str!("templates/judge-head.j2"),
            include_str!($scales),
            include_str!("templates/judge-tail.j2")
        )
    };
}

/// The authors' judge gives durations and triggers three scores.
const RELEASED: [Grades; 2] =
    [Grades { facet: (TASK, "T3"), scores: &[0, 3, 5] }, Grades { facet: (TASK, "T5"), scores: &[0, 3, 5] }];
/// Traps that expect an order or a fact are scored as such.
const GRADED: [Grades; 4] = [
    Grades { facet: (EXPECTS, "order"), scores: &[0, 1, 3, 4, 5] },
    Grades { facet: (EXPECTS, "fact"), scores: &[0, 1, 2, 3, 4, 5] },
    Grades { facet: (TASK, "T2"), scores: &[0, 1, 3, 5] },
    Grades { facet: (TASK, "T3"), scores: &[0, 1, 3, 4, 5] },
];

pub(super) const RUBRICS: [Rubric; 2] = [
    Rubric {
        name: "released",
        about: "the scale of the authors' judge, who sees question, reference and answer: T3 and T5 get 0, 3 or 5, what is made up gets 1",
        template: judge!("templates/released.j2", notes: "false"),
        unit: JudgeUnit::Probe,
        verdict: VerdictKind::Score { most: BEST, grades: &RELEASED },
        earlier: &[],
    },
    Rubric {
        name: "graded",
        about: "a scale for each task, what is made up gets 0; the judge sees how the reference comes about, too",
        template: judge!("templates/graded.j2", notes: "true"),
        unit: JudgeUnit::Probe,
        verdict: VerdictKind::Score { most: BEST, grades: &GRADED },
        earlier: &[
            "a666bb48212189d3f06c1c9f4ff0567da9769e7e9468f99230fa5e15fdb0a33d",
            "a189c0f7e92c168a7c1bf8ada34235d6f362f190494fee47883a32d39c727a7d",
            "3ebbaffe632c76fa42df718deb5fce255fe43c98b1a295f76a3fc23e3c6a6b6f",
        ],
    },
];
