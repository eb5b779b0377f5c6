//! Plan of all rows of a file, including broken ones.
//!
//! Broken rows stay in every denominator: under their uid if readable and unique, with the labels and probes that can be read, or the
//! probes common to every case of the benchmark. The runner answers them with errors.

use std::collections::BTreeSet;

use super::plan::{PlannedCase, PlannedProbe};
use palimpsest_data::benchmarks::Benchmark;
use palimpsest_data::benchmarks::reading::{RowCounts, RowProblems};
use palimpsest_data::case::{Case, Probe};

/// Probe of a broken row if the benchmark's cases have different probes.
const ROW: &str = "row";

#[derive(Debug)]
pub struct FilePlan {
    benchmark: &'static Benchmark,
    cases: Vec<PlannedCase>,
    /// Broken rows: index in `cases`, row number in the file, uid.
    broken: Vec<(usize, usize, Option<String>)>,
    first_problem: Option<String>,
    counts: RowCounts,
}

impl FilePlan {
    pub fn new(benchmark: &'static Benchmark) -> Self {
        let counts = RowCounts::default();
        FilePlan { benchmark, cases: Vec::new(), broken: Vec::new(), first_problem: None, counts }
    }

    pub fn sound(&mut self, case: &Case) {
        self.counts.sound(case);
        self.cases.push(PlannedCase::of(case));
    }

    pub fn broken(&mut self, row: RowProblems) {
        self.counts.broken(&row);
        let RowProblems { problems, labels, probes, .. } = row;
        let first = problems.first();
        let mut reason = first.map_or_else(|| "the row is broken".to_owned(), ToString::to_string);
        self.first_problem.get_or_insert_with(|| reason.clone());
        if problems.len() > 1 {
            reason += &format!("; and {} more", problems.len() - 1);
        }
        let row = first.map_or(self.cases.len(), |problem| problem.row);
        self.broken.push((self.cases.len(), row, first.and_then(|problem| problem.uid.clone())));
        let probe = |id: &str| PlannedProbe { id: id.to_owned(), ..PlannedProbe::default() };
        let probes = match (probes, self.benchmark.probes) {
            (probes, _) if !probes.is_empty() => {
                let of = |Probe { id, facets, .. }| PlannedProbe { id, facets, ..PlannedProbe::default() };
                probes.into_iter().map(of).collect()
            }
            (_, []) => vec![probe(ROW)],
            (_, ids) => ids.iter().map(|id| probe(id)).collect(),
        };
        self.cases.push(PlannedCase { labels, probes, broken: Some(reason), ..PlannedCase::default() });
    }

    pub fn rows(&self) -> (usize, usize) {
        (self.cases.len(), self.broken.len())
    }

    pub fn counts(&self) -> &RowCounts {
        &self.counts
    }

    pub fn first_problem(&self) -> Option<&str> {
        self.first_problem.as_deref()
    }

    /// The plan in file order. Broken rows without a usable uid are named `row-3` by their number.
    pub fn finish(mut self) -> Vec<PlannedCase> {
        // Uids become file names, which some file systems compare case-insensitively.
        let sound = self.cases.iter().filter(|case| case.broken.is_none());
        let mut taken: BTreeSet<String> = sound.map(|case| case.case.to_lowercase()).collect();
        for (place, row, uid) in self.broken {
            let mut id = uid.filter(|uid| !taken.contains(&uid.to_lowercase()));
            let mut name = format!("row-{row}");
            while id.is_none() {
                if taken.contains(&name.to_lowercase()) {
                    name += "-broken";
                } else {
                    id = Some(name.clone());
                }
            }
            if let (Some(id), Some(case)) = (id, self.cases.get_mut(place)) {
                taken.insert(id.to_lowercase());
                case.case = id;
            }
        }
        self.cases
    }
}
