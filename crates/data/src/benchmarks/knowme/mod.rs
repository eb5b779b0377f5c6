//! KnowMe-Bench: does a model know a person from the record of that person's life?
//!
//! A case is a data set: one life as thousands of events in the order in which it is told, and about a thousand questions on it in seven
//! tasks, from facts (T1 to T3) over the logic of the telling (T4, T5) to what goes on in the person (T6, T7; section 4 of the paper).
//! Answers are scored 0 to 5 by a rubric that differs by task (section 4.4); tables print percentages of 5 (table 1).
//!
//! Choices where the paper leaves room: a history that fits is shown whole (`full`), one that does not is searched for 50
//! events (`rag`, by words; `rag-dense`, by embeddings), shown in file order; `full` is the base that others are compared with; an answer
//! without a score counts as 0, and the mean without such answers, which is what the authors' script prints, stands beside it.

mod array;
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
    Benchmark, Checks, Context, Counts, Curve, Dimension, LensSpec, QUERY, Retriever, Setting, Unit,
};
use crate::case::truncate::Truncation;

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
        // Of the evidence events: the fields of an insight's events lie within them.
        evidence: Some((QUERY, &[EVIDENCE, ANCHOR_START, ANCHOR_END])),
        measures: &measures::MEASURES,
        groupings: &measures::GROUPINGS,
        ..LensSpec::DEFAULT
    },
    recognises: reader::recognises,
    read: |files, _| reader::read(files),
    reads: |name| folder::place(name).is_some(),
    checks: |case| Checks { golds: golds::golds(case), findings: golds::findings(case) },
    sample: sample::files,
    settings: &SETTINGS,
    default_settings: &[FULL],
    default_settings_of_long: Some(&[RAG]),
    // The paper says nothing of cutting. Nearly every event is evidence of some question, so what is kept must not depend on it.
    truncations: &[Truncation::Plain, Truncation::Evidence],
    // The paper's unit; histories are far fewer.
    unit: Unit::Probe,
    dimension: Dimension::Facet(TASK),
    counts: |graded| Counts { tables: table::tables(graded), charts: Vec::new() },
    ..Benchmark::DEFAULT
};
