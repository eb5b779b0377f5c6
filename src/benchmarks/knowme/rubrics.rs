//! The judge's instructions, by task: the scale of the authors' own judge, and one with a grade for each number, both in our words.
//!
//! Section 4.4: one call a question, a score with a reason.

use super::terms::BEST;
use crate::benchmarks::{JudgeUnit, Rubric, VerdictKind};

/// A rubric whose scales by task stand in a file of their own; what is asked and how to reply are the same for all.
macro_rules! judge {
    ($scales:literal) => {
        concat!(
            include_str!("templates/judge-head.j2"),
            include_str!($scales),
            include_str!("templates/judge-tail.j2")
        )
    };
}

/// The default first.
pub(super) const RUBRICS: [Rubric; 2] = [
    Rubric {
        name: "released",
        about: "the scale of the authors' judge: T3 and T5 get 0, 3 or 5, what is made up gets 1",
        template: judge!("templates/released.j2"),
        unit: JudgeUnit::Probe,
        verdict: VerdictKind::Score { most: BEST },
        earlier: &[],
    },
    Rubric {
        name: "graded",
        about: "every number from 0 to 5 has a grade of its own in each task, what is made up gets 0",
        template: judge!("templates/graded.j2"),
        unit: JudgeUnit::Probe,
        verdict: VerdictKind::Score { most: BEST },
        earlier: &[
            "a666bb48212189d3f06c1c9f4ff0567da9769e7e9468f99230fa5e15fdb0a33d",
            "a189c0f7e92c168a7c1bf8ada34235d6f362f190494fee47883a32d39c727a7d",
            "3ebbaffe632c76fa42df718deb5fce255fe43c98b1a295f76a3fc23e3c6a6b6f",
        ],
    },
];
