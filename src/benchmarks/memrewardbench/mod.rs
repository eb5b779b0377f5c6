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
mod sample;
mod tables;
mod tags;
mod terms;
mod trends;
mod verdicts;
#[cfg(feature = "parquet")]
mod write;

pub use orders::{Order, Variant, parse as parse_setting};
pub use terms::{Length, Setting, Source, Task};
#[cfg(feature = "parquet")]
pub use write::{Row, write_parquet};

use super::{
    Benchmark, Cases, Chart, Curve, Dimension, Files, GENERATION, Graded, Grouping, JudgeUnit, LayerSpans,
    Measure, Reading, Rubric, SampleError, SampleSpec, Setting as Asked, Table, VERDICT, VerdictKind,
};
use crate::data::Case;
use crate::data::check::Scope;
use crate::data::truncate::{Middle, Truncation};
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

/// What the authors' code leaves of a prompt of 131,072 tokens and more.
const MIDDLE: Middle = Middle { from: 131_072, first: 65_536, last: 65_531 };

/// The benchmark.
#[derive(Debug, Clone, Copy)]
pub struct MemRewardBench;

impl Benchmark for MemRewardBench {
    fn name(&self) -> &'static str {
        "memrewardbench"
    }

    fn title(&self) -> &'static str {
        TITLE
    }

    fn recognises(&self, files: &Files<'_>) -> bool {
        reader::recognises(files)
    }

    fn reads(&self, name: &str) -> bool {
        reader::reads(name)
    }

    fn read<'a>(&self, files: Files<'a>) -> Cases<'a> {
        Box::new(reader::Pairs::new(files))
    }

    /// The query is our own instruction, and the trajectories of a pair differ by little.
    fn scope(&self) -> Scope {
        Scope { queries: false, copies: false }
    }

    fn sample(&self, spec: SampleSpec) -> Result<Vec<(String, Vec<u8>)>, SampleError> {
        if let Some(segments) = spec.segments {
            let why = format!(
                "a pair of {TITLE} has one task and two trajectories, not {segments} segments; drop --sessions"
            );
            return Err(SampleError(why));
        }
        Ok(vec![("memrewardbench.jsonl".to_owned(), sample::PAIRS.as_bytes().to_vec())])
    }

    fn settings(&self) -> &'static [Asked] {
        orders::SETTINGS
    }

    fn default_settings(&self, _fits: bool) -> &'static [&'static str] {
        &["chosen-first", "rejected-first"]
    }

    fn arrange(&self, case: &Case, setting: &str, seed: u64) -> Case {
        orders::arrange(case, setting, seed)
    }

    /// Section C.2.
    fn max_new_tokens(&self) -> usize {
        16_384
    }

    /// A pair is shown whole or not at all, or as the authors' code cuts. No segment of it can go as a whole.
    fn truncations(&self) -> &'static [Truncation] {
        &[Truncation::Evidence, Truncation::Middle(MIDDLE)]
    }

    fn templates(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("system.j2", include_str!("templates/system.j2")),
            ("question.j2", include_str!("templates/question.j2")),
            ("trajectory.j2", include_str!("templates/trajectory.j2")),
            ("understanding.j2", include_str!("templates/pair.j2")),
            ("generation.j2", include_str!("templates/pair.j2")),
        ]
    }

    fn rubrics(&self) -> &'static [Rubric] {
        &RUBRICS
    }

    fn readings(&self) -> &'static [Reading] {
        verdicts::READINGS
    }

    fn decisive(&self, answer: &str) -> Option<usize> {
        verdicts::first_verdict(answer).map(|(_, at)| at)
    }

    fn split(&self) -> &'static str {
        TASK
    }

    fn probes(&self) -> Vec<&'static str> {
        vec![VERDICT]
    }

    fn dimension(&self) -> Dimension {
        Dimension::Facet(SETTING)
    }

    fn segment(&self) -> &'static str {
        TRAJECTORY
    }

    fn curves(&self) -> &'static [Curve] {
        &CURVES
    }

    fn sides(&self) -> &'static [(&'static str, super::Side)] {
        use super::Side;
        &[
            (CHOSEN, Side::Right),
            (ONLY_CHOSEN, Side::Right),
            (REJECTED, Side::Wrong),
            (ONLY_REJECTED, Side::Wrong),
            (FIRST, Side::Older),
            (SECOND, Side::Newer),
        ]
    }

    fn measures(&self) -> &'static [Measure] {
        &measures::MEASURES
    }

    fn groupings(&self) -> &'static [Grouping] {
        &measures::GROUPINGS
    }

    fn evidence_lift(&self, at: &LayerSpans<'_>) -> Option<f64> {
        at.lift(GENERATION, &[CHOSEN, REJECTED])
    }

    fn stand_in(&self) -> Option<&'static str> {
        Some(BLOCK)
    }

    fn beside(&self) -> Option<&'static str> {
        Some(TRAJECTORY)
    }

    fn tables(&self, graded: &[Graded<'_>]) -> Vec<Table> {
        let counted = counts::counted(graded);
        tables::all(graded, &counted, trends::tables(&counted))
    }

    fn charts(&self, graded: &[Graded<'_>]) -> Vec<Chart> {
        trends::charts(&counts::counted(graded))
    }
}
