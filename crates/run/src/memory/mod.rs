//! Selects the part of a history that a probe is shown, and returns it as cases ready to be prompted.
//!
//! The benchmark arranges the case for the condition's setting; then the context is the whole history, the evidence only, or the output of
//! a retriever ([`similar`]) or memory system. Segments keep their original indices. Probes that see the same context are grouped
//! so that they share a prefill. Called by the runner. Knows no prompt wording and no model of the run.

pub mod cupmem;
pub mod shown;
pub mod similar;
pub mod system;

use std::collections::BTreeSet;

use palimpsest_data::benchmarks::{Benchmark, Context, Retriever};
use palimpsest_data::case::{Case, Keep, Probe};
use palimpsest_data::ground::order::entry;
pub use shown::View;
use shown::part;
use similar::{ByEmbedding, ByWords, ranked};
use system::MemoryContext;
use system::history::{SystemRun, Wanted};

pub struct Memory {
    benchmark: &'static Benchmark,
    seed: u64,
    by_words: ByWords,
    by_embedding: Option<ByEmbedding>,
    systems: Vec<(SystemRun, Wanted)>,
}

/// Indices of segments, or why there are none.
type Places = Result<Vec<usize>, String>;

impl Memory {
    /// `seed` seeds random arrangements.
    pub fn new(benchmark: &'static Benchmark, seed: u64) -> Self {
        Memory { benchmark, seed, by_words: ByWords::default(), by_embedding: None, systems: Vec::new() }
    }

    #[must_use]
    pub fn with_embedding(self, similarity: ByEmbedding) -> Self {
        Memory { by_embedding: Some(similarity), ..self }
    }

    #[must_use]
    pub fn with_systems(self, systems: Vec<(SystemRun, Wanted)>) -> Self {
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
        let case = match setting {
            Some(setting) => (self.benchmark.arrange)(case, setting, self.seed),
            None => case.clone(),
        };
        if let Some(shown) = system {
            return case.probes.iter().map(|probe| self.of_system(&case, probe, shown)).collect();
        }
        if matches!(context, Context::Whole) {
            return vec![View { case, ..View::default() }];
        }
        let is_ranked = matches!(context, Context::Retrieved { .. });
        let mut views: Vec<(Places, Vec<Probe>)> = Vec::new();
        for probe in &case.probes {
            let shown = self.places(context, &case, probe);
            let same = |(other, _): &(Places, _)| *other == shown;
            entry(&mut views, same, || (shown.clone(), Vec::new())).1.push(probe.clone());
        }
        views.into_iter().map(|(shown, probes)| view(&case, shown, probes, is_ranked)).collect()
    }

    fn of_system(&mut self, case: &Case, probe: &Probe, shown: &MemoryContext) -> View {
        let system = self.systems.iter_mut().find(|(system, _)| system.name() == shown.system);
        let found = match system {
            Some((system, wanted)) => {
                system.searched(case, probe, *wanted).map_err(|error| error.to_string())
            }
            None => Err(format!("the memory system {} was not started", shown.system)),
        };
        shown::view(case, probe, shown, found)
    }

    /// In rank order, so that truncation drops the last; evidence in the order of the history.
    fn places(&mut self, context: Context, case: &Case, probe: &Probe) -> Places {
        let (by, most) = match context {
            Context::Retrieved { by, most } => (by, most),
            Context::Nothing => return Ok(Vec::new()),
            _ => return of_evidence(case, probe),
        };
        let places = match (by, &mut self.by_embedding) {
            (Retriever::Bm25, _) => ranked(&mut self.by_words, case, &probe.query),
            (Retriever::Dense, Some(similarity)) => ranked(similarity, case, &probe.query),
            (Retriever::Dense, None) => Err("no embedding model was opened for retrieval".to_owned()),
        };
        Ok(places?.into_iter().take(most).collect())
    }
}

fn of_evidence(case: &Case, probe: &Probe) -> Places {
    let wanted: BTreeSet<usize> = case.evidence_of(probe).map(|evidence| evidence.place.segment).collect();
    let segments = case.history.segments.iter().enumerate();
    let places: Vec<usize> = segments.filter(|(_, s)| wanted.contains(&s.index)).map(|(at, _)| at).collect();
    if places.is_empty() {
        return Err("the data names no evidence of this question, so there is none to show".to_owned());
    }
    Ok(places)
}

fn view(arranged: &Case, places: Places, probes: Vec<Probe>, is_ranked: bool) -> View {
    let (places, refused) = match places {
        Ok(places) => (places, None),
        Err(why) => (Vec::new(), Some(why)),
    };
    let keep = match is_ranked {
        true => Keep::Ranked(places.iter().map(|&place| arranged.history.segments[place].index).collect()),
        false => Keep::Evidence,
    };
    let shown: BTreeSet<usize> = places.into_iter().collect();
    let case = part(arranged, arranged.history.select(|place, _| shown.contains(&place)), probes, keep);
    let segments = case.history.segments.iter().map(|segment| segment.index).collect();
    View { case, segments: Some(segments), refused, ..View::default() }
}

/// Returns (evidence in `shown` segments, all evidence). `segments` are the original indices of the evidence.
pub fn evidence_present(segments: impl Iterator<Item = usize>, shown: &[usize]) -> (usize, usize) {
    segments
        .fold((0, 0), |(present, all), segment| (present + usize::from(shown.contains(&segment)), all + 1))
}
