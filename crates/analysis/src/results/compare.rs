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
        "they did not answer the same questions: {} in {first} alone{}, {} in {second} alone{}; compare what both have with \
         --common, or answer the same cases and probes with both",
        of_first.len(), examples(of_first), of_second.len(), examples(of_second)
    )]
    Different { first: String, second: String, of_first: Vec<String>, of_second: Vec<String> },
    #[error("{first} and {second} have no question in common; compare runs of the same data")]
    Nothing { first: String, second: String },
    /// Same ids, different questions.
    #[error(
        "case `{case}` probe `{probe}` is another question in {second} than in {first}; compare runs of the same data"
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
    /// Facet by which units are stratified, besides their kind.
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
    /// Right in the second run only.
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

type Pair<'a> = (CaseOutcomes<'a>, CaseOutcomes<'a>);

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
    let mut cells: Vec<Difference> = Vec::new();
    for (at, (kind, dimension)) in first.cells.iter().enumerate() {
        // Broken rows without a kind failed in both runs; there is nothing to test.
        let has = |case: &&Pair<'_>| {
            case.0.probes.iter().any(|outcome| outcome.cell == at && first.weighs(outcome))
        };
        let cases: Vec<Pair<'_>> = strata.iter().flatten().filter(has).cloned().collect();
        if cases.is_empty() {
            continue;
        }
        let here = |outcome: &&Outcome<'_>| outcome.cell == at;
        let of_cases = |cases: &[Vec<&CaseOutcomes<'_>>]| {
            mean_worth(cases.iter().flatten().flat_map(|case| &case.probes).filter(here))
        };
        let found = difference(&[cases], first, of_cases, (here, here), false);
        cells.push(Difference { kind: Some(kind.clone()), dimension: Some(dimension.clone()), ..found });
    }
    let p_values: Vec<f64> = cells.iter().filter_map(|cell| Some(cell.test?.p)).collect();
    for (cell, adjusted) in cells.iter_mut().zip(holm(&p_values)) {
        cell.test = cell.test.map(|test| Discordance { p_holm: Some(adjusted), ..test });
    }
    let of_cases = |cases: &[Vec<&CaseOutcomes<'_>>]| first.overall(cases.iter().flatten().copied());
    let counts = (|_: &&Outcome<'_>| true, |outcome: &&Outcome<'_>| first.weighs(outcome));
    let overall = difference(&strata, first, of_cases, counts, first.of_cells());
    Ok(Comparison {
        first: names.0,
        second: names.1,
        cells,
        overall,
        units: first.benchmark.unit.many(),
        strata: first.benchmark.strata,
        intervals: first.intervals,
        only_first: of_first.len(),
        only_second: of_second.len(),
    })
}

struct Paired<'a> {
    /// By kind, shared questions only. Cells are the first run's on both sides.
    strata: Vec<Vec<Pair<'a>>>,
    of_first: Vec<String>,
    of_second: Vec<String>,
}

impl<'a> Paired<'a> {
    fn of(
        first: &Outcomes<'a>,
        second: &Outcomes<'a>,
        names: &(String, String),
    ) -> Result<Self, CompareError> {
        let cases = || second.strata.iter().flatten();
        let mut left: HashMap<(&str, &str), &Outcome<'a>> =
            cases().flat_map(|c| c.probes.iter().map(|o| ((c.case, o.probe), o))).collect();
        let (mut strata, mut of_first) = (Vec::new(), Vec::new());
        for stratum in &first.strata {
            let mut pairs: Vec<Pair<'a>> = Vec::new();
            for CaseOutcomes { case, probes } in stratum {
                let (mut ours, mut theirs) = (Vec::new(), Vec::new());
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
                    ours.push(*one);
                    theirs.push(Outcome { cell: one.cell, ..*other });
                }
                if !ours.is_empty() {
                    let of = |probes| CaseOutcomes { case, probes };
                    pairs.push((of(ours), of(theirs)));
                }
            }
            strata.push(pairs);
        }
        let asked = |(case, probe): (&str, &str)| left.contains_key(&(case, probe));
        let of_second = cases()
            .flat_map(|c| c.probes.iter().map(|o| (c.case, o.probe)))
            .filter(|key| asked(*key))
            .map(|(case, probe)| format!("{case}/{probe}"))
            .collect();
        Ok(Paired { strata, of_first, of_second })
    }
}

/// Difference of `statistic` over `strata`. Questions in `counts` are tested unless `run` has scores; those in `weighs` give the interval.
/// `of_cells`: the statistic is a mean of cells.
fn difference<'a>(
    strata: &[Vec<Pair<'a>>],
    run: &Outcomes<'_>,
    statistic: impl Fn(&[Vec<&CaseOutcomes<'a>>]) -> Option<f64>,
    (counts, weighs): (impl Fn(&&Outcome<'a>) -> bool, impl Fn(&&Outcome<'a>) -> bool),
    of_cells: bool,
) -> Difference {
    let side = |of: for<'s> fn(&'s Pair<'a>) -> &'s CaseOutcomes<'a>| {
        let all: Vec<Vec<&CaseOutcomes<'a>>> =
            strata.iter().map(|cases| cases.iter().map(of).collect()).collect();
        statistic(&all).unwrap_or(0.0)
    };
    let (first, second) = (side(|pair| &pair.0), side(|pair| &pair.1));
    let (mut pairs, mut b, mut c) = (0, 0, 0);
    for (ours, theirs) in strata.iter().flatten() {
        for (one, other) in ours.probes.iter().zip(&theirs.probes).filter(|(one, _)| counts(one)) {
            pairs += 1;
            b += usize::from(one.correct && !other.correct);
            c += usize::from(other.correct && !one.correct);
        }
    }
    let of_pair = |(ours, theirs): &Pair<'a>| -> Worths {
        let both = ours.probes.iter().zip(&theirs.probes).filter(|(one, _)| weighs(one));
        both.map(|(one, other)| (one.cell, one.worth - other.worth)).collect()
    };
    let of_stratum = |pairs: &Vec<Pair<'a>>| -> Vec<Worths> {
        pairs.iter().map(of_pair).filter(|probes| !probes.is_empty()).collect()
    };
    let of_pairs: Vec<Vec<Worths>> = strata.iter().map(of_stratum).collect();
    Difference {
        kind: None,
        dimension: None,
        pairs,
        first,
        second,
        difference: first - second,
        interval: interval(&of_pairs, of_cells, (-1.0, 1.0), run.intervals),
        test: run.most.is_none().then(|| Discordance { b, c, p: mcnemar(b, c), p_holm: None }),
    }
}
