//! KnowMe-Bench: does a model know a person from the record of that person's life?
//!
//! A case is a data set: one life as thousands of events in the order in which it is told, and about a thousand questions on it in seven
//! tasks, from facts (T1 to T3) over the logic of the telling (T4, T5) to what goes on in the person (T6, T7; section 4 of the paper).
//! Answers are scored 0 to 5 by a rubric that differs by task (section 4.4); tables print percentages of 5 (table 1).
//!
//! What the paper leaves open and is chosen here: a history that fits is shown whole (`full`), one that does not is searched for 50
//! events (`rag`, by words; `rag-dense`, by embeddings), shown in file order; `full` is the base that others are compared with; an answer
//! without a score counts as 0, and the mean without such answers, which is what the authors' script prints, stands beside it.

mod array;
pub mod divergence;
mod events;
mod expected;
mod findings;
mod folder;
mod golds;
mod measures;
mod questions;
mod reader;
mod rubrics;
mod sample;
mod table;
pub mod task;
mod terms;

use terms::{
    ANCHOR_END, ANCHOR_START, DATASET, EVENT, EVIDENCE, FULL, INNER, OUTER, RAG, RAG_DENSE, TASK, TITLE,
};

use super::{
    Benchmark, Cases, Context, Curve, Dimension, Files, Graded, Grouping, LayerSpans, Measure, QUERY,
    Retriever, Rubric, SampleError, SampleSpec, Setting, Table, Unit,
};
use crate::data::truncate::Truncation;

use crate::data::Case;
use crate::data::finding::{Finding, Gold};

/// Events that are retrieved for a question (section 5.1).
const MOST_RETRIEVED: usize = 50;

const SETTINGS: [Setting; 3] = [
    Setting { name: FULL, about: "all events", context: Context::Whole },
    Setting {
        name: RAG,
        about: "the 50 events nearest to the question by words",
        context: Context::Retrieved { by: Retriever::Bm25, most: MOST_RETRIEVED },
    },
    Setting {
        name: RAG_DENSE,
        about: "the 50 events nearest to the question by embeddings",
        context: Context::Retrieved { by: Retriever::Dense, most: MOST_RETRIEVED },
    },
];

/// From the question to its evidence; to the two ends of a duration (T3); to what was thought and what was to be seen in the same
/// events (T6, T7).
const CURVES: [Curve; 5] = [
    Curve::new(QUERY, EVIDENCE),
    Curve::new(QUERY, ANCHOR_START),
    Curve::new(QUERY, ANCHOR_END),
    Curve::new(QUERY, INNER),
    Curve::new(QUERY, OUTER),
];

/// The benchmark.
#[derive(Debug, Clone, Copy)]
pub struct KnowMe;

impl Benchmark for KnowMe {
    fn name(&self) -> &'static str {
        "knowme"
    }

    fn title(&self) -> &'static str {
        TITLE
    }

    fn recognises(&self, files: &Files<'_>) -> bool {
        reader::recognises(files)
    }

    fn reads(&self, name: &str) -> bool {
        folder::place(name).is_some()
    }

    fn read<'a>(&self, files: Files<'a>) -> Cases<'a> {
        reader::read(files)
    }

    fn golds(&self, case: &Case) -> Vec<Gold> {
        golds::golds(case)
    }

    fn findings(&self, case: &Case) -> Vec<Finding> {
        golds::findings(case)
    }

    fn sample(&self, spec: SampleSpec) -> Result<Vec<(String, Vec<u8>)>, SampleError> {
        sample::files(spec)
    }

    fn settings(&self) -> &'static [Setting] {
        &SETTINGS
    }

    fn default_settings(&self, fits: bool) -> &'static [&'static str] {
        if fits { &[FULL] } else { &[RAG] }
    }

    /// The paper says nothing of cutting. Nearly every event is evidence of some question, so what is kept must not depend on it.
    fn truncations(&self) -> &'static [Truncation] {
        &[Truncation::Plain, Truncation::Evidence]
    }

    fn templates(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("system.j2", include_str!("templates/system.j2")),
            ("event.j2", include_str!("templates/event.j2")),
            ("question.j2", include_str!("templates/question.j2")),
            ("ordering.j2", include_str!("templates/ordering.j2")),
            ("insight.j2", include_str!("templates/insight.j2")),
        ]
    }

    fn rubrics(&self) -> &'static [Rubric] {
        &rubrics::RUBRICS
    }

    fn split(&self) -> &'static str {
        DATASET
    }

    /// The paper's unit; histories are far fewer.
    fn unit(&self) -> Unit {
        Unit::Probe
    }

    fn dimension(&self) -> Dimension {
        Dimension::Facet(TASK)
    }

    fn segment(&self) -> &'static str {
        EVENT
    }

    fn curves(&self) -> &'static [Curve] {
        &CURVES
    }

    fn measures(&self) -> &'static [Measure] {
        &measures::MEASURES
    }

    fn groupings(&self) -> &'static [Grouping] {
        &measures::GROUPINGS
    }

    /// Of the evidence events: the fields of an insight's events lie within them.
    fn evidence_lift(&self, at: &LayerSpans<'_>) -> Option<f64> {
        at.lift(QUERY, &[EVIDENCE, ANCHOR_START, ANCHOR_END])
    }

    fn tables(&self, graded: &[Graded<'_>]) -> Vec<Table> {
        table::tables(graded)
    }
}
