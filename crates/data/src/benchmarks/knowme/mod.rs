//! KnowMe-Bench: does a model know a person from their life record?
//!
//! A case is one life: thousands of events in narrative order, about a thousand questions in seven tasks: facts (T1 to T3), narrative logic
//! (T4, T5), inner life (T6, T7; section 4). Judges score 0 to 5 (section 4.4); tables print percentages of 5 (table 1).
//! Our choices: longer histories retrieve 50 events (`rag` by BM25, `rag-dense` by embeddings) in file order. Unscored answers count as 0.

mod events;
mod expected;
mod folder;
mod golds;
mod measures;
mod questions;
mod reader;
mod rows;
mod rubrics;
mod sample;
mod table;
pub mod task;
mod terms;

use terms::{
    ANCHOR_END, ANCHOR_START, DATASET, EVENT, EVIDENCE, FULL, INNER, OUTER, RAG, RAG_DENSE, TASK, TITLE,
};

use super::{Benchmark, Context, Counts, Curve, Dimension, LensSpec, QUERY, Retriever, Setting, Unit};
use crate::case::truncate::Truncation;

/// Section 5.1.
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

/// Query to evidence, to the ends of a duration (T3), to thoughts and observable fields of the same events (T6, T7).
const CURVES: [Curve; 5] = [
    Curve::new(QUERY, EVIDENCE),
    Curve::new(QUERY, ANCHOR_START),
    Curve::new(QUERY, ANCHOR_END),
    Curve::new(QUERY, INNER),
    Curve::new(QUERY, OUTER),
];

pub static KNOWME: Benchmark = Benchmark {
    name: "knowme",
    title: TITLE,
    segment: EVENT,
    split: DATASET,
    templates: &[
        ("system.j2", include_str!("templates/system.j2")),
        ("event.j2", include_str!("templates/event.j2")),
        ("question.j2", include_str!("templates/question.j2")),
        ("ordering.j2", include_str!("templates/ordering.j2")),
        ("insight.j2", include_str!("templates/insight.j2")),
    ],
    rubrics: &rubrics::RUBRICS,
    lens: LensSpec {
        curves: &CURVES,
        // Event level: insight fields are inside these events.
        evidence: Some((QUERY, &[EVIDENCE, ANCHOR_START, ANCHOR_END])),
        measures: &measures::MEASURES,
        groupings: &measures::GROUPINGS,
        ..LensSpec::DEFAULT
    },
    recognises: reader::recognises,
    read: |files, _| reader::read(files),
    reads: |name| folder::place(name).is_some(),
    checks: golds::checks,
    sample: sample::files,
    settings: &SETTINGS,
    default_settings: &[FULL],
    default_settings_of_long: Some(&[RAG]),
    // Not in the paper. Nearly every event is evidence, so truncation must ignore it.
    truncations: &[Truncation::Plain, Truncation::Evidence],
    unit: Unit::Probe,
    dimension: Dimension::Facet(TASK),
    counts: |graded| Counts { tables: table::tables(graded), charts: Vec::new() },
    ..Benchmark::DEFAULT
};
