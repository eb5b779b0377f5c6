//! STALE: does a model notice that a later session silently invalidates an earlier one?
//!
//! A history has two evidence sessions: `old`, and `new`, which overwrites it. Probes ask about the state (SR), presuppose the old one
//! (PR), or need it for another task (IPA; section 3.3). T1 changes the same attribute, T2 an upstream one.

pub mod exchange;
mod findings;
pub mod haystack;
mod lengths;
mod row;
mod rubrics;
pub mod sample;
mod terms;
mod write;

pub use findings::{FEWEST, TOLD};
pub use row::read_stale;
use terms::{NEW, OLD, SESSION, SPLIT, TITLE, TYPES};
pub use write::{Pair, WriteError, write_stale};

use super::reading::{ReadError, unreadable};
use super::{
    Benchmark, Cases, Checks, Curve, Files, LensSpec, Overall, QUERY, SampleError, SampleFiles, SampleSpec,
    Side,
};
use crate::case::truncate::{Phases, Truncation};

pub const PUBLISHED_SHA256: &str = "5f3ec375179e20e2e94469e018189188f34e2e7e5f21cbecbd99fcfa648c1876";

/// Figures 6 and 7: the new session's look back, then the query's.
const CURVES: [Curve; 3] = [Curve::new(NEW, OLD), Curve::new(QUERY, OLD), Curve::new(QUERY, NEW)];

const PROBE_IDS: [&str; 3] = [row::PROBES[0].1, row::PROBES[1].1, row::PROBES[2].1];

/// The authors' cut: 128,000 tokens, 512 reserved; two sessions from either end, then between old and new.
const PHASES: Phases = Phases { first: OLD, last: NEW, ends: 2, context: 128_000, reserved: 512 };

pub static STALE: Benchmark = Benchmark {
    name: "stale",
    title: TITLE,
    segment: SESSION,
    split: SPLIT,
    templates: &[
        ("system.j2", include_str!("templates/system.j2")),
        ("session.j2", include_str!("templates/session.j2")),
        ("question.j2", include_str!("templates/question.j2")),
        ("request.j2", include_str!("templates/request.j2")),
    ],
    query_time_if_asked: true,
    rubrics: &rubrics::RUBRICS,
    lens: LensSpec {
        curves: &CURVES,
        // PR is passed too rarely to compare by verdict (section 4.3).
        pooled: Some(&["SR", "IPA"]),
        // Query to new over query to old (figures 3 and 8).
        ratio: Some((CURVES[2], CURVES[1])),
        anchors: &[OLD, NEW],
        sides: &[(OLD, Side::Older), (NEW, Side::Newer)],
        ..LensSpec::DEFAULT
    },
    recognises,
    read,
    // Files of the construction have no `type`.
    splits: &TYPES,
    checks: |case| Checks { findings: findings::findings(case), ..Checks::default() },
    published: &[(PUBLISHED_SHA256, "T1_T2_400_FULL.json")],
    printed_lengths: &lengths::TABLE_5,
    sample: sample_file,
    // The paper's (section 4.1), the authors' code's, and one that ignores evidence.
    truncations: &[Truncation::Evidence, Truncation::Phases(PHASES), Truncation::Plain],
    stated: &[OLD, NEW],
    probes: &PROBE_IDS,
    // Mean of the six cells (table 2).
    overall: Overall::Cells,
    ..Benchmark::DEFAULT
};

fn recognises(files: &Files<'_>) -> bool {
    let beginning = files.first_beginning();
    let fields = ["\"haystack_session\"", "\"M_old\"", "\"old_info\""];
    !files.is_folder() && fields.iter().any(|field| beginning.contains(field))
}

fn read<'a>(files: Files<'a>, split: Option<&'static str>) -> Cases<'a> {
    match files.open_first() {
        Ok(text) => read_stale(text, split),
        Err(source) => unreadable(ReadError::Read { file: None, row: 0, source }),
    }
}

fn sample_file(spec: SampleSpec) -> Result<SampleFiles, SampleError> {
    let failed = |error: anyhow::Error| SampleError(format!("the built-in sample cannot be made: {error:#}"));
    let cases = sample::cases(spec).map_err(|error| failed(error.into()))?;
    let mut text = Vec::new();
    write_stale(&mut text, &cases).map_err(|error| failed(error.into()))?;
    Ok(vec![(sample::FILE.to_owned(), text)])
}
