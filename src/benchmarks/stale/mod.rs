//! STALE: does a model notice that a later session has made an earlier one out of date, without saying so?
//!
//! A case is a history of dated sessions, two of which are evidence: `old`, and `new`, which overwrites it. Three probes ask
//! about the state itself (SR), take the earlier one for granted (PR), or need it for something else (IPA; section 3.3 of the
//! paper). Cases of type T1 change the same attribute, those of T2 an upstream one.

mod array;
pub mod exchange;
mod findings;
pub mod haystack;
mod lengths;
mod reader;
mod row;
mod rubrics;
pub mod sample;
mod terms;
mod write;

pub use findings::CHANGE_WORDS;
pub use reader::StaleReader;
use terms::{NEW, OLD, SESSION, SPLIT, TYPES};
pub use write::{WriteError, write_stale};

use super::reading::ReadError;
use super::{Benchmark, Cases, Curve, Files, Overall, QUERY, Rubric, SampleError, SampleSpec, Side};
use crate::data::Case;
use crate::data::finding::Finding;
use crate::data::stats::PrintedStats;
use crate::data::truncate::{Phases, Truncation};

/// SHA-256 of the published `T1_T2_400_FULL.json`, in lower-case hexadecimal.
pub const PUBLISHED_SHA256: &str = "5f3ec375179e20e2e94469e018189188f34e2e7e5f21cbecbd99fcfa648c1876";

/// As the paper writes it.
const TITLE: &str = "STALE";
/// The curves of figures 6 and 7: the first is the new session's look back, the others are the query's.
const CURVES: [Curve; 3] = [Curve::new(NEW, OLD), Curve::new(QUERY, OLD), Curve::new(QUERY, NEW)];

/// How the authors' code cuts: 128,000 tokens in all, of which it keeps 512 free; two sessions from either end, then some between the
/// old one and the new.
const PHASES: Phases = Phases { first: OLD, last: NEW, ends: 2, context: 128_000, reserved: 512 };

/// The benchmark.
#[derive(Debug, Clone, Copy)]
pub struct Stale;

fn read<'a>(files: &Files<'a>, split: Option<&'static str>) -> Cases<'a> {
    match files.open_first() {
        Ok(text) => Box::new(StaleReader::with_split(text, split)),
        Err(source) => Box::new(std::iter::once(Err(ReadError::Read { file: None, row: 0, source }))),
    }
}

impl Benchmark for Stale {
    fn name(&self) -> &'static str {
        "stale"
    }

    fn title(&self) -> &'static str {
        TITLE
    }

    fn recognises(&self, files: &Files<'_>) -> bool {
        let beginning = files.first_beginning();
        let fields = ["\"haystack_session\"", "\"M_old\"", "\"old_info\""];
        !files.is_folder() && fields.iter().any(|field| beginning.contains(field))
    }

    fn read<'a>(&self, files: Files<'a>) -> Cases<'a> {
        read(&files, None)
    }

    /// The rows of the construction's own files have no `type`.
    fn splits(&self) -> &'static [&'static str] {
        &TYPES
    }

    fn read_as<'a>(&self, files: Files<'a>, split: &'static str) -> Cases<'a> {
        read(&files, Some(split))
    }

    /// As the paper says (section 4.1), as the authors' code cuts where it is asked to, and without a look at the evidence.
    fn truncations(&self) -> &'static [Truncation] {
        &[Truncation::Evidence, Truncation::Phases(PHASES), Truncation::Plain]
    }

    fn published(&self, sha256: &str) -> Option<&'static str> {
        (sha256 == PUBLISHED_SHA256).then_some("T1_T2_400_FULL.json")
    }

    fn printed_lengths(&self) -> &'static [PrintedStats] {
        &lengths::TABLE_5
    }

    fn findings(&self, case: &Case) -> Vec<Finding> {
        findings::findings(case)
    }

    fn sample(&self, spec: SampleSpec) -> Result<Vec<(String, Vec<u8>)>, SampleError> {
        let failed =
            |error: anyhow::Error| SampleError(format!("the built-in sample cannot be made: {error:#}"));
        let cases = sample::cases(spec).map_err(|error| failed(error.into()))?;
        let mut text = Vec::new();
        write_stale(&mut text, &cases).map_err(|error| failed(error.into()))?;
        Ok(vec![(sample::FILE.to_owned(), text)])
    }

    fn templates(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("system.j2", include_str!("templates/system.j2")),
            ("session.j2", include_str!("templates/session.j2")),
            ("question.j2", include_str!("templates/question.j2")),
            ("request.j2", include_str!("templates/request.j2")),
        ]
    }

    fn rubrics(&self) -> &'static [Rubric] {
        &rubrics::RUBRICS
    }

    fn split(&self) -> &'static str {
        SPLIT
    }

    fn probes(&self) -> Vec<&'static str> {
        row::PROBES.map(|(_, id, _)| id).to_vec()
    }

    /// The mean of the six cells (table 2).
    fn overall(&self) -> Overall {
        Overall::Cells
    }

    fn segment(&self) -> &'static str {
        SESSION
    }

    fn curves(&self) -> &'static [Curve] {
        &CURVES
    }

    /// PR is passed too seldom for a stable comparison by verdict (section 4.3).
    fn pooled(&self) -> Option<&'static [&'static str]> {
        Some(&["SR", "IPA"])
    }

    /// Query to new over query to old (figures 3 and 8).
    fn ratio(&self) -> Option<(usize, usize)> {
        Some((2, 1))
    }

    fn anchors(&self) -> &'static [&'static str] {
        &[OLD, NEW]
    }

    fn sides(&self) -> &'static [(&'static str, Side)] {
        &[(OLD, Side::Older), (NEW, Side::Newer)]
    }
}
