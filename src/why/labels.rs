//! The labels of a run's answers, and what their certificates come to.

use std::collections::BTreeMap;

use super::evidence::has_no_evidence;
use crate::benchmarks::Benchmark;
use crate::ground::order::unique;
use crate::run::error::RunError;
use crate::run::plan::dimension_of;
use crate::run::rows::AnswerKey;
use crate::run::store::RunFolder;
use crate::run::why_rows::{WhyRow, last_rows, read_why};

/// The labels of a run, a row an answer, with the names that they are counted by.
#[derive(Debug, Clone)]
pub struct Labels {
    /// The judge whose verdicts they explain; several where the run was labelled by several.
    pub judges: Vec<String>,
    /// In the order of the plan and of the conditions.
    pub answers: Vec<Labelled>,
}

/// A labelled answer.
#[derive(Debug, Clone)]
pub struct Labelled {
    /// The value of the label that the benchmark is split by.
    pub kind: String,
    pub dimension: String,
    pub row: WhyRow,
    /// True if its history holds no evidence of either side.
    pub without_evidence: bool,
}

impl Labels {
    /// Of a run's folder; `None` where it was not labelled.
    pub fn open(folder: &RunFolder) -> Result<Option<Self>, RunError> {
        let rows = last_rows(read_why(&folder.dir)?);
        if rows.is_empty() {
            return Ok(None);
        }
        Ok(Some(Labels::of(folder, folder.benchmark()?, &rows)))
    }

    fn of(folder: &RunFolder, benchmark: &Benchmark, rows: &BTreeMap<AnswerKey, WhyRow>) -> Self {
        let conditions = folder.header.identity.condition_names();
        let mut answers = Vec::new();
        for condition in conditions {
            for case in &folder.plan {
                for probe in &case.probes {
                    let Some(row) = rows.get(&AnswerKey::of(&case.case, &probe.id, condition).owned()) else {
                        continue;
                    };
                    answers.push(Labelled {
                        kind: case.labels.get(benchmark.split).cloned().unwrap_or_default(),
                        dimension: dimension_of(benchmark, probe),
                        row: row.clone(),
                        without_evidence: has_no_evidence(benchmark, case, probe),
                    });
                }
            }
        }
        Labels { judges: unique(answers.iter().map(|answer| answer.row.judge.clone())), answers }
    }

    /// The certificates of the answers whose histories hold evidence, and of those that hold none.
    pub fn certificates(&self) -> [Certificates; 2] {
        [false, true].map(|without| {
            let of = self.answers.iter().filter(|answer| answer.without_evidence == without);
            Certificates::of(of.map(|answer| &answer.row))
        })
    }
}

/// Certificates of some answers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Certificates {
    pub searched: usize,
    pub found: usize,
    pub single: usize,
    /// Readings over sets of sessions, of all searches.
    pub readings: usize,
    /// The same of the searches that found one.
    pub readings_of_found: usize,
    /// Sessions that might be blocked, of all searches.
    pub candidates: usize,
    pub spent: usize,
    pub control_sets: usize,
    pub control_flips: usize,
}

impl Certificates {
    fn of<'a>(rows: impl Iterator<Item = &'a WhyRow>) -> Self {
        let mut all = Certificates::default();
        for row in rows {
            let Some(search) = row.search else { continue };
            all.searched += 1;
            all.readings += search.sessions;
            all.candidates += search.candidates;
            all.spent += usize::from(search.spent);
            let Some(certificate) = &row.certificate else { continue };
            all.found += 1;
            all.single += usize::from(certificate.sessions.len() == 1);
            all.readings_of_found += search.sessions;
            all.control_sets += certificate.controls.sets;
            all.control_flips += certificate.controls.flips;
        }
        all
    }
}
