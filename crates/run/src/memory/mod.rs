//! Selects the part of a history that a probe is shown, and returns it as cases ready to be prompted.
//!
//! The benchmark arranges the case for the condition's setting; then the context is the whole history, the evidence only, or the output of
//! a retriever ([`bm25`], [`dense`]) or memory system. Segments keep their original indices. Probes that see the same context are grouped
//! so that they share a prefill. Called by the runner. Knows no prompt wording and no model of the run.

pub mod bm25;
pub mod cupmem;
pub mod dense;
mod rank;
pub mod shown;
pub mod system;
mod view;

use std::collections::BTreeSet;

pub use rank::Rank;
pub use view::View;

use palimpsest_data::benchmarks::{Benchmark, Context, Retriever};
use palimpsest_data::case::{Case, Probe};
use system::{MemoryContext, Searches};
use view::{Places, view};

pub struct Memory {
    benchmark: &'static Benchmark,
    seed: u64,
    bm25: bm25::Bm25Ranker,
    dense: Option<Box<dyn Rank>>,
    systems: Vec<Box<dyn Searches>>,
}

impl Memory {
    /// `seed` seeds random arrangements.
    pub fn new(benchmark: &'static Benchmark, seed: u64) -> Self {
        Memory { benchmark, seed, bm25: bm25::Bm25Ranker::default(), dense: None, systems: Vec::new() }
    }

    #[must_use]
    pub fn with_dense(self, dense: Box<dyn Rank>) -> Self {
        Memory { dense: Some(dense), ..self }
    }

    #[must_use]
    pub fn with_systems(self, systems: Vec<Box<dyn Searches>>) -> Self {
        Memory { systems, ..self }
    }

    /// Views of the case under a setting, in the order of each view's first probe. With a memory system every probe has its own view.
    pub fn views(
        &mut self,
        case: &Case,
        setting: Option<&str>,
        context: Context,
        system: Option<&MemoryContext>,
    ) -> Vec<View> {
        let arranged = match setting {
            Some(setting) => (self.benchmark.arrange)(case, setting, self.seed),
            None => case.clone(),
        };
        if let Some(shown) = system {
            return arranged.probes.iter().map(|probe| self.of_system(&arranged, probe, shown)).collect();
        }
        let most = match context {
            Context::Whole => {
                return vec![View { case: arranged, ..View::default() }];
            }
            Context::Evidence | Context::Nothing => None,
            Context::Retrieved { most, .. } => Some(most),
        };
        // Places stay in rank order, so that truncation drops the last.
        let mut views: Vec<(Places, Vec<Probe>)> = Vec::new();
        for probe in &arranged.probes {
            let shown = match context {
                Context::Retrieved { by, most } => {
                    self.ranked(by, &arranged, &probe.query).map(|mut places| {
                        places.truncate(most);
                        places
                    })
                }
                Context::Nothing => Ok(Vec::new()),
                _ => of_evidence(&arranged, probe),
            };
            match views.iter_mut().find(|(other, _)| *other == shown) {
                Some((_, probes)) => probes.push(probe.clone()),
                None => views.push((shown, vec![probe.clone()])),
            }
        }
        views.into_iter().map(|(shown, probes)| view(&arranged, shown, probes, most.is_some())).collect()
    }

    fn of_system(&mut self, case: &Case, probe: &Probe, shown: &MemoryContext) -> View {
        let system = self.systems.iter_mut().find(|system| system.name() == shown.system);
        let found = match system {
            Some(system) => system.searched(case, probe),
            None => Err(format!("the memory system {} was not started", shown.system)),
        };
        shown::view(case, probe, shown, found)
    }

    fn ranked(&mut self, by: Retriever, case: &Case, query: &str) -> Places {
        match (by, &mut self.dense) {
            (Retriever::Bm25, _) => self.bm25.rank(case, query),
            (Retriever::Dense, Some(dense)) => dense.rank(case, query),
            (Retriever::Dense, None) => Err("no embedding model was opened for retrieval".to_owned()),
        }
    }
}

/// Segments that hold a probe's evidence, in the order of the history.
fn of_evidence(case: &Case, probe: &Probe) -> Places {
    let wanted: BTreeSet<usize> = case.evidence_of(probe).map(|evidence| evidence.place.segment).collect();
    let segments = case.history.segments.iter().enumerate();
    let places: Vec<usize> = segments.filter(|(_, s)| wanted.contains(&s.index)).map(|(at, _)| at).collect();
    if places.is_empty() {
        return Err("the data names no evidence of this question, so there is none to show".to_owned());
    }
    Ok(places)
}

/// Returns (evidence in `shown` segments, all evidence). `segments` are the original indices of the evidence.
pub fn evidence_present(segments: impl Iterator<Item = usize>, shown: &[usize]) -> (usize, usize) {
    segments
        .fold((0, 0), |(present, all), segment| (present + usize::from(shown.contains(&segment)), all + 1))
}
