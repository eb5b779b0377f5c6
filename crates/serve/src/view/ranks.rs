//! Ranks of an answer's evidence by attention, and stages of its facts in a memory system.
//!
//! A background thread reads the per-answer files ([`super::state`]), and the table fills up meanwhile. Definitions are the lens': means
//! over heads and over layers that see the whole prompt.

use std::path::PathBuf;

use ndarray::Axis;

use super::attention::{Attention, holds, session_spans};
use palimpsest_analysis::lens::layers::mean_over;
use palimpsest_analysis::lens::{Layer, LayerKind};
use palimpsest_analysis::losses::fact::{Carrier, Known, facts};
use palimpsest_analysis::losses::reading::Effects;
use palimpsest_analysis::losses::trace::{Evidence, FactTrace, Named, Trace};
use palimpsest_data::benchmarks::{Benchmark, Side};
use palimpsest_run::memory::system::MemoryContext;
use palimpsest_run::memory::system::case_rows::MemoryRows;
use palimpsest_run::runs::plan::{PlannedCase, PlannedProbe, dimension_of};
use palimpsest_run::runs::rows::AnswerRow;

/// Stages before attention: written, kept, retrieved, shown.
pub const STAGES: usize = 4;

/// A number of the evidence in a role; the largest of several.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RoleRank {
    pub value: f64,
    /// Rank among the answer's sessions; 1 is the largest.
    pub rank: usize,
}

impl RoleRank {
    /// From all sessions' numbers, and whether the session has the role.
    pub fn of(all: &[(bool, f64)]) -> Option<Self> {
        let own = all.iter().filter(|(has_role, _)| *has_role).map(|(_, value)| *value);
        let value = own.max_by(f64::total_cmp)?;
        Some(RoleRank { value, rank: 1 + all.iter().filter(|(_, other)| *other > value).count() })
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ranked {
    /// The query's masses by role.
    pub masses: Vec<Option<RoleRank>>,
    /// Facts that the question needs, with a memory system.
    pub facts: Vec<FactTrace>,
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
    /// Files that cannot be read leave their part empty; the answer's own view names the fault.
    pub fn ranked(&self) -> Ranked {
        let name = self.answer.as_ref().and_then(|row| row.attention.as_ref());
        let attention = name.and_then(|name| Attention::read(&self.dir, name, self.benchmark).ok());
        let facts = self.memory.as_ref().zip(self.case.probes.get(self.probe)).and_then(|(memory, probe)| {
            let rows = MemoryRows::read(&self.dir, &memory.system, &self.case.case).ok()?;
            let asked = (self.benchmark, &self.case, probe);
            Some(stages(asked, memory, rows.as_ref(), self.answer.as_ref()))
        });
        Ranked {
            masses: attention.map(|attention| masses(&attention, &self.roles)).unwrap_or_default(),
            facts: facts.unwrap_or_default(),
        }
    }
}

/// Stages of the probe's facts, from the memory system's rows on the case.
pub fn stages(
    (benchmark, case, probe): (&'static Benchmark, &PlannedCase, &PlannedProbe),
    memory: &MemoryContext,
    rows: Option<&MemoryRows>,
    answer: Option<&AnswerRow>,
) -> Vec<FactTrace> {
    let effects = Effects::default();
    let (k, show, right) = (memory.k, memory.show, Known::Unknown);
    let evidence =
        Evidence { rows, k, show, answer, densities: &[], selected: &[], effects: &effects, right };
    let named = Named {
        case: case.case.clone(),
        probe: probe.id.clone(),
        kind: None,
        dimension: dimension_of(benchmark, probe),
    };
    Trace::of(named, &facts(benchmark, case, probe), &evidence, Carrier { stated: None }).facts
}

impl Ranked {
    /// The fact whose loss is reported: the newer side's, else the first.
    pub fn fact(&self) -> Option<&FactTrace> {
        self.facts.iter().find(|fact| fact.side == Some(Side::Newer)).or(self.facts.first())
    }
}

/// Kind of layers to average: full-attention layers if there are any.
pub fn kind_of(layers: &[Layer]) -> Option<LayerKind> {
    LayerKind::ALL.into_iter().find(|kind| layers.iter().any(|layer| layer.kind == *kind))
}

fn masses(attention: &Attention, roles: &[String]) -> Vec<Option<RoleRank>> {
    let Attention { store, by_layer, viewer, .. } = attention;
    let (Some(row), Some(kind)) = (*viewer, kind_of(&by_layer.layers)) else { return Vec::new() };
    let of_row = by_layer.mass.index_axis(Axis(1), row); // (layers, keys)
    let mean = |key: usize| mean_over(&by_layer.layers, kind, &of_row.column(key).to_vec());
    let all: Vec<(usize, f64)> = session_spans(store).filter_map(|key| Some((key, mean(key)?))).collect();
    let of_role = |role: &String| {
        let all: Vec<_> = all.iter().map(|(key, mass)| (holds(store, *key, role), *mass)).collect();
        RoleRank::of(&all)
    };
    roles.iter().map(of_role).collect()
}
