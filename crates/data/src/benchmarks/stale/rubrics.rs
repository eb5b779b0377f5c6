//! Judge instructions in our words: the authors' criteria and stricter ones (appendices E.1, E.3). One call per case.

use crate::benchmarks::{JudgeUnit, Rubric, VerdictKind};

/// Combines rules from a file with the shared question and reply format.
macro_rules! judge {
    ($rules:literal) => {
        concat!(
            include_str!("templates/judge-head.j2"),
            include_str!($rules),
            include_str!("templates/judge-tail.j2")
        )
    };
}

pub(super) const RUBRICS: [Rubric; 2] = [
    Rubric {
        name: "released",
        about: "the criteria of the authors' judge",
        template: judge!("templates/released.j2"),
        unit: JudgeUnit::Case,
        verdict: VerdictKind::Correct,
        earlier: &[],
    },
    Rubric {
        name: "strict",
        about: "SR says what changed, PR corrects the premise and uses the new state, IPA acts on the new state",
        template: judge!("templates/strict.j2"),
        unit: JudgeUnit::Case,
        verdict: VerdictKind::Correct,
        earlier: &[
            "24a09b7cbc80363beb1fcbdb7ec294eb26b8672ab1977f8a056cb230c56bd067",
            "2dbcdde1a6de8380b91633aea4874e8b61134ea57182c9469e7155e03c663d67",
            "5ea02bda50021c19318a9a01de65ddc94e23e00d6d99dbc7c801b97255134543",
        ],
    },
];
