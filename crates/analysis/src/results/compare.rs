//! Paired comparison of two runs: exact McNemar test, interval, Holm's correction over the cells.
//!
//! Differences are first minus second. McNemar's test pairs questions; the interval is over whole units within each kind, since questions
//! of a case are dependent. Scored answers have no test.

use std::collections::HashMap;

use serde::Serialize;

use super::intervals::{Worths, interval};
use super::outcomes::{CaseOutcomes, Outcome, Outcomes, mean_worth};
use palimpsest_data::statistics::Interval;
use palimpsest_data::statistics::bounded::Intervals;
use palimpsest_data::statistics::holm::holm;
use palimpsest_data::statistics::mcnemar::mcnemar;

#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    #[error(
        "they did not answer the same questions: {} in {first} alone{}, {} in {second} alone{}; compare the questions that both have \
         with --common, or answer the same cases and probes with both",
        of_first.len(), examples(of_first), of_second.len(), examples(of_second)
    )]
    Different { first: String, second: String, of_first: Vec<String>, of_second: Vec<String> },
    #[error("{first} and {second} have no question in common; compare runs of the same data")]
    Nothing { first: String, second: String },
    /// Same ids, different questions.
    #[error(
        "case `{case}` probe `{probe}` is a different question in {second} than in {first}; compare runs of the same data"
    )]
    Query { first: String, second: String, case: String, probe: String },
}

fn examples(all: &[String]) -> String {
    const SHOWN: usize = 3;
    match all.get(..SHOWN.min(all.len())) {
        None | Some([]) => String::new(),
        Some(some) if all.len() > SHOWN => format!(" ({}, ...)", some.join(", ")),
        Some(some) => format!(" ({})", some.join(", ")),
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    pub first: String,
    pub second: String,
    pub cells: Vec<Difference>,
    pub overall: Difference,
    pub units: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strata: Option<&'static str>,
    pub intervals: Intervals,
    pub only_first: usize,
    pub only_second: usize,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    pub kind: Option<String>,
    pub dimension: Option<String>,
    pub pairs: usize,
    pub first: f64,
    pub second: f64,
    pub difference: f64,
    /// 95% interval over units; `None` if no kind has two.
    pub interval: Option<Interval>,
    /// Discordant pairs; `None` for scored answers.
    pub test: Option<Discordance>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Discordance {
    /// Right in the first run only.
    pub b: usize,
    pub c: usize,
    pub p: f64,
    /// Holm-corrected over all cells; `None` for the total, which is not in that family.
    pub p_holm: Option<f64>,
}

impl Comparison {
    pub fn rows(&self) -> impl Iterator<Item = &Difference> {
        self.cells.iter().chain(std::iter::once(&self.overall))
    }
}

/// Outcomes of one unit's questions in both runs. Cells are the first run's on both sides.
type Unit<'a> = Vec<(Outcome<'a>, Outcome<'a>)>;

/// Compares the questions of both runs. Questions of one run only are an error, unless `common` excludes them.
pub fn compare(
    first: &Outcomes<'_>,
    second: &Outcomes<'_>,
    names: (&str, &str),
    common: bool,
) -> Result<Comparison, CompareError> {
    let names = (names.0.to_owned(), names.1.to_owned());
    let Paired { strata, of_first, of_second } = Paired::of(first, second, &names)?;
    if !(common || of_first.is_empty() && of_second.is_empty()) {
        let (first, second) = names;
        return Err(CompareError::Different { first, second, of_first, of_second });
    }
    if strata.iter().all(Vec::is_empty) {
        let (first, second) = names;
        return Err(CompareError::Nothing { first, second });
    }
    let of_cell = |at: usize| -> Vec<Unit<'_>> {
        // Broken rows without a kind failed in both runs; there is nothing to test.
        let here = |pair: &&(Outcome<'_>, Outcome<'_>)| pair.0.cell == at && first.weighs(&pair.0);
        let units = strata.iter().flatten().map(|unit| unit.iter().filter(here).copied().collect());
        units.filter(|unit: &Unit<'_>| !unit.is_empty()).collect()
    };
    let cells = first.cells.iter().enumerate().map(|(at, cell)| (cell, of_cell(at)));
    let cells = cells.filter(|(_, units)| !units.is_empty());
    let mut cells: Vec<Difference> =
        cells.map(|(cell, units)| difference(&[units], first, Some(cell))).collect();
    let p_values: Vec<f64> = cells.iter().filter_map(|cell| Some(cell.test?.p)).collect();
    for (cell, adjusted) in cells.iter_mut().zip(holm(&p_values)) {
        cell.test = cell.test.map(|test| Discordance { p_holm: Some(adjusted), ..test });
    }
    Ok(Comparison {
        first: names.0,
        second: names.1,
        cells,
        overall: difference(&strata, first, None),
        units: first.benchmark.unit.many(),
        strata: first.benchmark.strata,
        intervals: first.intervals,
        only_first: of_first.len(),
        only_second: of_second.len(),
    })
}

/// Shared questions by kind, and those of one run only.
struct Paired<'a> {
    strata: Vec<Vec<Unit<'a>>>,
    of_first: Vec<String>,
    of_second: Vec<String>,
}

impl<'a> Paired<'a> {
    fn of(
        first: &Outcomes<'a>,
        second: &Outcomes<'a>,
        names: &(String, String),
    ) -> Result<Self, CompareError> {
        let questions =
            || second.strata.iter().flatten().flat_map(|c| c.probes.iter().map(|o| ((c.case, o.probe), o)));
        let mut left: HashMap<(&str, &str), &Outcome<'a>> = questions().collect();
        let (mut strata, mut of_first) = (Vec::new(), Vec::new());
        for stratum in &first.strata {
            let mut units: Vec<Unit<'a>> = Vec::new();
            for CaseOutcomes { case, probes } in stratum {
                let mut unit = Unit::new();
                for one in probes {
                    let Some(other) = left.remove(&(*case, one.probe)) else {
                        of_first.push(format!("{case}/{}", one.probe));
                        continue;
                    };
                    if one.query != other.query {
                        let (first, second) = names.clone();
                        let (case, probe) = ((*case).to_owned(), one.probe.to_owned());
                        return Err(CompareError::Query { first, second, case, probe });
                    }
                    unit.push((*one, Outcome { cell: one.cell, ..*other }));
                }
                units.extend((!unit.is_empty()).then_some(unit));
            }
            strata.push(units);
        }
        let of_second = questions().filter(|(key, _)| left.contains_key(key));
        let of_second = of_second.map(|((case, probe), _)| format!("{case}/{probe}")).collect();
        Ok(Paired { strata, of_first, of_second })
    }
}

/// Difference in one cell, or overall. Scored answers are not tested.
fn difference<'a>(
    strata: &[Vec<Unit<'a>>],
    run: &Outcomes<'a>,
    cell: Option<&(String, String)>,
) -> Difference {
    let all = || strata.iter().flatten().flatten();
    let accuracy = |of: for<'s> fn(&'s (Outcome<'a>, Outcome<'a>)) -> &'s Outcome<'a>| match cell {
        Some(_) => mean_worth(all().map(of)).unwrap_or(0.0),
        None => run.overall(all().map(of)).unwrap_or(0.0),
    };
    let (first, second) = (accuracy(|(one, _)| one), accuracy(|(_, other)| other));
    let b = all().filter(|(one, other)| one.correct && !other.correct).count();
    let c = all().filter(|(one, other)| other.correct && !one.correct).count();
    let of_unit = |unit: &Unit<'a>| -> Worths {
        let weighing = unit.iter().filter(|(one, _)| run.weighs(one));
        weighing.map(|(one, other)| (one.cell, one.worth - other.worth)).collect()
    };
    let differences: Vec<Vec<Worths>> = (strata.iter())
        .map(|units| units.iter().map(of_unit).filter(|worths| !worths.is_empty()).collect())
        .collect();
    Difference {
        kind: cell.map(|(kind, _)| kind.clone()),
        dimension: cell.map(|(_, dimension)| dimension.clone()),
        pairs: all().count(),
        first,
        second,
        difference: first - second,
        interval: interval(&differences, cell.is_none() && run.of_cells(), (-1.0, 1.0), run.intervals),
        test: run.most.is_none().then(|| Discordance { b, c, p: mcnemar(b, c), p_holm: None }),
    }
}
