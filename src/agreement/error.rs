//! Why answers could not be drawn, or ratings not be scored.

use std::path::PathBuf;

use crate::judge::JudgeError;
use crate::run::error::RunError;
use crate::run::judged::UnknownJudge;

/// Why answers could not be drawn, or ratings not be scored.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the messages print
pub enum AgreementError {
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    UnknownJudge(#[from] UnknownJudge),
    #[error(transparent)]
    Rubric(#[from] JudgeError),
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    /// The runs are of different benchmarks.
    #[error(
        "{first} is a run of {first_benchmark} and {other} of {other_benchmark}; draw from runs of one benchmark"
    )]
    Benchmarks { first: PathBuf, first_benchmark: String, other: PathBuf, other_benchmark: String },
    /// The benchmark's answers are neither right or wrong nor scored.
    #[error(
        "a judge of {benchmark} says {values} of an answer, and raters say correct or incorrect, or give a score; draw from runs of a \
         benchmark whose answers are judged so"
    )]
    NotRated { benchmark: &'static str, values: String },
    #[error("{0} and {1} hold the same run; give each run once")]
    SameRun(PathBuf, PathBuf),
    /// A cell has too few cases or probes.
    #[error(
        "{run}: {split} {value} has {found} {what}, and {wanted} are to be drawn; finish the run, or draw \
         fewer with --per-cell {found}"
    )]
    TooFew {
        run: PathBuf,
        split: &'static str,
        value: String,
        what: &'static str,
        found: usize,
        wanted: usize,
    },
    #[error("{0} holds a sheet already; draw into a new folder")]
    Occupied(PathBuf),
    #[error("{path}: {reason}")]
    Broken { path: PathBuf, reason: String },
    /// A run is not the one that was drawn from.
    #[error(
        "{dir} is not the run that the sheet was drawn from; give `runs[{index}].dir` in key.json its place"
    )]
    OtherRun { dir: PathBuf, index: usize },
    /// An answer changed after it was drawn.
    #[error(
        "{dir}: the answer of {case} {probe} is not the one that was rated; it was answered again after the draw, so draw anew"
    )]
    OtherAnswer { dir: PathBuf, case: String, probe: String },
    #[error("{0} has no verdicts; judge it with `palimpsest judge`")]
    NotJudged(PathBuf),
    /// The runs were judged by different judges.
    #[error(
        "{first} was last judged by {first_judge} and {other} by {other_judge}; choose one with --judge NAME"
    )]
    Judges { first: PathBuf, first_judge: String, other: PathBuf, other_judge: String },
    /// No judge judged by the rubric that the raters read.
    #[error(
        "{dir} has no verdicts by the rubric {wanted} that the raters read; it has verdicts of: {known}; judge it by that rubric \
         (`palimpsest judge --rubric NAME`, or --prompts with the same judge.j2), or draw anew with `agree draw --judge NAME`"
    )]
    OtherRubric { dir: PathBuf, wanted: String, known: String },
    /// The runs were judged by different rubrics, and none was chosen for the raters.
    #[error(
        "{first} was last judged by {first_judge} and {other} by {other_judge}, and raters read one rubric; choose it with --rubric NAME"
    )]
    Rubrics { first: PathBuf, first_judge: String, other: PathBuf, other_judge: String },
    #[error("{unknown}{of_runs}")]
    UnknownRubric { unknown: crate::benchmarks::UnknownRubric, of_runs: String },
    /// Verdicts are by a rubric whose text is not known any more.
    #[error(
        "the text of the rubric that {judge} went by in {dir} is in no file of the run: verdicts of earlier versions have its digest \
         alone; choose one with --rubric NAME or --prompts DIR, and judge again by it"
    )]
    LostRubric { dir: PathBuf, judge: String },
    #[error("{path}, {place}: {reason}")]
    Rating { path: PathBuf, place: String, reason: String },
}

impl AgreementError {
    /// Of a path, for `map_err`.
    pub(super) fn io(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| AgreementError::Io { path, source }
    }
}
