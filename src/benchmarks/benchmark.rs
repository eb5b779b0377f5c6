//! The trait of a benchmark, and the plain data that it speaks in.

use std::collections::BTreeMap;
use std::fmt::Debug;

use super::chart::Chart;
use super::files::Files;
use super::graded::{Graded, Table};
use super::label_check::LabelCheck;
use super::measure::{Grouping, LayerSpans, Measure};
use super::reading::{self, Problem, ReadError, Report};
use super::readings::Reading;
use super::rubric::Rubric;
use super::setting::Setting;
use crate::data::Case;
use crate::data::check::{Checker, Scope};
use crate::data::finding::{Finding, Gold};
use crate::data::stats::PrintedStats;
use crate::data::truncate::Truncation;

/// The cases of a data set, in its order, one in memory at a time. After [`ReadError::Row`] reading can go on.
pub type Cases<'a> = Box<dyn Iterator<Item = Result<Case, ReadError>> + 'a>;

/// A benchmark.
pub trait Benchmark: Debug + Send + Sync {
    /// The word that stands for it in files and on the command line.
    fn name(&self) -> &'static str;

    /// As people write it.
    fn title(&self) -> &'static str;

    /// Whether this is its data: a file or a folder. Formats are known by content, not by the file's ending.
    fn recognises(&self, files: &Files<'_>) -> bool;

    /// Whether a file of a folder, by its relative name, is read. Others are no part of the data's digest.
    fn reads(&self, _name: &str) -> bool {
        true
    }

    /// The cases of a data set, every field checked.
    fn read<'a>(&self, files: Files<'a>) -> Cases<'a>;

    /// The values of the label [`Benchmark::split`] that may be given for all rows of files whose rows do not say it; empty where all
    /// rows do.
    fn splits(&self) -> &'static [&'static str] {
        &[]
    }

    /// [`Benchmark::read`], where `split`, one of [`Benchmark::splits`], is the label of rows that do not say it.
    fn read_as<'a>(&self, files: Files<'a>, _split: &'static str) -> Cases<'a> {
        self.read(files)
    }

    /// What is wrong with the cases of a data set, and what is odd about them; every problem is told to `on_problem` when it is found.
    fn check(&self, cases: Cases<'_>, on_problem: &mut dyn FnMut(&Problem)) -> Report {
        let group = match self.dimension() {
            Dimension::Probe => None,
            Dimension::Facet(facet) => Some(facet),
        };
        let (mut checker, mut own) = (Checker::new(self.scope()), Vec::new());
        let mut look = |case: &Case| {
            checker.case(case, &self.golds(case));
            own.extend(self.findings(case));
        };
        let mut report = reading::check(cases, self.split(), group, on_problem, &mut look);
        report.findings.extend(own);
        report.findings.extend(checker.finish());
        report
    }

    /// How the checks of every benchmark's cases apply to these.
    fn scope(&self) -> Scope {
        Scope::default()
    }

    /// What is known of the right answer to each of a case's probes, in their order, for those checks; empty where nothing is.
    fn golds(&self, _case: &Case) -> Vec<Gold> {
        Vec::new()
    }

    /// What is odd about a case that only this benchmark knows, beside what those checks and its reader find.
    fn findings(&self, _case: &Case) -> Vec<Finding> {
        Vec::new()
    }

    /// What people call the data of this SHA-256, where it is published.
    fn published(&self, _sha256: &str) -> Option<&'static str> {
        None
    }

    /// The lengths of the published file's contexts as its paper prints them, in tokens of [`PAPER_ENCODING`]; none where it
    /// prints none.
    fn printed_lengths(&self) -> &'static [PrintedStats] {
        &[]
    }

    /// Our own sample, by file name: one file, or those of a folder, sorted.
    ///
    /// # Errors
    /// Where there is none, or not as asked.
    fn sample(&self, _spec: SampleSpec) -> Result<Vec<(String, Vec<u8>)>, SampleError> {
        Err(SampleError(format!("{} has no built-in sample; give a file", self.title())))
    }

    /// The ways in which its probes can be put: what `run --conditions` names. Empty where there is one way, the plain one.
    fn settings(&self) -> &'static [Setting] {
        &[]
    }

    /// Which of them run where none are named; `fits` says whether the longest history fits the context.
    fn default_settings(&self, _fits: bool) -> &'static [&'static str] {
        &[]
    }

    /// The case as it is put under a setting, before its context is taken of it: with other forms of probes, with its segments in
    /// another order (each with its original index), or rewritten. `seed` is of whatever is drawn.
    fn arrange(&self, case: &Case, _setting: &str, _seed: u64) -> Case {
        case.clone()
    }

    /// The prompt templates, by file name, in the order in which they are digested: `system.j2`, one a kind of segment
    /// (`session.j2`) and one a form of probe (`question.j2`).
    fn templates(&self) -> &'static [(&'static str, &'static str)];

    /// Whether a template may put the query before the history. The query's rows then see nothing of it, and prompts share no
    /// prefill: such a benchmark looks at the rows `last` and `answer`.
    fn question_first(&self) -> bool {
        false
    }

    /// Most tokens of an answer, where a run is told nothing else: what the authors allow, or enough for what is asked.
    fn max_new_tokens(&self) -> usize {
        1024
    }

    /// The ways in which a history that does not fit the context can be cut; the first where a run is told nothing else.
    fn truncations(&self) -> &'static [Truncation] {
        &[Truncation::Evidence, Truncation::Plain]
    }

    /// How answers are judged: at least one way, the first of which is the default. All return the same kind of verdict.
    fn rubrics(&self) -> &'static [Rubric];

    /// How answers are judged unless told otherwise.
    fn rubric(&self) -> Rubric {
        self.rubrics()[0]
    }

    /// The rules by which answers are read where no model has to judge them; each is a judge of its own. Where there are any, the
    /// rubrics are put to nobody.
    fn readings(&self) -> &'static [Reading] {
        &[]
    }

    /// The byte of an answer at which it decides, for example a verdict's letter: the token that holds it is the row [`VERDICT`] where
    /// a curve begins with that. `None` where there is no such place.
    fn decisive(&self, _answer: &str) -> Option<usize> {
        None
    }

    /// Which of a probe's notes holds the answers that are right word for word, where the benchmark has some: what an answer can be
    /// compared with before a judge is asked.
    fn accepted(&self) -> Option<&'static str> {
        None
    }

    /// How a label of the data is checked by a judge that is not told it; absent where none is.
    fn label_check(&self) -> Option<LabelCheck> {
        None
    }

    /// What is counted once in every mean of the attention analysis, and drawn in every resampling.
    fn unit(&self) -> Unit {
        Unit::Case
    }

    /// The label that cases are split by: the rows of tables and the panels of figures.
    fn split(&self) -> &'static str;

    /// The ids of the probes that every case has, in order: what a broken row is counted for. Empty where cases differ; a broken row
    /// then counts as one probe.
    fn probes(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// What probes are split by: the columns of tables.
    fn dimension(&self) -> Dimension {
        Dimension::Probe
    }

    /// How the number above all cells of a table is made.
    fn overall(&self) -> Overall {
        Overall::Probes
    }

    /// What people call a segment of a history: `session`, `event`.
    fn segment(&self) -> &'static str;

    /// Who looks at whom: the curves of the analysis. The spans in a role that a curve begins with are recorded as rows.
    fn curves(&self) -> &'static [Curve];

    /// The probes, by what they are grouped by ([`Benchmark::dimension`]), whose examples are averaged together and split by
    /// verdict in figures; `None` for all. Every probe has rows of its own in the tables.
    fn pooled(&self) -> Option<&'static [&'static str]> {
        None
    }

    /// The two curves, by their places in [`Benchmark::curves`], whose quotient the figures show.
    fn ratio(&self) -> Option<(usize, usize)> {
        None
    }

    /// The roles, each played once and in the order of the history, at which cases are aligned to be averaged. Without any
    /// there is no mean over histories.
    fn anchors(&self) -> &'static [&'static str] {
        &[]
    }

    /// What several spans in one role come to.
    fn several(&self) -> Several {
        Several::Sum
    }

    /// The tables that only this benchmark has, of the graded probes of any number of runs.
    fn tables(&self, _graded: &[Graded<'_>]) -> Vec<Table> {
        Vec::new()
    }

    /// The pictures of counts that only this benchmark has, of the graded probes of any number of runs.
    fn charts(&self, _graded: &[Graded<'_>]) -> Vec<Chart> {
        Vec::new()
    }

    /// The numbers of an example at a layer that its figures show, in their order.
    fn measures(&self) -> &'static [Measure] {
        &[]
    }

    /// How the examples of those are told apart, a figure each. Without any they are split by verdict.
    fn groupings(&self) -> &'static [Grouping] {
        &[]
    }

    /// The number that runs of several benchmarks are compared by: how much more the evidence gets than its noise baselines. Of
    /// the query's rows, or where no curve is the query's of those that the first curve begins with; the evidence is what their
    /// curves lead to.
    fn evidence_lift(&self, at: &LayerSpans<'_>) -> Option<f64> {
        let (from, to) = lift_curves(self.curves())?;
        at.lift(from, &to)
    }

    /// The kind of segments that stand side by side in a report: two trajectories.
    fn beside(&self) -> Option<&'static str> {
        None
    }

    /// The role of a span that stands in for every piece of evidence in noise baselines, by its density, where the benchmark has
    /// such a span; without one, segments beside the evidence do.
    fn stand_in(&self) -> Option<&'static str> {
        None
    }

    /// The roles that are one of two conflicting sides: figures draw a side alike in every benchmark.
    fn sides(&self) -> &'static [(&'static str, Side)] {
        &[]
    }
}

/// One of two pieces of evidence that conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// What was written first.
    Older,
    /// What was written last.
    Newer,
    /// What is right to take.
    Right,
    /// What is wrong to take.
    Wrong,
}

/// Whose attention a benchmark's lift is of, and to which roles it is paid.
pub(super) fn lift_curves(curves: &[Curve]) -> Option<(&'static str, Vec<&'static str>)> {
    let of_query = curves.iter().any(|curve| curve.from == QUERY);
    let from = if of_query { QUERY } else { curves.first()?.from };
    Some((from, curves.iter().filter(|curve| curve.from == from).map(|curve| curve.to).collect()))
}

/// A case's answers, by probe, as other tools exchange them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exchanged {
    /// The case.
    pub case: String,
    /// What was answered to each probe that was.
    pub answers: BTreeMap<String, String>,
    /// What stands in the place of the answers that failed.
    pub errors: BTreeMap<String, String>,
}

/// How a sample is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SampleSpec {
    /// Segments of each history; `None` is the benchmark's choice.
    pub segments: Option<usize>,
    /// Seed of whatever is drawn.
    pub seed: u64,
}

/// Why a sample could not be made.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SampleError(pub String);

/// What is counted once: in means over examples, and in intervals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A case: its probes ask of the same thing, so they are averaged first.
    Case,
    /// A probe: many of them share a history, and each asks of something else in it.
    Probe,
}

impl Unit {
    /// What people call one.
    pub fn one(self) -> &'static str {
        match self {
            Unit::Case => "case",
            Unit::Probe => "question",
        }
    }

    /// What people call several.
    pub fn many(self) -> &'static str {
        match self {
            Unit::Case => "cases",
            Unit::Probe => "questions",
        }
    }
}

/// What probes are split by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dimension {
    /// Their ids, which are the same in every case.
    Probe,
    /// A facet.
    Facet(&'static str),
}

impl Dimension {
    /// What people call one.
    pub fn name(self) -> &'static str {
        match self {
            Dimension::Probe => "probe",
            Dimension::Facet(facet) => facet,
        }
    }
}

/// How the number above all cells of a table is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overall {
    /// The mean of the cells, each weighing the same.
    Cells,
    /// The mean over all probes.
    Probes,
}

/// What several spans in one role come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Several {
    /// One: what is paid to all of them; as rows, the mean over all of their tokens.
    Sum,
    /// A curve each, numbered in the order of the prompt.
    Apart,
}

/// The encoding in which papers count the tokens of [`Benchmark::printed_lengths`].
pub const PAPER_ENCODING: &str = "o200k_base";

/// The role of the span that holds the query.
pub use palimpsest_core::span::QUERY;

/// The row of the generation prompt: what the chat template puts after the query, or where that is nothing the prompt's last position.
pub const GENERATION: &str = "generation";

/// The row of the generated token at which an answer decides ([`Benchmark::decisive`]): the position that predicted it.
pub const VERDICT: &str = "verdict";

/// Who looks at whom, by their roles; [`QUERY`] is one, and so are the rows `last`, `answer` and [`VERDICT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Curve {
    /// Whose attention it is.
    pub from: &'static str,
    /// To whom it is paid.
    pub to: &'static str,
    /// Which of several spans in that role, counted from 1 in the order of the prompt, where they stay apart; 0 for all.
    pub nth: usize,
}

impl Curve {
    /// From all spans in one role to all in another. From a role to itself it is no curve, but has the role's rows recorded for
    /// measures ([`LayerSpans::look_back`]).
    pub const fn new(from: &'static str, to: &'static str) -> Self {
        Curve { from, to, nth: 0 }
    }

    /// As figures write it: `query to fact`, `query to fact 2`.
    pub fn label(self) -> String {
        match self.nth {
            0 => format!("{} to {}", self.from, self.to),
            nth => format!("{} to {} {nth}", self.from, self.to),
        }
    }

    /// As tables write it: `query_to_fact`, `query_to_fact_2`.
    pub fn key(self) -> String {
        self.label().replace(' ', "_")
    }
}
