//! SubtleMemory: does a model distinguish complementary, nuanced and contradictory memories? Each probe on a long history asks about a set
//! of related memories: complementary (combine, or any suffices), nuanced (time or occasion decides) or contradictory (say so; section
//! 2.1). Three evidence settings give the diagnosis (section 4, [`counts`]).

pub mod counts;
mod findings;
mod instances;
mod measures;
mod reader;
mod sample;
mod sessions;
mod settings;
mod tables;
mod terms;

use super::{
    Benchmark, Checks, Curve, Dimension, Files, JudgeUnit, LabelCheck, LensSpec, QUERY, References, Rubric,
    Side, Unit, VerdictKind,
};
use crate::case::truncate::Truncation;
use crate::statistics::bounded::Intervals;
use reader::{HISTORY_FILE, INSTANCES_FILE};
use terms::{CONFLICT_EARLY, CONFLICT_LATE, RELATION, SELECTED, TARGET, TITLE};

const SOFT_FORM: &str = "soft";
/// From the query to parts of a set, and question-independent look-back from later sessions.
const CURVES: [Curve; 6] = [
    Curve::new(QUERY, CONFLICT_EARLY),
    Curve::new(QUERY, CONFLICT_LATE),
    Curve::new(QUERY, TARGET),
    Curve::new(QUERY, SELECTED),
    Curve::new(CONFLICT_LATE, CONFLICT_EARLY),
    // Records rows for the target-to-target measure.
    Curve::new(TARGET, TARGET),
];

/// Section 2.2 and appendix C.1.3: one call per question, one word and a short reason.
const RUBRICS: [Rubric; 1] = [Rubric {
    name: "paper",
    about: "the guidance by relation of section 2.2 and appendix C.1.3",
    template: include_str!("templates/judge.j2"),
    unit: JudgeUnit::Probe,
    verdict: VerdictKind::Label { right: "CORRECT", wrong: "WRONG" },
    // The last three: references graded without a judge.
    earlier: &[
        "ea79c8650ff8b5da51caedffa50a58f20386af9fcb20bb5026c6734ebcebe66d",
        "9427e383a33468496f0640468cf4c8085ff2c32183def0429148b8809c39f00a",
        "30bef7fc2a06f8167905c49b6315cb92d401758ba21c71675c355d3536a73a8d",
        "6e32cf19579ff191037d9c0782f4fb53bfff47ff81e41b66bd31fadcdb08289f",
        "e6b8da8b6310da01ec8ee573a1bd53bc45aaf4565f5dd334e4cecf1c8913f462",
        "d89466e08f03a379e83e13c63a8f90ff76f2b8955149640a6fd58cd824c45153",
    ],
}];

pub static SUBTLEMEMORY: Benchmark = Benchmark {
    name: "subtlememory",
    title: TITLE,
    segment: sessions::SESSION,
    // Cases have no split label; questions have facets.
    split: "history",
    templates: &[
        ("system.j2", include_str!("templates/system.j2")),
        ("session.j2", include_str!("templates/session.j2")),
        ("strong.j2", include_str!("templates/strong.j2")),
        ("soft.j2", include_str!("templates/soft.j2")),
    ],
    rubrics: &RUBRICS,
    lens: LensSpec {
        curves: &CURVES,
        measures: &measures::MEASURES,
        groupings: &measures::GROUPINGS,
        sides: &[(CONFLICT_EARLY, Side::Older), (CONFLICT_LATE, Side::Newer)],
        ..LensSpec::DEFAULT
    },
    recognises,
    read: |files, _| reader::read(files),
    reads,
    checks: |case| Checks { golds: findings::golds(case), findings: findings::findings(case) },
    sample: sample::files,
    settings: &settings::SETTINGS,
    default_settings: &[settings::ORACLE, settings::FULL],
    arrange: |case, setting, _| {
        let mut case = case.clone();
        if setting.ends_with(settings::SOFT) {
            case.probes.iter_mut().for_each(|probe| SOFT_FORM.clone_into(&mut probe.form));
        }
        case
    },
    // The paper never truncates. Nearly every session is evidence, so truncation must ignore it.
    truncations: &[Truncation::Plain, Truncation::Evidence],
    references: Some(References { right: terms::CORRECT_ANSWERS, wrong: terms::INCORRECT_ANSWERS }),
    // Facts only: the topic would often reveal the relation.
    label_check: Some(LabelCheck {
        facet: RELATION,
        values: &terms::RELATIONS,
        unit: terms::INSTANCE,
        template: include_str!("templates/relation.j2"),
    }),
    sets: Some(terms::INSTANCE),
    unit: Unit::Probe,
    // Appendix C.3.
    strata: Some(RELATION),
    dimension: Dimension::Facet(RELATION),
    counts: |graded| tables::counts(graded, Intervals::Adjusted),
    paper_counts: Some(|graded| tables::counts(graded, Intervals::Paper)),
    ..Benchmark::DEFAULT
};

/// By content: history files begin with a session, question files with an instance.
fn recognises(files: &Files<'_>) -> bool {
    let has = |name: &str, words: [&str; 2]| {
        let beginning = files.beginning(name);
        words.iter().all(|word| beginning.contains(word))
    };
    files.names().into_iter().filter(|name| reads(name)).take(2).any(|name| {
        has(name, ["\"session_id\"", "\"history\""]) || has(name, ["\"instance_id\"", "\"relation_type\""])
    })
}

fn reads(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or_default();
    file == HISTORY_FILE || file == INSTANCES_FILE
}
