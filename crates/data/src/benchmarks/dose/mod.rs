//! Dose: synthetic histories that vary one factor (distance, depth, ...), in twins of equal length, written by `palimpsest build dose`. The
//! value that the model considers current is read from log-probabilities.

mod case;
pub mod implied;
mod reader;
mod readings;
pub mod row;
pub mod state;
pub mod terms;

use super::{Benchmark, Curve, LensSpec, QUERY, Rubric, Side, VerdictKind, fixed_sample};
use crate::case::check::Scope;
use terms::{
    ABSENT, CURRENT, ECHO, LURE, MID, NEW, NO_VALUE, OLD, OTHER_ANSWER, SESSION, STALE, TITLE, TWIN,
};

pub use reader::FILE;

/// Attention from new sessions, the question, the last prompt position and the answer.
const CURVES: [Curve; 13] = [
    Curve::new(QUERY, OLD),
    Curve::new(QUERY, NEW),
    Curve::new("last", OLD),
    Curve::new("last", NEW),
    Curve::new(NEW, OLD),
    Curve::new(QUERY, MID),
    Curve::new(QUERY, LURE),
    Curve::new(QUERY, ECHO),
    Curve::new("last", MID),
    Curve::new("last", LURE),
    Curve::new("last", ECHO),
    Curve::new("answer", OLD),
    Curve::new("answer", NEW),
];

const RUBRICS: [Rubric; 1] =
    [Rubric::unused("values", VerdictKind::Choice { of: &[CURRENT, STALE, ABSENT, NO_VALUE, OTHER_ANSWER] })];

pub static DOSE: Benchmark = Benchmark {
    name: "dose",
    title: TITLE,
    segment: SESSION,
    split: TWIN,
    templates: &[
        ("system.j2", include_str!("templates/system.j2")),
        ("session.j2", include_str!("templates/session.j2")),
        ("question.j2", include_str!("templates/question.j2")),
    ],
    rubrics: &RUBRICS,
    lens: LensSpec {
        curves: &CURVES,
        ratio: Some((CURVES[1], CURVES[0])),
        // No anchors: roles repeat.
        sides: &[(OLD, Side::Older), (NEW, Side::Newer)],
        ..LensSpec::DEFAULT
    },
    recognises: reader::recognises,
    read: |files, _| reader::rows(files),
    reads: |name| name == FILE,
    // Shared templates, near-identical twins, and crossed dates: these checks do not apply.
    scope: Scope { queries: false, copies: false, order: false },
    checks: state::checks,
    sample: |spec| {
        let file = (FILE, include_bytes!("sample/dose.jsonl").as_slice());
        fixed_sample(spec, "one file with histories of its own", &[file])
    },
    max_new_tokens: 16,
    readings: readings::READINGS,
    ..Benchmark::DEFAULT
};
