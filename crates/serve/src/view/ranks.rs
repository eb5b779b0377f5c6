//! Ranks of an answer's evidence by attention, and stages of its facts in a memory system.
//!
//! A background thread reads the per-answer files ([`super::state`]), and the table fills up meanwhile. Definitions are the lens': means
//! over heads and over layers that see the whole prompt.

use std::path::PathBuf;

use ndarray::Axis;

use super::roles::{holds, session_spans, viewer};
use palimpsest_analysis::lens::layers::mean_over;
use palimpsest_analysis::lens::{ByLayer, Layer, LayerKind};
use palimpsest_analysis::losses::fact::{Carrier, Known, facts};
use palimpsest_analysis::losses::reading::Effects;
use palimpsest_analysis::losses::trace::{Evidence, FactTrace, Named, Trace};
use palimpsest_core::attention::AttentionStore;
use palimpsest_data::benchmarks::{Benchmark, Side};
use palimpsest_run::memory::system::MemoryContext;
use palimpsest_run::memory::system::case_rows::MemoryRows;
use palimpsest_run::runs::plan::{PlannedCase, dimension_of};
use palimpsest_run::runs::rows::AnswerRow;

/// Stages before attention: written, kept, retrieved, shown.
pub const STAGES: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RoleMass {
    /// Query mass on the session with the role; the largest of several.
    pub mass: f64,
    /// Rank among the shown sessions; 1 is the largest.
    pub rank: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FactStages {
    pub role: String,
    pub side: Option<Side>,
    pub sessions: Vec<usize>,
    pub stages: [Known; STAGES],
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ranked {
    pub masses: Vec<Option<RoleMass>>,
    /// Facts that the question needs, with a memory system.
    pub facts: Vec<FactStages>,
    pub fault: Option<String>,
}

#[derive(Debug)]
pub struct RankJob {
    pub dir: PathBuf,
    pub benchmark: &'static Benchmark,
    pub case: PlannedCase,
    pub probe: usize,
    pub memory: Option<MemoryContext>,
    pub answer: Option<AnswerRow>,
    pub roles: Vec<String>,
}

impl RankJob {
    pub fn ranked(&self) -> Ranked {
        let mut ranked = Ranked { masses: vec![None; self.roles.len()], ..Ranked::default() };
        let attention = self.answer.as_ref().and_then(|row| row.attention.as_ref());
        if let Some(name) = attention {
            let path = self.dir.join(name);
            let read = AttentionStore::load(&path).and_then(|store| {
                let by_layer = ByLayer::of(&path, &store, None)?;
                Ok(masses(&store, &by_layer, self.benchmark, &self.roles))
            });
            match read {
                Ok(masses) => ranked.masses = masses,
                Err(error) => ranked.fault = Some(error.to_string()),
            }
        }
        match self.facts() {
            Ok(facts) => ranked.facts = facts,
            Err(error) => ranked.fault = Some(error),
        }
        ranked
    }

    fn facts(&self) -> Result<Vec<FactStages>, String> {
        let Some(memory) = &self.memory else { return Ok(Vec::new()) };
        let rows = MemoryRows::read(&self.dir, &memory.system, &self.case.case);
        let rows = rows.map_err(|error| error.to_string())?;
        Ok(stages((self.benchmark, &self.case, self.probe), memory, rows.as_ref(), self.answer.as_ref()))
    }
}

/// Stages of the probe's facts, from the memory system's rows on the case.
pub fn stages(
    (benchmark, case, probe): (&'static Benchmark, &PlannedCase, usize),
    memory: &MemoryContext,
    rows: Option<&MemoryRows>,
    answer: Option<&AnswerRow>,
) -> Vec<FactStages> {
    let Some(probe) = case.probes.get(probe) else { return Vec::new() };
    let effects = Effects::default();
    let (k, show, right) = (memory.k, memory.show, Known::Unknown);
    let evidence = Evidence { rows, k, show, answer, densities: &[], effects: &effects, right };
    let named = Named {
        case: case.case.clone(),
        probe: probe.id.clone(),
        kind: None,
        dimension: dimension_of(benchmark, probe),
    };
    let trace = Trace::of(named, &facts(benchmark, case, probe), &evidence, Carrier { stated: None });
    let of = |fact: FactTrace| FactStages {
        role: fact.role,
        side: fact.side,
        sessions: fact.sessions.into_iter().collect(),
        stages: std::array::from_fn(|at| fact.stages[at]),
    };
    trace.facts.into_iter().map(of).collect()
}

impl Ranked {
    /// The fact whose loss is reported: the newer side's, else the first.
    pub fn fact(&self) -> Option<&FactStages> {
        self.facts.iter().find(|fact| fact.side == Some(Side::Newer)).or(self.facts.first())
    }
}

/// Kind of layers to average: full-attention layers if there are any.
pub fn kind_of(layers: &[Layer]) -> Option<LayerKind> {
    LayerKind::ALL.into_iter().find(|kind| layers.iter().any(|layer| layer.kind == *kind))
}

fn masses(
    store: &AttentionStore,
    by_layer: &ByLayer,
    benchmark: &Benchmark,
    roles: &[String],
) -> Vec<Option<RoleMass>> {
    let (Some(row), Some(kind)) = (viewer(store, benchmark), kind_of(&by_layer.layers)) else {
        return vec![None; roles.len()];
    };
    let of_row = by_layer.mass.index_axis(Axis(1), row); // (layers, keys)
    let mean = |key: usize| mean_over(&by_layer.layers, kind, &of_row.column(key).to_vec());
    let all: Vec<(usize, f64)> = session_spans(store).filter_map(|key| Some((key, mean(key)?))).collect();
    let of_role = |role: &String| {
        let own = all.iter().filter(|(key, _)| holds(store, *key, role)).map(|(_, mass)| *mass);
        let mass = own.max_by(f64::total_cmp)?;
        Some(RoleMass { mass, rank: 1 + all.iter().filter(|(_, other)| *other > mass).count() })
    };
    roles.iter().map(of_role).collect()
}
