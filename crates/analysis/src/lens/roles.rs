//! Attention of the rows of a store to spans by their roles, averaged over heads: mass, share and density by layer.
//!
//! Called by [`crate::dose`] for evidence, by [`crate::losses`] for memories, which knows what each carries, and by notebooks. Mass, share
//! and density are those of [`super::example`], of any row and role that a store has: spans in one role add up.

use std::path::Path;

use ndarray::Axis;

use super::layers::{ByLayer, Layer, LayerKind, mean_over};
use super::paid::{Paid, densities_of, in_role, of_rows};
use super::{AnalysedRun, ByHeads, LensError};
use crate::heads::file::HeadWeights;
use palimpsest_core::attention::{AttentionStore, StoreError};
use palimpsest_core::span::Span;
use palimpsest_data::benchmarks::{ALL, QUERY};
use palimpsest_run::memory::shown::MEMORY;
use palimpsest_run::runs::store::RunFolder;

#[derive(Debug, Clone, PartialEq)]
pub struct RoleAttention {
    /// The row, by its role or its name: `query`, `last`, `answer`, `new`.
    pub from: String,
    pub to: String,
    pub mass: Vec<f64>,
    /// By layer, the mass that uniform attention would pay.
    pub share: Vec<f64>,
    /// By layer, mass over share; NaN at layers that see none of the spans.
    pub density: Vec<f64>,
}

/// The layers of a store, and the attention of each of the rows `from` to each of the roles `to` that the store has and the row sees.
pub fn role_attention(
    path: &Path,
    (store, weights): (&AttentionStore, Option<&HeadWeights>),
    from: &[&str],
    to: &[&str],
) -> Result<(Vec<Layer>, Vec<RoleAttention>), StoreError> {
    let ByLayer { layers, mass, share, .. } = ByLayer::of(path, store, weights)?; // (layers, rows, keys)
    let mut found = Vec::new();
    for from in from {
        let rows = in_role(&store.rows, from);
        if rows.is_empty() {
            continue;
        }
        let (masses, shares) = (of_rows(&mass, &store.rows, &rows), of_rows(&share, &store.rows, &rows));
        let end = rows.iter().map(|&row| store.rows[row].end).max().unwrap_or(0);
        let paid = Paid { masses: &masses, shares: &shares, signed: None, end };
        for to in to {
            let keys = in_role(&store.keys, to);
            // A row pays nothing to what comes after it.
            let Some(numbers) = paid.to(&keys) else { continue };
            let Some(density) = numbers.density else { continue };
            let share = shares.rows().into_iter().map(|layer| keys.iter().map(|&key| layer[key]).sum());
            found.push(RoleAttention {
                from: (*from).to_owned(),
                to: (*to).to_owned(),
                mass: numbers.mass,
                share: share.collect(),
                density,
            });
        }
    }
    Ok((layers, found))
}

/// The attention of an answer's row to the spans in a role.
#[derive(Debug, Clone, PartialEq)]
pub struct RoleMass {
    pub case: String,
    pub probe: String,
    pub condition: String,
    pub layers: Vec<Layer>,
    /// By layer: the mass on all of the spans, mean over heads and the row's tokens.
    pub mass: Vec<f64>,
    /// By layer: the mass that uniform attention would give them.
    pub share: Vec<f64>,
}

/// The attention of the rows called `row`, or in that role, to the spans of `role`, of every answer of a run folder that has both. Heads
/// count by the scores of `heads` where they are given, else alike.
pub fn masses_in_role(
    folder: &Path,
    (row, role): (&str, &str),
    heads: Option<&ByHeads>,
) -> Result<Vec<RoleMass>, LensError> {
    let mut found = Vec::new();
    for (_, run) in AnalysedRun::of_all(&ALL, &RunFolder::read(folder)?)? {
        let weights = heads.map(|heads| heads.of(&run)).transpose()?;
        for answer in run.answers() {
            let Some(name) = &answer.attention else { continue };
            let path = folder.join(name);
            let store = AttentionStore::load(&path)?;
            let (layers, of_role) = role_attention(&path, (&store, weights.as_ref()), &[row], &[role])?;
            let Some(RoleAttention { mass, share, .. }) = of_role.into_iter().next() else { continue };
            found.push(RoleMass {
                case: store.case,
                probe: store.probe,
                condition: store.condition,
                layers,
                mass,
                share,
            });
        }
    }
    Ok(found)
}

/// The density of the query's attention to each memory that a store has a span of, by rank: averaged over heads, and over the layers that
/// see the whole prompt or, where there are none, those of the first kind that there is. Empty without a row of the query.
pub fn memory_densities(path: &Path, store: &AttentionStore) -> Result<Vec<(usize, f64)>, StoreError> {
    let Some(&row) = in_role(&store.rows, QUERY).first() else { return Ok(Vec::new()) };
    let ByLayer { layers, mass, share, .. } = ByLayer::of(path, store, None)?; // (layers, rows, keys)
    let (mass, share) = (mass.index_axis(Axis(1), row).to_owned(), share.index_axis(Axis(1), row).to_owned());
    let densities = densities_of(&mass, &share); // (layers, keys)
    let kind = LayerKind::ALL.into_iter().find(|kind| layers.iter().any(|layer| layer.kind == *kind));
    let mean = |key: usize| mean_over(&layers, kind?, &densities.column(key).to_vec());
    let of_memory = |(key, span): (usize, &Span)| {
        let rank = span.segment().filter(|_| span.label.split('[').next() == Some(MEMORY))?;
        Some((rank, mean(key)?))
    };
    let mut found: Vec<(usize, f64)> = store.keys.iter().enumerate().filter_map(of_memory).collect();
    found.retain(|(_, density)| density.is_finite());
    found.sort_by_key(|(rank, _)| *rank);
    Ok(found)
}
