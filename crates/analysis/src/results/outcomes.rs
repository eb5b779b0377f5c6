//! Outcomes of every planned probe, by cell and by case: input of tables, comparisons and repetitions.
//!
//! An answer's worth is 1 or 0 if right or wrong, or its share of the maximum score. Denominators are the plan's: errors and missing
//! verdicts count as incorrect, and verdicts on failed answers are ignored. Broken rows without a readable split get their own row; they
//! are wrong in totals over probes and excluded from means of cells. Probes without a correct answer under a reading rule are excluded
//! everywhere.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::records::Record;
use palimpsest_data::benchmarks::{Benchmark, Overall as Weighing, Unit};
use palimpsest_data::ground::order::unique;
use palimpsest_data::ground::words::counted;
use palimpsest_data::statistics::bounded::Intervals;
use palimpsest_data::statistics::spread::mean;
use palimpsest_run::runs::plan::{PlannedCase, dimension_of};

/// Kind of broken cases whose split cannot be read.
pub const UNREADABLE: &str = "unreadable";

#[derive(Debug, Clone)]
pub struct Outcomes<'a> {
    pub benchmark: &'static Benchmark,
    /// Sorted split values: the table rows.
    pub kinds: Vec<String>,
    /// Probe dimensions in dataset order: the columns.
    pub dimensions: Vec<String>,
    /// (kind, dimension) of every planned cell, row by row.
    pub cells: Vec<(String, String)>,
    /// Maximum score, if answers are scored.
    pub most: Option<u32>,
    /// Number of broken cases of kind [`UNREADABLE`].
    pub unreadable: usize,
    /// Probes without a correct answer under the reading rule ([`Reading::asks`](palimpsest_data::benchmarks::Reading::asks)); in no cell
    /// or total.
    pub unscored: usize,
    /// Units by kind, or by [`Benchmark::strata`].
    pub strata: Vec<Vec<CaseOutcomes<'a>>>,
    pub intervals: Intervals,
}

/// Outcomes of a case's probes, or of one probe: the unit of intervals ([`Benchmark::unit`]).
#[derive(Debug, Clone)]
pub struct CaseOutcomes<'a> {
    pub case: &'a str,
    pub probes: Vec<Outcome<'a>>,
}

#[derive(Debug, Clone, Copy)]
pub struct Outcome<'a> {
    pub probe: &'a str,
    pub query: &'a str,
    pub cell: usize,
    /// Judged correct; the maximum score for scores.
    pub correct: bool,
    /// From 0 to 1.
    pub worth: f64,
    /// Has a clean verdict on a clean answer.
    pub judged: bool,
    pub answered: bool,
    pub missing: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Counts {
    pub correct: usize,
    /// Total worth; the number of correct answers unless scored.
    pub worth: f64,
    pub judged: usize,
    pub answered: usize,
    /// Neither answer nor error yet.
    pub missing: usize,
    pub expected: usize,
}

impl Counts {
    fn add(&mut self, outcome: &Outcome<'_>) {
        self.correct += usize::from(outcome.correct);
        self.worth += outcome.worth;
        self.judged += usize::from(outcome.judged);
        self.answered += usize::from(outcome.answered);
        self.missing += usize::from(outcome.missing);
        self.expected += 1;
    }

    pub fn accuracy(&self) -> f64 {
        self.worth / self.expected.max(1) as f64
    }
}

impl<'a> Outcomes<'a> {
    pub fn of(benchmark: &'static Benchmark, records: &[Record<'a>], judge: &str) -> Self {
        let most = benchmark.rubric().verdict.most();
        let reading = benchmark.readings.iter().find(|reading| reading.name == judge);
        let is_scored =
            |record: &&Record<'a>| reading.is_none_or(|reading| (reading.asks)(&record.probe.judge));
        let (scored, unscored): (Vec<&Record<'a>>, Vec<&Record<'a>>) = records.iter().partition(is_scored);
        let dimension = |record: &Record<'a>| dimension_of(benchmark, record.probe);
        let dimensions = unique(scored.iter().map(|record| dimension(record)));
        let is_unreadable =
            |case: &PlannedCase| case.broken.is_some() && !case.labels.contains_key(benchmark.split);
        let mut by_kind: BTreeMap<String, Vec<&[&Record<'a>]>> = BTreeMap::new();
        let mut unreadable = 0;
        for records in scored.chunk_by(|a, b| std::ptr::eq(a.case, b.case)) {
            let case = records[0].case;
            unreadable += usize::from(is_unreadable(case));
            let unknown = if is_unreadable(case) { UNREADABLE } else { "all" };
            let kind = case.labels.get(benchmark.split).cloned().unwrap_or_else(|| unknown.to_owned());
            by_kind.entry(kind).or_default().push(records);
        }
        let mut cells: Vec<(String, String)> = Vec::new();
        let mut strata: BTreeMap<Option<&String>, Vec<CaseOutcomes<'a>>> = BTreeMap::new();
        for (kind, cases) in &by_kind {
            let is_there = |name: &&String| cases.iter().copied().flatten().any(|r| dimension(r) == **name);
            let (first, own): (usize, Vec<&String>) =
                (cells.len(), dimensions.iter().filter(is_there).collect());
            cells.extend(own.iter().map(|name| (kind.clone(), (*name).clone())));
            let outcome = |record: &Record<'a>| {
                let answered = record.answer().is_some();
                let row = record.verdicts.iter().rfind(|row| row.judge == judge);
                let worth = row.and_then(|row| row.worth(most.unwrap_or(1))).filter(|_| answered);
                let name = dimension(record);
                Some(Outcome {
                    probe: &record.probe.id,
                    query: &record.probe.query,
                    cell: first + own.iter().position(|known| **known == name)?,
                    correct: worth == Some(1.0),
                    worth: worth.unwrap_or(0.0),
                    judged: worth.is_some(),
                    answered,
                    missing: record.row.is_none(),
                })
            };
            for records in cases {
                let case = records[0].case.case.as_str();
                let outcomes = records.iter().filter_map(|record| Some((record, outcome(record)?)));
                match benchmark.unit {
                    Unit::Case => {
                        let probes = outcomes.map(|(_, outcome)| outcome).collect();
                        strata.entry(Some(kind)).or_default().push(CaseOutcomes { case, probes });
                    }
                    Unit::Probe => outcomes.for_each(|(record, outcome)| {
                        let facets = &record.probe.facets;
                        let stratum = benchmark.strata.map_or(Some(kind), |facet| facets.get(facet));
                        let unit = CaseOutcomes { case, probes: vec![outcome] };
                        strata.entry(stratum).or_default().push(unit);
                    }),
                }
            }
        }
        let strata = strata.into_values().collect();
        Outcomes {
            benchmark,
            kinds: by_kind.into_keys().collect(),
            dimensions,
            cells,
            most,
            unreadable,
            unscored: unscored.len(),
            strata,
            intervals: Intervals::default(),
        }
    }

    pub fn of_cells(&self) -> bool {
        self.benchmark.overall == Weighing::Cells
    }

    /// True if the overall accuracy counts this outcome; means of cells exclude unreadable splits.
    pub fn weighs(&self, outcome: &Outcome<'_>) -> bool {
        let is_unreadable = || self.cells.get(outcome.cell).is_some_and(|(kind, _)| kind == UNREADABLE);
        !(self.of_cells() && self.unreadable > 0 && is_unreadable())
    }

    pub fn apart_in_words(&self) -> Vec<String> {
        let mut said = Vec::new();
        if self.unreadable > 0 && self.kinds.iter().any(|kind| kind == "all") {
            // The data has no split: broken rows lack nothing but their questions.
            let is_broken =
                |one: &&Outcome<'_>| self.cells.get(one.cell).is_some_and(|cell| cell.0 == UNREADABLE);
            let n = self.all().filter(is_broken).count();
            let count = if n == 1 { "counts" } else { "count" };
            said.push(format!(
                "{} ({UNREADABLE}) {count} as wrong in every total over questions",
                counted(n, "broken question")
            ));
        } else if self.unreadable > 0 {
            let (rows, whose) = match self.unreadable {
                1 => ("1 broken row has".to_owned(), "its"),
                n => (format!("{n} broken rows have"), "their"),
            };
            let mean =
                if self.of_cells() { ", but are in no cell, so the overall leaves them out" } else { "" };
            said.push(format!(
                "{rows} no readable `{}` ({UNREADABLE}): {whose} questions count as wrong in every total over questions{mean}",
                self.benchmark.split
            ));
        }
        if self.unscored > 0 {
            let (have, they) = if self.unscored == 1 { ("has", "it is") } else { ("have", "they are") };
            said.push(format!(
                "{} {have} no right answer by this rule: {they} in no cell and in no total",
                counted(self.unscored, "question")
            ));
        }
        said
    }

    pub fn all(&self) -> impl Iterator<Item = &Outcome<'a>> {
        self.strata.iter().flatten().flat_map(|case| &case.probes)
    }

    pub fn counts(&self) -> Vec<Counts> {
        let mut counts = vec![Counts::default(); self.cells.len()];
        self.all().for_each(|outcome| counts[outcome.cell].add(outcome));
        counts
    }

    pub fn total(&self) -> Counts {
        self.counts().into_iter().fold(Counts::default(), |all, cell| Counts {
            correct: all.correct + cell.correct,
            worth: all.worth + cell.worth,
            judged: all.judged + cell.judged,
            answered: all.answered + cell.answered,
            missing: all.missing + cell.missing,
            expected: all.expected + cell.expected,
        })
    }

    /// Overall accuracy of some outcomes.
    pub fn overall<'s>(&self, outcomes: impl Iterator<Item = &'s Outcome<'a>>) -> Option<f64>
    where
        'a: 's,
    {
        if !self.of_cells() {
            return mean_worth(outcomes);
        }
        let mut counts = vec![Counts::default(); self.cells.len()];
        outcomes.filter(|outcome| self.weighs(outcome)).for_each(|outcome| counts[outcome.cell].add(outcome));
        // Cells that these cases lack (mixed plans) have no accuracy.
        let drawn = counts.iter().filter(|cell| cell.expected > 0).map(Counts::accuracy);
        mean(&drawn.collect::<Vec<f64>>())
    }
}

pub fn mean_worth<'s, 'a: 's>(outcomes: impl Iterator<Item = &'s Outcome<'a>>) -> Option<f64> {
    mean(&outcomes.map(|outcome| outcome.worth).collect::<Vec<f64>>())
}
