//! Outcomes of every probe of a plan by cell and by case: the input of tables, comparisons and repetitions.
//!
//! An answer is worth 1 or 0 where it is right or wrong, its share of the best score where it has one. Denominators are the
//! plan's: an error or a missing verdict counts as not correct instead of vanishing, and a verdict on an answer that is an
//! error by now counts for nothing. A broken row whose split cannot be read has a row of its own and is wrong in every total over
//! probes; in a mean of cells it can be in none. Probes to which a rule that reads answers knows no right one are no part of any.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::benchmarks::{Benchmark, Overall as Weighing, Unit};
use crate::ground::order::unique;
use crate::run::plan::{PlannedCase, PlannedProbe, dimension_of};
use crate::run::rows::{AnswerRow, VerdictRow};
use crate::statistics::bounded::Intervals;
use crate::statistics::spread::mean;

/// The kind of broken cases whose split cannot be read.
pub const UNREADABLE: &str = "unreadable";

/// The outcomes of one run under one condition, by one judge.
#[derive(Debug, Clone)]
pub struct Outcomes<'a> {
    /// The label that cases are split by.
    pub split: &'static str,
    /// Its values, sorted: the rows of a table.
    pub kinds: Vec<String>,
    /// Dimensions of probes in dataset order: the columns.
    pub dimensions: Vec<String>,
    /// The kind and the dimension of every cell that the plan has, row by row.
    pub cells: Vec<(String, String)>,
    /// The best score, where answers are scored.
    pub most: Option<u32>,
    /// True if the overall accuracy is the mean of the cells, or else of all probes.
    pub of_cells: bool,
    /// Broken cases whose split cannot be read. They are a kind of their own ([`UNREADABLE`]), count as wrong in totals over probes,
    /// and are in no mean of cells.
    pub unreadable: usize,
    /// Probes to which the rule that reads the answers knows no right one ([`Reading::asks`](crate::benchmarks::Reading::asks)): they are
    /// in no cell and in no total.
    pub unscored: usize,
    /// Unit of `strata`.
    pub unit: Unit,
    /// The cases of each kind, or their probes where those are units; by `strata_of` instead where that is given.
    pub strata: Vec<Vec<CaseOutcomes<'a>>>,
    /// The facet of probes that intervals hold fixed in the place of kinds ([`Benchmark::strata`]).
    pub strata_of: Option<&'static str>,
    pub intervals: Intervals,
}

/// Outcomes of the probes of a case, or of one of them: the unit of intervals ([`Benchmark::unit`]).
#[derive(Debug, Clone)]
pub struct CaseOutcomes<'a> {
    pub case: &'a str,
    pub probes: Vec<Outcome<'a>>,
}

/// Outcome of one probe of one case.
#[derive(Debug, Clone, Copy)]
pub struct Outcome<'a> {
    pub probe: &'a str,
    pub query: &'a str,
    /// Which of [`Outcomes::cells`] it counts in.
    pub cell: usize,
    /// Judged correct; of scores, the best one.
    pub correct: bool,
    /// From 0 to 1.
    pub worth: f64,
    /// With a clean verdict on a clean answer.
    pub judged: bool,
    pub answered: bool,
    /// Not asked yet: the run is not finished.
    pub missing: bool,
}

/// Counts in a cell, or in several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Counts {
    pub correct: usize,
    /// Summed worth of the answers; the number of correct ones, unless they are scored.
    pub worth: f64,
    pub judged: usize,
    pub answered: usize,
    /// Not asked yet: neither an answer nor an error.
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

    /// `worth / expected`; 0 of nothing.
    pub fn accuracy(&self) -> f64 {
        self.worth / self.expected.max(1) as f64
    }
}

impl<'a> Outcomes<'a> {
    /// Of the answers and verdicts of one condition, the latter of `judge` alone and by one rubric.
    pub fn of<'v>(
        benchmark: &Benchmark,
        plan: &'a [PlannedCase],
        answers: &[AnswerRow],
        verdicts: impl IntoIterator<Item = &'v VerdictRow>,
        judge: &str,
    ) -> Self {
        let most = benchmark.rubric().verdict.most();
        let answered: HashMap<(&str, &str), bool> = answers
            .iter()
            .map(|row| ((row.case.as_str(), row.probe.as_str()), row.error.is_none() && row.answer.is_some()))
            .collect();
        let worth: HashMap<(&str, &str), Option<f64>> = verdicts
            .into_iter()
            .filter(|row| row.judge == judge)
            .map(|row| ((row.case.as_str(), row.probe.as_str()), row.worth(most.unwrap_or(1))))
            .collect();

        let reading = benchmark.readings.iter().find(|reading| reading.name == judge);
        let is_scored = |probe: &&PlannedProbe| reading.is_none_or(|reading| (reading.asks)(&probe.judge));
        let all_probes = || plan.iter().flat_map(|case| &case.probes);
        let unscored = all_probes().filter(|probe| !is_scored(probe)).count();
        let plan: Vec<&'a PlannedCase> =
            plan.iter().filter(|case| case.probes.iter().any(|probe| is_scored(&probe))).collect();
        let scored = |case: &'a PlannedCase| case.probes.iter().filter(is_scored);
        let probes = plan.iter().flat_map(|case| scored(case));
        let dimensions = unique(probes.map(|probe| dimension_of(benchmark, probe)));
        let (split, unit, strata_of) = (benchmark.split, benchmark.unit, benchmark.strata);
        let is_unreadable = |case: &PlannedCase| case.broken.is_some() && !case.labels.contains_key(split);
        let unreadable = plan.iter().filter(|case| is_unreadable(case)).count();
        let kind = |case: &PlannedCase| {
            let unknown = if is_unreadable(case) { UNREADABLE } else { "all" };
            case.labels.get(split).cloned().unwrap_or_else(|| unknown.to_owned())
        };
        let mut by_kind: BTreeMap<String, Vec<&'a PlannedCase>> = BTreeMap::new();
        for case in plan {
            by_kind.entry(kind(case)).or_default().push(case);
        }

        let mut cells: Vec<(String, String)> = Vec::new();
        let mut strata: BTreeMap<Option<&String>, Vec<CaseOutcomes<'a>>> = BTreeMap::new();
        for (kind, cases) in &by_kind {
            // The kind's cells, by dimension.
            let mut own: HashMap<&str, usize> = HashMap::new();
            for dimension in &dimensions {
                if cases.iter().flat_map(|c| scored(c)).any(|p| dimension_of(benchmark, p) == *dimension) {
                    own.insert(dimension, cells.len());
                    cells.push((kind.clone(), dimension.clone()));
                }
            }
            let of_probe = |case: &'a PlannedCase, probe: &'a PlannedProbe| {
                let key = (case.case.as_str(), probe.id.as_str());
                let (missing, answered) =
                    (!answered.contains_key(&key), answered.get(&key).copied().unwrap_or(false));
                let worth = worth.get(&key).copied().flatten().filter(|_| answered);
                Some(Outcome {
                    probe: &probe.id,
                    query: &probe.query,
                    cell: own.get(dimension_of(benchmark, probe).as_str()).copied()?,
                    correct: worth == Some(1.0),
                    worth: worth.unwrap_or(0.0),
                    judged: worth.is_some(),
                    answered,
                    missing,
                })
            };
            for case in cases {
                let probes = scored(case).filter_map(|probe| Some((probe, of_probe(case, probe)?)));
                match unit {
                    Unit::Case => {
                        let probes = probes.map(|(_, outcome)| outcome).collect();
                        strata.entry(Some(kind)).or_default().push(CaseOutcomes { case: &case.case, probes });
                    }
                    Unit::Probe => probes.for_each(|(probe, outcome)| {
                        let stratum = strata_of.map_or(Some(kind), |facet| probe.facets.get(facet));
                        let unit = CaseOutcomes { case: &case.case, probes: vec![outcome] };
                        strata.entry(stratum).or_default().push(unit);
                    }),
                }
            }
        }
        let (strata, intervals) = (strata.into_values().collect(), Intervals::default());
        let kinds = by_kind.into_keys().collect();
        let of_cells = benchmark.overall == Weighing::Cells;
        Outcomes {
            split,
            kinds,
            dimensions,
            cells,
            most,
            of_cells,
            unreadable,
            unscored,
            unit,
            strata,
            strata_of,
            intervals,
        }
    }

    /// True if the overall accuracy counts an outcome: a mean of cells leaves out those that no cell can be known of.
    pub fn weighs(&self, outcome: &Outcome<'_>) -> bool {
        let is_unreadable = || self.cells.get(outcome.cell).is_some_and(|(kind, _)| kind == UNREADABLE);
        !(self.of_cells && self.unreadable > 0 && is_unreadable())
    }

    /// Sentences on the broken rows of no known kind, and on the probes that count nowhere.
    pub fn apart_in_words(&self) -> Vec<String> {
        let mut said = Vec::new();
        if self.unreadable > 0 {
            let (n, split) = (self.unreadable, self.split);
            let (rows, whose) = match n {
                1 => ("1 broken row has".to_owned(), "its"),
                n => (format!("{n} broken rows have"), "their"),
            };
            let mean =
                if self.of_cells { ", but are in none of the cells whose mean is the overall" } else { "" };
            said.push(format!(
                "{rows} no readable `{split}` ({UNREADABLE}): {whose} probes count as wrong in every total over probes{mean}"
            ));
        }
        if self.unscored > 0 {
            said.push(format!(
                "{} probes have no right answer by this reading: they are in no cell and in no total",
                self.unscored
            ));
        }
        said
    }

    /// All probes' outcomes.
    pub fn all(&self) -> impl Iterator<Item = &Outcome<'a>> {
        self.strata.iter().flatten().flat_map(|case| &case.probes)
    }

    /// The counts of each cell.
    pub fn counts(&self) -> Vec<Counts> {
        let mut counts = vec![Counts::default(); self.cells.len()];
        for outcome in self.all() {
            if let Some(count) = counts.get_mut(outcome.cell) {
                count.add(outcome);
            }
        }
        counts
    }

    /// The counts of all cells together.
    pub fn total(&self) -> Counts {
        let mut total = Counts::default();
        self.all().for_each(|outcome| total.add(outcome));
        total
    }

    /// The overall accuracy of some of the cases; absent where they have no probe.
    pub fn overall<'s>(&self, cases: impl Iterator<Item = &'s CaseOutcomes<'a>> + Clone) -> Option<f64>
    where
        'a: 's,
    {
        if !self.of_cells {
            return mean_worth(cases.flat_map(|case| &case.probes));
        }
        let mut totals = vec![(0.0, 0_usize); self.cells.len()];
        for outcome in cases.flat_map(|case| &case.probes).filter(|outcome| self.weighs(outcome)) {
            if let Some((worth, expected)) = totals.get_mut(outcome.cell) {
                *worth += outcome.worth;
                *expected += 1;
            }
        }
        // A cell that these cases miss (mixed plans) has no accuracy in them.
        let drawn: Vec<f64> = totals
            .iter()
            .filter(|(_, expected)| *expected > 0)
            .map(|(worth, expected)| worth / *expected as f64)
            .collect();
        mean(&drawn)
    }
}

/// The mean worth of some outcomes; absent where there are none.
pub fn mean_worth<'s, 'a: 's>(outcomes: impl Iterator<Item = &'s Outcome<'a>>) -> Option<f64> {
    let (mut worth, mut count) = (0.0, 0_usize);
    for outcome in outcomes {
        worth += outcome.worth;
        count += 1;
    }
    (count > 0).then(|| worth / count as f64)
}
