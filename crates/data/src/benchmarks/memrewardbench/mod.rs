//! MemoryRewardBench: can a model tell which agent managed its memory better? A case is a long-context task with two trajectories, one
//! better (section 3). The reply begins with `[[A]]` or `[[B]]`; the order is a setting (position bias, section 5.2).

#[cfg_attr(not(feature = "parquet"), path = "no_columns.rs")]
mod columns;
mod constraints;
pub mod counts;
pub mod difference;
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
    Benchmark, Counts, Curve, Dimension, GENERATION, LensSpec, Rubric, Side, VERDICT, VerdictKind,
    fixed_sample,
};
use crate::case::check::Scope;
use crate::case::truncate::{Middle, Truncation};
use terms::{
    BLOCK, CHOSEN, FIRST, ONLY_CHOSEN, ONLY_REJECTED, REJECTED, SECOND, SETTING, TASK, TITLE, TRAJECTORY,
};

/// Attention of the generation prompt and of the position that predicts the letter, and from the second trajectory to the first.
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

const RUBRICS: [Rubric; 1] = [Rubric::unused("letters", VerdictKind::Choice { of: &orders::LETTERS })];

/// The authors' cut of prompts of 131,072 tokens and more.
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
    // Fixed query, and near-identical trajectories by design.
    scope: Scope { queries: false, copies: false, ..Scope::ALL },
    // Two invented pairs per setting, much shorter than their `ctx_length`, which is assigned to fill every table column.
    sample: |spec| {
        let file = ("memrewardbench.jsonl", include_bytes!("sample/pairs.jsonl").as_slice());
        fixed_sample(spec, "pairs of two trajectories", &[file])
    },
    settings: orders::SETTINGS,
    default_settings: &["chosen-first", "rejected-first"],
    arrange: orders::arrange,
    // Section C.2.
    max_new_tokens: 16_384,
    // No segment can be dropped: show the pair whole, or cut as the authors do.
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
