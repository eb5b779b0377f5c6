//! Benchmarks: one folder each, registered in [`ALL`]; other modules know none by name.
//!
//! A [`Benchmark`] defines how files become cases, probes become prompts, what judges see, what is counted, and the roles of spans.
//! Must not run a model, judge or draw.

pub(crate) mod arrays;
mod benchmark;
mod chart;
pub mod dataset;
pub mod dose;
mod files;
mod graded;
pub mod knowme;
pub mod measure;
pub mod memrewardbench;
pub mod own;
pub mod reading;
mod readings;
mod rubric;
mod setting;
pub mod shape;
pub mod stale;
pub mod subtlememory;

use benchmark::fixed_sample;
pub use benchmark::{
    Benchmark, Checks, Counts, Curve, Dimension, Exchanged, GENERATION, LensSpec, Overall, PAPER_ENCODING,
    QUERY, References, SampleError, SampleFiles, SampleSpec, Side, Unit, VERDICT, rubric_named,
};
pub use chart::{Bar, BarChart, Chart, Share, TrendChart, TrendLine, TrendPanel};
pub use files::Files;
pub use graded::{CUT_MARK, CutCount, Graded, GradedMemory, HistoryCut, ShownSegments, Table};
pub use measure::{Amount, Axis, Grouping, Judged, KeySpan, LayerSpans, Measure, RowAt, Scale, Seen};
pub use reading::Cases;
pub use readings::{Given, NotRead, Reading, Said, Told};
pub use rubric::{Grades, JudgeUnit, LabelCheck, Rubric, UnknownRubric, VerdictKind};
pub use setting::{Context, Retriever, Setting};

use crate::ground::order::unique;

/// The first is the default for runs and files that name none.
pub static ALL: [&Benchmark; 6] = [
    &stale::STALE,
    &subtlememory::SUBTLEMEMORY,
    &knowme::KNOWME,
    &memrewardbench::MEMREWARDBENCH,
    &dose::DOSE,
    &own::OWN,
];

pub fn row_roles(benchmark: &Benchmark) -> Vec<&'static str> {
    let rows = benchmark.lens.curves.iter().map(|curve| curve.from);
    unique(rows.filter(|row| ![QUERY, "last", "answer", VERDICT].contains(row)))
}

pub fn wants_verdict_row(benchmark: &Benchmark) -> bool {
    benchmark.lens.curves.iter().any(|curve| curve.from == VERDICT)
}

pub fn side_of(role: &str) -> Option<Side> {
    let mut sides = ALL.iter().flat_map(|benchmark| benchmark.lens.sides);
    sides.find(|(known, _)| *known == role).map(|(_, side)| *side)
}

/// True if `judge` names a reading ([`Benchmark::readings`]) instead of a model.
pub fn is_reading(judge: &str) -> bool {
    ALL.iter().flat_map(|benchmark| benchmark.readings).any(|reading| reading.name == judge)
}

pub fn named(name: &str) -> Option<&'static Benchmark> {
    ALL.into_iter().find(|benchmark| benchmark.name == name)
}

pub fn default_name() -> String {
    ALL[0].name.to_owned()
}
