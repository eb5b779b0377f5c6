//! A benchmark as plain data, with the few functions that are code.

use std::collections::BTreeMap;
use std::fmt;

use super::chart::Chart;
use super::files::Files;
use super::graded::{Graded, Table};
use super::measure::{Grouping, LayerSpans, Measure};
use super::reading::{Cases, PROBLEMS_SHOWN, Problem, ReadError, Report, RowProblems};
use super::readings::Reading;
use super::rubric::{LabelCheck, Rubric, UnknownRubric};
use super::setting::{GENERAL, Setting};
use crate::case::check::{Checker, Scope};
use crate::case::finding::{Finding, Gold};
use crate::case::lengths::PrintedLengths;
use crate::case::truncate::Truncation;
use crate::case::{Case, Probe};

pub type SampleFiles = Vec<(String, Vec<u8>)>;

/// A benchmark. Fields from `name` to `read` are given by every benchmark; [`Benchmark::DEFAULT`] holds the usual values of the
/// others.
#[derive(Clone, Copy)]
pub struct Benchmark {
    pub name: &'static str,
    pub title: &'static str,
    /// The word for a segment of a history: `session`, `event`.
    pub segment: &'static str,
    /// The label that cases are split by: the rows of tables and the panels of figures.
    pub split: &'static str,
    /// The prompt templates, by file name, in the order in which they are digested: `system.j2`, one a kind of segment
    /// (`session.j2`) and one a form of probe (`question.j2`).
    pub templates: &'static [(&'static str, &'static str)],
    /// The rubrics that answers are judged by: at least one, the first of which is the default. All return the same kind of verdict.
    pub rubrics: &'static [Rubric],
    /// Settings of the attention analysis; its curves are given by every benchmark.
    pub lens: LensSpec,
    /// Is this its data, a file or a folder? Formats are known by content, not by the file's ending.
    pub recognises: fn(&Files<'_>) -> bool,
    /// The cases of a data set, every field checked. The second argument, one of [`Benchmark::splits`], is the label of rows that
    /// do not say it.
    pub read: for<'a> fn(Files<'a>, Option<&'static str>) -> Cases<'a>,

    /// Is a file of a folder, by its relative name, read? Others are no part of the data's digest.
    pub reads: fn(&str) -> bool,
    /// The values of the label [`Benchmark::split`] that may be given for all rows of files whose rows do not say it; empty where all
    /// rows do.
    pub splits: &'static [&'static str],
    /// The checks of all benchmarks' cases that apply to these.
    pub scope: Scope,
    /// The benchmark's own part of `data check`, for one case.
    pub checks: fn(&Case) -> Checks,
    pub published: &'static [(&'static str, &'static str)],
    /// The lengths of the published file's contexts as its paper prints them, in tokens of [`PAPER_ENCODING`]; none where it
    /// prints none.
    pub printed_lengths: &'static [PrintedLengths],
    /// Our own sample: one file, or those of a folder, sorted. Fails where there is none, or not as asked.
    pub sample: fn(SampleSpec) -> Result<SampleFiles, SampleError>,

    /// The ways in which its probes can be put: what `run --conditions` names. Empty where there is one way, the plain one.
    pub settings: &'static [Setting],
    pub default_settings: &'static [&'static str],
    /// The same where the longest history does not fit the context; absent where that makes no difference.
    pub default_settings_of_long: Option<&'static [&'static str]>,
    /// The case as it is put under a setting, before its context is taken of it: with other forms of probes, with its segments in
    /// another order (each with its original index), or rewritten. The number is the seed of whatever is drawn.
    pub arrange: fn(&Case, &str, u64) -> Case,
    /// May a template put the query before the history? The query's rows then see nothing of it, and prompts share no prefill: such
    /// a benchmark looks at the rows `last` and `answer`.
    pub question_first: bool,
    /// True if a prompt says when its question is put only where a run is told to (`--query-time`): the authors' prompt never does.
    pub query_time_if_asked: bool,
    /// Most tokens of an answer, where a run is told nothing else: what the authors allow, or enough for what is asked.
    pub max_new_tokens: usize,
    /// The ways in which a history that does not fit the context can be cut; the first where a run is told nothing else.
    pub truncations: &'static [Truncation],

    /// The rules by which answers are read where no model has to judge them; each is a judge of its own. Where there are any, the
    /// rubrics are put to nobody.
    pub readings: &'static [Reading],
    /// The byte of an answer at which it decides, for example a verdict's letter: the token that holds it is the row [`VERDICT`] where
    /// a curve begins with that. `None` where there is no such place.
    pub decisive: fn(&str) -> Option<usize>,
    pub references: Option<References>,
    /// The check of a label of the data by a judge that is not told it; absent where none is checked.
    pub label_check: Option<LabelCheck>,

    /// The roles of evidence whose content the case's note of the same name states: a judge can be asked whether a memory says it.
    pub stated: &'static [&'static str],

    /// The unit of every mean and every resampling of the attention analysis.
    pub unit: Unit,
    /// The facet of probes that intervals hold fixed in the place of cases' kinds, where probes are units: each of its values is a stratum
    /// of its own, and so are probes without it.
    pub strata: Option<&'static str>,
    /// The ids of the probes that every case has, in order: what a broken row is counted for. Empty where cases differ; a broken row
    /// then counts as one probe.
    pub probes: &'static [&'static str],
    /// The property that probes are split by: the columns of tables.
    pub dimension: Dimension,
    /// The mean above all cells of a table.
    pub overall: Overall,
    /// The tables and pictures of counts that only this benchmark has, of the graded probes of any number of runs.
    pub counts: fn(&[Graded<'_>]) -> Counts,
    /// The same with the intervals of the benchmark's paper; absent where it gives none.
    pub paper_counts: Option<fn(&[Graded<'_>]) -> Counts>,
    /// The kind of segments that stand side by side in a report: two trajectories.
    pub beside: Option<&'static str>,
}

impl Benchmark {
    /// The settings that `run --conditions` can name: its own, and the general ones but where it has both readings and settings, as
    /// answers are then read by their setting.
    pub fn all_settings(&self) -> impl Iterator<Item = &Setting> {
        let own = |name: &str| self.settings.iter().any(|setting| setting.name == name);
        let has_general = self.readings.is_empty() || self.settings.is_empty();
        let general = GENERAL.iter().filter(move |setting| has_general && !own(setting.name));
        self.settings.iter().chain(general)
    }

    /// The usual values; the fields that every benchmark gives are empty.
    pub const DEFAULT: Self = Benchmark {
        name: "",
        title: "",
        segment: "",
        split: "",
        templates: &[],
        rubrics: &[],
        lens: LensSpec::DEFAULT,
        recognises: |_| false,
        read: |_, _| Box::new(std::iter::empty()),
        reads: |_| true,
        splits: &[],
        scope: Scope::ALL,
        checks: |_| Checks::default(),
        published: &[],
        printed_lengths: &[],
        sample: |_| Err(SampleError("the benchmark has no built-in sample; give a file".to_owned())),
        settings: &[],
        default_settings: &[],
        default_settings_of_long: None,
        arrange: |case, _, _| case.clone(),
        question_first: false,
        query_time_if_asked: false,
        max_new_tokens: 1024,
        truncations: &[Truncation::Evidence, Truncation::Plain],
        readings: &[],
        decisive: |_| None,
        references: None,
        label_check: None,
        stated: &[],
        unit: Unit::Case,
        strata: None,
        probes: &[],
        dimension: Dimension::Probe,
        overall: Overall::Probes,
        counts: |_| Counts::default(),
        paper_counts: None,
        beside: None,
    };

    pub fn rubric(&self) -> Rubric {
        self.rubrics[0]
    }

    pub fn published(&self, sha256: &str) -> Option<&'static str> {
        self.published.iter().find(|(known, _)| *known == sha256).map(|(_, name)| *name)
    }

    /// Checks the cases of a data set for problems and oddities; every problem is told to `on_problem` when it is found.
    pub fn check(&self, cases: Cases<'_>, on_problem: &mut dyn FnMut(&Problem)) -> Report {
        let group = |probe: &Probe| match self.dimension {
            Dimension::Probe => probe.id.clone(),
            Dimension::Facet(facet) => probe.facets.get(facet).cloned().unwrap_or_default(),
        };
        let (mut checker, mut own, mut report) = (Checker::new(self.scope), Vec::new(), Report::default());
        for row in cases {
            match row {
                Ok(case) => {
                    let split = case.labels.get(self.split).cloned().unwrap_or_default();
                    *report.splits.entry(split).or_default() += 1;
                    for probe in &case.probes {
                        *report.probes.entry(group(probe)).or_default() += 1;
                    }
                    let Checks { golds, findings } = (self.checks)(&case);
                    checker.case(&case, &golds);
                    own.extend(findings);
                    report.findings.extend(case.flags);
                }
                Err(ReadError::Row(RowProblems { problems, .. })) => {
                    problems.iter().for_each(&mut *on_problem);
                    report.problem_count += problems.len();
                    let room = PROBLEMS_SHOWN.saturating_sub(report.problems.len());
                    report.problems.extend(problems.into_iter().take(room));
                }
                Err(error) => {
                    report.broken = Some(error);
                    break;
                }
            }
            report.rows += 1;
        }
        report.findings.extend(own);
        report.findings.extend(checker.finish());
        report
    }
}

impl Report {
    /// `400 rows (T1 200, T2 200)`, with the questions where cases have different ones.
    pub fn counts(&self, benchmark: &Benchmark) -> String {
        let by = |counts: &BTreeMap<String, usize>| {
            counts.iter().map(|(of, n)| format!("{of} {n}")).collect::<Vec<_>>().join(", ")
        };
        let rows = match self.splits.keys().any(|split| !split.is_empty()) {
            true => format!("{} rows ({})", self.rows, by(&self.splits)),
            // No label parts its cases.
            false => format!("{} rows", self.rows),
        };
        if !benchmark.probes.is_empty() || benchmark.dimension == Dimension::Probe {
            return rows;
        }
        let questions: usize = self.probes.values().sum();
        format!("{rows}, {questions} questions ({})", by(&self.probes))
    }
}

pub fn rubric_named(benchmark: &Benchmark, name: &str) -> Result<Rubric, UnknownRubric> {
    let found = benchmark.rubrics.iter().find(|rubric| rubric.name == name);
    found.copied().ok_or_else(|| {
        let known = benchmark.rubrics.iter().enumerate().map(|(at, rubric)| {
            let default = if at == 0 { ", the default" } else { "" };
            format!("{} ({}{default})", rubric.name, rubric.about)
        });
        let known = known.collect::<Vec<_>>().join("; ");
        UnknownRubric { benchmark: benchmark.title, name: name.to_owned(), known }
    })
}

impl fmt::Debug for Benchmark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Benchmark").field("name", &self.name).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Default)]
pub struct Checks {
    /// The right answers, as far as they are known, by probe in their order, for the checks of all benchmarks; empty where none is.
    pub golds: Vec<Gold>,
    pub findings: Vec<Finding>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counts {
    pub tables: Vec<Table>,
    pub charts: Vec<Chart>,
}

#[derive(Debug, Clone, Copy)]
pub struct LensSpec {
    /// The attention that is analysed, from role to role. The spans in a role that a curve begins with are recorded as rows.
    pub curves: &'static [Curve],
    /// The role whose attention, and the roles of evidence to which it is paid, that [`LensSpec::evidence_lift`] is of. Where
    /// absent: the [viewer](LensSpec::viewer), and the roles that its curves lead to.
    pub evidence: Option<(&'static str, &'static [&'static str])>,
    /// The probes, by what they are grouped by ([`Benchmark::dimension`]), whose examples are averaged together and split by
    /// verdict in figures; `None` for all. Every probe has rows of its own in the tables.
    pub pooled: Option<&'static [&'static str]>,
    pub ratio: Option<(Curve, Curve)>,
    /// The roles, each played once and in the order of the history, at which cases are aligned to be averaged. Without any
    /// there is no mean over histories.
    pub anchors: &'static [&'static str],
    pub measures: &'static [Measure],
    /// The groupings of the examples of those, a figure each. Without any they are split by verdict.
    pub groupings: &'static [Grouping],
    /// The role of a span that stands in for every piece of evidence in noise baselines, by its density, where the benchmark has
    /// such a span; without one, segments beside the evidence do.
    pub stand_in: Option<&'static str>,
    /// The roles that are one of two conflicting sides: figures draw a side alike in every benchmark.
    pub sides: &'static [(&'static str, Side)],
}

impl LensSpec {
    pub const DEFAULT: Self = LensSpec {
        curves: &[],
        evidence: None,
        pooled: None,
        ratio: None,
        anchors: &[],
        measures: &[],
        groupings: &[],
        stand_in: None,
        sides: &[],
    };

    /// The number that runs of several benchmarks are compared by: how much more the evidence gets than its noise baselines
    /// ([`LensSpec::evidence`]).
    pub fn evidence_lift(&self, at: &LayerSpans<'_>) -> Option<f64> {
        if let Some((from, to)) = self.evidence {
            return at.lift(from, to);
        }
        let from = self.viewer();
        let to: Vec<_> =
            self.curves.iter().filter(|curve| curve.from == from).map(|curve| curve.to).collect();
        at.lift(from, &to)
    }

    /// The curves that are drawn. What a role pays to itself would hold what each span pays to its own tokens.
    pub fn drawn_curves(&self) -> impl Iterator<Item = Curve> {
        self.curves.iter().copied().filter(|curve| curve.from != curve.to)
    }

    /// The role whose attention over the history is looked at as a whole: the query's, or where no curve begins with it that of the
    /// first curve.
    pub fn viewer(&self) -> &'static str {
        let of_query = self.curves.iter().find(|curve| curve.from == QUERY);
        of_query.or(self.curves.first()).map_or(QUERY, |curve| curve.from)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Older,
    Newer,
    Right,
    Wrong,
}

/// A case's answers, by probe, as other tools exchange them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exchanged {
    pub case: String,
    pub answers: BTreeMap<String, String>,
    /// The texts in the place of answers that failed.
    pub errors: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SampleSpec {
    /// Segments of each history; `None` is the benchmark's choice.
    pub segments: Option<usize>,
    pub seed: u64,
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SampleError(pub String);

/// The notes of a probe with reference answers. An answer that equals one of them, letter case and white space aside, is right or wrong
/// without a call of the judge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct References {
    pub right: &'static str,
    pub wrong: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A case: its probes ask of the same thing, so they are averaged first.
    Case,
    /// A probe: many of them share a history, and each asks of something else in it.
    Probe,
}

impl Unit {
    pub fn one(self) -> &'static str {
        match self {
            Unit::Case => "case",
            Unit::Probe => "question",
        }
    }

    pub fn many(self) -> &'static str {
        match self {
            Unit::Case => "cases",
            Unit::Probe => "questions",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dimension {
    /// Their ids, which are the same in every case.
    Probe,
    Facet(&'static str),
}

impl Dimension {
    pub fn name(self) -> &'static str {
        match self {
            Dimension::Probe => "probe",
            Dimension::Facet(facet) => facet,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overall {
    /// The mean of the cells, each weighing the same.
    Cells,
    Probes,
}

/// The encoding in which papers count the tokens of [`Benchmark::printed_lengths`].
pub const PAPER_ENCODING: &str = "o200k_base";

/// The role of the span that holds the query.
pub use palimpsest_core::span::QUERY;

/// The row of the generation prompt: what the chat template puts after the query, or where that is nothing the prompt's last position.
pub const GENERATION: &str = "generation";

/// The row of the generated token at which an answer decides ([`Benchmark::decisive`]): the position that predicted it.
pub const VERDICT: &str = "verdict";

/// Attention from one role to another; [`QUERY`] is one, and so are the rows `last`, `answer` and [`VERDICT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Curve {
    pub from: &'static str,
    pub to: &'static str,
}

impl Curve {
    /// From all spans in one role to all in another. From a role to itself it is no curve, but has the role's rows recorded for
    /// measures ([`LayerSpans::look_back`]).
    pub const fn new(from: &'static str, to: &'static str) -> Self {
        Curve { from, to }
    }

    /// As figures write it: `query to fact`.
    pub fn label(self) -> String {
        format!("{} to {}", self.from, self.to)
    }

    /// As tables write it: `query_to_fact`.
    pub fn key(self) -> String {
        self.label().replace(' ', "_")
    }
}
