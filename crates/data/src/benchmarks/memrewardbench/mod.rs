//! MemoryRewardBench: can a model tell which of two agents managed its memory better?
//!
//! A case is a pair: a task with its long context and two trajectories, one of them the better one (section 3 of the paper). The
//! model is shown all three and begins its reply with `[[A]]` or `[[B]]`. Which trajectory stands first is a setting, so that a
//! preference for a place can be told from one for a text (section 5.2).

#[cfg_attr(not(feature = "parquet"), path = "no_columns.rs")]
mod columns;
mod constraints;
pub mod counts;
mod difference;
mod measures;
mod orders;
mod outlines;
mod reader;
mod row;
mod tables;
mod tags;
mod terms;
mod trends;
mod verdicts;

pub use orders::{Order, Variant, parse as parse_setting};
pub use terms::{Length, Setting, Source, Task};

use super::{
    Benchmark, Counts, Curve, Dimension, GENERATION, JudgeUnit, LensSpec, Rubric, SampleError, SampleFiles,
    SampleSpec, Side, VERDICT, VerdictKind,
};
use crate::case::check::Scope;
use crate::case::truncate::{Middle, Truncation};
use terms::{
    BLOCK, CHOSEN, FIRST, ONLY_CHOSEN, ONLY_REJECTED, REJECTED, SECOND, SETTING, TASK, TITLE, TRAJECTORY,
};

/// Where the attention of the generation prompt goes, and of the position that predicted the letter; and what the second trajectory
/// reads of the first.
const CURVES: [Curve; 11] = [
    Curve::new(GENERATION, CHOSEN),
    Curve::new(GENERATION, REJECTED),
    Curve::new(VERDICT, CHOSEN),
    Curve::new(VERDICT, REJECTED),
    Curve::new(GENERATION, ONLY_CHOSEN),
    Curve::new(GENERATION, ONLY_REJECTED),
    Curve::new(VERDICT, ONLY_CHOSEN),
    Curve::new(VERDICT, ONLY_REJECTED),
    Curve::new(GENERATION, BLOCK),
    Curve::new(VERDICT, BLOCK),
    Curve::new(SECOND, FIRST),
];

/// No model judges: answers say what they choose ([`Benchmark::readings`]).
const RUBRICS: [Rubric; 1] = [Rubric {
    name: "letters",
    about: "read by rules, put to nobody",
    template: "",
    unit: JudgeUnit::Probe,
    verdict: VerdictKind::Choice { of: &orders::LETTERS },
    earlier: &[],
}];

/// The cut of the authors' code in a prompt of 131,072 tokens and more.
const MIDDLE: Middle = Middle { from: 131_072, first: 65_536, last: 65_531 };

pub static MEMREWARDBENCH: Benchmark = Benchmark {
    name: "memrewardbench",
    title: TITLE,
    segment: TRAJECTORY,
    split: TASK,
    templates: &[
        ("system.j2", include_str!("templates/system.j2")),
        ("question.j2", include_str!("templates/question.j2")),
        ("trajectory.j2", include_str!("templates/trajectory.j2")),
        ("understanding.j2", include_str!("templates/pair.j2")),
        ("generation.j2", include_str!("templates/pair.j2")),
    ],
    rubrics: &RUBRICS,
    lens: LensSpec {
        curves: &CURVES,
        evidence: Some((GENERATION, &[CHOSEN, REJECTED])),
        measures: &measures::MEASURES,
        groupings: &measures::GROUPINGS,
        stand_in: Some(BLOCK),
        sides: &[
            (CHOSEN, Side::Right),
            (ONLY_CHOSEN, Side::Right),
            (REJECTED, Side::Wrong),
            (ONLY_REJECTED, Side::Wrong),
            (FIRST, Side::Older),
            (SECOND, Side::Newer),
        ],
        ..LensSpec::DEFAULT
    },
    recognises: reader::recognises,
    read: |files, _| reader::pairs(files),
    reads: reader::reads,
    // The query is our own instruction, and the trajectories of a pair differ by little.
    scope: Scope { queries: false, copies: false, ..Scope::ALL },
    sample: sample_file,
    settings: orders::SETTINGS,
    default_settings: &["chosen-first", "rejected-first"],
    arrange: orders::arrange,
    // Section C.2.
    max_new_tokens: 16_384,
    // A pair is shown whole or not at all, or as the authors' code cuts. No segment of it can go as a whole.
    truncations: &[Truncation::Evidence, Truncation::Middle(MIDDLE)],
    readings: verdicts::READINGS,
    decisive: |answer| verdicts::first_verdict(answer).map(|(_, at)| at),
    probes: &[VERDICT],
    dimension: Dimension::Facet(SETTING),
    counts: |graded| {
        let counted = counts::counted(graded);
        Counts { tables: tables::all(graded, &counted), charts: trends::charts(&counted) }
    },
    beside: Some(TRAJECTORY),
    ..Benchmark::DEFAULT
};

/// Twenty invented pairs, two of each setting. They are far shorter than their `ctx_length` says, which is dealt out so that every table
/// has all its columns.
fn sample_file(spec: SampleSpec) -> Result<SampleFiles, SampleError> {
    if let Some(segments) = spec.segments {
        let why = format!(
            "a pair of {TITLE} has one task and two trajectories, not {segments} segments; drop --sessions"
        );
        return Err(SampleError(why));
    }
    Ok(vec![("memrewardbench.jsonl".to_owned(), include_bytes!("sample/pairs.jsonl").to_vec())])
}
