//! A benchmark as plain data and a few functions.

use std::collections::BTreeMap;

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
use crate::ground::words::counted;

pub type SampleFiles = Vec<(String, Vec<u8>)>;

/// [`Benchmark::DEFAULT`] supplies everything after `read`.
#[derive(Debug, Clone, Copy)]
pub struct Benchmark {
    pub name: &'static str,
    pub title: &'static str,
    pub segment: &'static str,
    /// Label that splits cases: table rows and figure panels.
    pub split: &'static str,
    /// By file name, in digest order: `system.j2`, one per segment kind (`session.j2`), one per probe form (`question.j2`).
    pub templates: &'static [(&'static str, &'static str)],
    /// The first is the default. All share one verdict kind.
    pub rubrics: &'static [Rubric],
    /// Note that the rubrics need of every probe, and the data's name for it.
    pub judge_needs: Option<(&'static str, &'static str)>,
    pub lens: LensSpec,
    /// Detects the format by content, not by file extension.
    pub recognises: fn(&Files<'_>) -> bool,
    /// Reads and validates all cases. The second argument, one of [`Benchmark::splits`], labels rows without a split.
    pub read: for<'a> fn(Files<'a>, Option<&'static str>) -> Cases<'a>,

    /// Selects a folder's data files by relative name; others are not part of the digest.
    pub reads: fn(&str) -> bool,
    /// Kind of a second file beside a single one, such as `questions`: `my.csv` and `my-questions.csv`. People write such data by hand, so
    /// a run tells the findings of the reader, too.
    pub companion: Option<&'static str>,
    /// Allowed split values for files without the label; empty if all rows have it.
    pub splits: &'static [&'static str],
    pub scope: Scope,
    pub checks: fn(&Case) -> Checks,
    pub published: &'static [(&'static str, &'static str)],
    /// Context lengths as printed in the paper, in [`PAPER_ENCODING`] tokens.
    pub printed_lengths: &'static [PrintedLengths],
    pub sample: fn(SampleSpec) -> Result<SampleFiles, SampleError>,

    /// Values of `run --conditions`; empty if the plain prompt is the only one.
    pub settings: &'static [Setting],
    pub default_settings: &'static [&'static str],
    /// Defaults if the longest history exceeds the context; `None`: the same.
    pub default_settings_of_long: Option<&'static [&'static str]>,
    /// Applies a setting before the context is selected: probe forms, segment order (with original indices), texts. The number is a seed.
    pub arrange: fn(&Case, &str, u64) -> Case,
    /// The query may precede the history; query rows then see no history and no prefill is shared. Use the rows `last` and `answer`.
    pub question_first: bool,
    /// The prompt shows the query time only with `--query-time`; the authors' prompt never does.
    pub query_time_if_asked: bool,
    /// Default answer limit: the authors', or sufficient for the task.
    pub max_new_tokens: usize,
    /// The first is the default.
    pub truncations: &'static [Truncation],

    /// Rules that read verdicts without a judge model; if there are any, rubrics are not used.
    pub readings: &'static [Reading],
    /// Byte offset where an answer commits, such as its verdict letter; its token is the row [`VERDICT`].
    pub decisive: fn(&str) -> Option<usize>,
    pub references: Option<References>,
    /// A data label that judges predict, to validate it.
    pub label_check: Option<LabelCheck>,
    /// Facet of sets of memories whose questions share their evidence: `data stats` prints how far apart the sessions of a set are.
    pub sets: Option<&'static str>,

    /// Roles whose content is in the judge note of the same name; a judge can check whether a memory contains it.
    pub stated: &'static [&'static str],

    /// Unit of means and resampling in the attention analysis.
    pub unit: Unit,
    /// With probe units, the facet that defines strata instead of case labels. Probes without it form one stratum.
    pub strata: Option<&'static str>,
    /// Probe ids in order if all cases share them. A broken row counts for all of them, or for one probe if this is empty.
    pub probes: &'static [&'static str],
    /// Splits probes: the columns of tables.
    pub dimension: Dimension,
    pub overall: Overall,
    pub counts: fn(&[Graded<'_>]) -> Counts,
    /// With the paper's interval method, if it has one.
    pub paper_counts: Option<fn(&[Graded<'_>]) -> Counts>,
    /// Segment kind shown side by side in reports.
    pub beside: Option<&'static str>,
}

impl Benchmark {
    /// Own and general settings; only its own if it has both readings and settings, because its readings depend on the setting.
    pub fn all_settings(&self) -> impl Iterator<Item = &Setting> {
        let own = |name: &str| self.settings.iter().any(|setting| setting.name == name);
        let has_general = self.readings.is_empty() || self.settings.is_empty();
        let general = GENERAL.iter().filter(move |setting| has_general && !own(setting.name));
        self.settings.iter().chain(general)
    }

    pub const DEFAULT: Self = Benchmark {
        name: "",
        title: "",
        segment: "",
        split: "",
        templates: &[],
        rubrics: &[],
        judge_needs: None,
        lens: LensSpec::DEFAULT,
        recognises: |_| false,
        read: |_, _| Box::new(std::iter::empty()),
        reads: |_| true,
        companion: None,
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
        sets: None,
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

    /// Checks a dataset; problems are passed to `on_problem` as they are found.
    pub fn check(&self, cases: Cases<'_>, on_problem: &mut dyn FnMut(&Problem)) -> Report {
        let group = |probe: &Probe| match self.dimension {
            Dimension::Probe => probe.id.clone(),
            Dimension::Facet(facet) => probe.facets.get(facet).cloned().unwrap_or_default(),
        };
        let (mut checker, mut own, mut report) = (Checker::new(self.scope), Vec::new(), Report::default());
        for row in cases {
            match row {
                Ok(case) => {
                    report.counts.sound(&case);
                    let split = case.labels.get(self.split).cloned().unwrap_or_default();
                    *report.splits.entry(split).or_default() += 1;
                    for probe in &case.probes {
                        *report.probes.entry(group(probe)).or_default() += 1;
                    }
                    let Checks { golds, findings } = (self.checks)(&case);
                    checker.case(&case, golds);
                    own.extend(findings);
                    report.findings.extend(case.flags);
                }
                Err(ReadError::Row(row)) => {
                    report.counts.broken(&row);
                    let RowProblems { problems, .. } = row;
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
    /// `400 rows (T1 200, T2 200)`, and the number of questions if cases differ.
    pub fn counts(&self, benchmark: &Benchmark) -> String {
        let by = |counts: &BTreeMap<String, usize>| {
            counts.iter().map(|(of, n)| format!("{of} {n}")).collect::<Vec<_>>().join(", ")
        };
        let row = if benchmark.companion.is_some() { "history" } else { "row" };
        let rows = match self.splits.keys().any(|split| !split.is_empty()) {
            true => format!("{} ({})", counted(self.rows, row), by(&self.splits)),
            false => counted(self.rows, row),
        };
        if !benchmark.probes.is_empty() || benchmark.dimension == Dimension::Probe {
            return rows;
        }
        let questions: usize = self.probes.values().sum();
        format!("{rows}, {} ({})", counted(questions, "question"), by(&self.probes))
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

#[derive(Debug, Clone, Default)]
pub struct Checks {
    /// Known right answers in probe order; may be empty.
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
    /// Analysed attention, role to role. Spans in a `from` role are recorded as rows.
    pub curves: &'static [Curve],
    /// From-role and evidence roles of [`LensSpec::evidence_lift`]; `None` for the [viewer](LensSpec::viewer) and its curves' roles.
    pub evidence: Option<(&'static str, &'static [&'static str])>,
    /// [`Benchmark::dimension`] values that figures pool and split by verdict; `None` is all. Tables list every one.
    pub pooled: Option<&'static [&'static str]>,
    pub ratio: Option<(Curve, Curve)>,
    /// Unique roles in history order at which cases are aligned for averaging; without them, no mean over histories.
    pub anchors: &'static [&'static str],
    pub measures: &'static [Measure],
    /// Groupings of the measures, one figure each; by verdict if empty.
    pub groupings: &'static [Grouping],
    /// Role whose density is the noise baseline for all evidence; otherwise segments beside the evidence are.
    pub stand_in: Option<&'static str>,
    /// Roles on either side of a conflict, drawn alike in all benchmarks.
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

    /// The number that compares runs across benchmarks: attention to the evidence over its noise baseline ([`LensSpec::evidence`]).
    pub fn evidence_lift(&self, at: &LayerSpans<'_>) -> Option<f64> {
        if let Some((from, to)) = self.evidence {
            return at.lift(from, to);
        }
        let from = self.viewer();
        let to: Vec<_> =
            self.curves.iter().filter(|curve| curve.from == from).map(|curve| curve.to).collect();
        at.lift(from, &to)
    }

    /// Curves to draw. Self-curves (`from == to`) only record rows.
    pub fn drawn_curves(&self) -> impl Iterator<Item = Curve> {
        self.curves.iter().copied().filter(|curve| curve.from != curve.to)
    }

    /// Role whose attention over the whole history is shown: the query if it has a curve, else the first curve's `from`.
    pub fn viewer(&self) -> &'static str {
        let of_query = self.curves.iter().find(|curve| curve.from == QUERY);
        of_query.or(self.curves.first()).map_or(QUERY, |curve| curve.from)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    Older,
    Newer,
    Right,
    Wrong,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exchanged {
    pub case: String,
    pub answers: BTreeMap<String, String>,
    pub errors: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SampleSpec {
    pub segments: Option<usize>,
    pub seed: u64,
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SampleError(pub String);

/// A sample of given files, which has histories of its own.
pub(super) fn fixed_sample(
    spec: SampleSpec,
    about: &str,
    files: &[(&str, &[u8])],
) -> Result<SampleFiles, SampleError> {
    if spec.segments.is_some() {
        return Err(SampleError(format!("the sample is {about}; drop --sessions")));
    }
    Ok(files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect())
}

/// Notes with reference answers. An answer equal to one, ignoring case and white space, is graded without a judge call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct References {
    pub right: &'static str,
    pub wrong: &'static str,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Unit {
    /// Average a case's probes first: they ask about the same thing.
    #[default]
    Case,
    /// Probes are independent: many share a history but ask about different things.
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

    /// The noun in sentences; [`Dimension::name`] is that of files and columns.
    pub fn in_words(self) -> &'static str {
        match self {
            Dimension::Probe => "question",
            Dimension::Facet(facet) => facet,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overall {
    /// Unweighted mean.
    Cells,
    Probes,
}

pub const PAPER_ENCODING: &str = "o200k_base";

pub use palimpsest_core::span::QUERY;

/// Row of the generation prompt (after the query); the last prompt position if it is empty.
pub const GENERATION: &str = "generation";

/// Row of the position that predicted the deciding token ([`Benchmark::decisive`]).
pub const VERDICT: &str = "verdict";

/// Attention between roles, which include [`QUERY`], `last`, `answer` and [`VERDICT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Curve {
    pub from: &'static str,
    pub to: &'static str,
}

impl Curve {
    /// `from == to` is not a curve; it records the role's rows for measures ([`LayerSpans::look_back`]).
    pub const fn new(from: &'static str, to: &'static str) -> Self {
        Curve { from, to }
    }

    /// `query to fact`
    pub fn label(self) -> String {
        format!("{} to {}", self.from, self.to)
    }

    /// `query_to_fact`
    pub fn key(self) -> String {
        self.label().replace(' ', "_")
    }
}
