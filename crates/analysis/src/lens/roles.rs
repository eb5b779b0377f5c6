//! Attention of rows to spans by role, averaged over heads: mass, share and density by layer, as in [`super::example`]. Used by
//! [`crate::dose`] for evidence, by [`crate::losses`] for memories, and by notebooks.

use std::path::Path;

use ndarray::{Axis, s};

use super::layers::{ByLayer, Layer, LayerKind, mean_over};
use super::paid::{Paid, densities_of, in_role, of_rows};
use super::{AnalysedRun, ByHeads, LensError};
use crate::heads::file::HeadWeights;
use palimpsest_core::attention::{AttentionStore, StoreError};
use palimpsest_core::span::Span;
use palimpsest_data::benchmarks::{ALL, QUERY};
use palimpsest_run::memory::shown::MEMORY;
use palimpsest_run::runs::store::{RunFolder, read_attention};

#[derive(Debug, Clone, PartialEq)]
pub struct RoleAttention {
    /// Row, by role or name: `query`, `last`, `answer`, `new`.
    pub from: String,
    pub to: String,
    pub mass: Vec<f64>,
    pub share: Vec<f64>,
    /// Mass over share, by layer; NaN where no span is visible.
    pub density: Vec<f64>,
}

/// Layers of a store, and attention of each row in `from` to each role in `to`, if present and visible.
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

#[derive(Debug, Clone, PartialEq)]
pub struct RoleMass {
    pub case: String,
    pub probe: String,
    pub condition: String,
    pub layers: Vec<Layer>,
    /// Mass on all of the spans by layer, averaged over heads and the row's tokens.
    pub mass: Vec<f64>,
    pub share: Vec<f64>,
}

/// Attention of rows named `row`, or with that role, to the spans of `role`, for every answer of a run folder that has both. Optional
/// `heads` weight the mean over heads.
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
            let store = read_attention(folder, name)?;
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

/// Density of the query's attention to each memory by rank, averaged over heads and over layers that see the whole prompt (or the first
/// kind present). Empty without a query row.
pub fn memory_densities(path: &Path, store: &AttentionStore) -> Result<Vec<(usize, f64)>, StoreError> {
    let Some(&row) = in_role(&store.rows, QUERY).first() else { return Ok(Vec::new()) };
    let ByLayer { layers, mass, share, .. } = ByLayer::of(path, store, None)?; // (layers, rows, keys)
    let (mass, share) = (mass.index_axis(Axis(1), row).to_owned(), share.index_axis(Axis(1), row).to_owned());
    let densities = densities_of(&mass, &share); // (layers, keys)
    let kind = LayerKind::ALL.into_iter().find(|kind| layers.iter().any(|layer| layer.kind == *kind));
    let mean = |key: usize| mean_over(&layers, kind?, &densities.column(key).to_vec());
    let of_memory = |(key, span): (usize, &Span)| Some((memory_rank(span)?, mean(key)?));
    let mut found: Vec<(usize, f64)> = store.keys.iter().enumerate().filter_map(of_memory).collect();
    found.retain(|(_, density)| density.is_finite());
    found.sort_by_key(|(rank, _)| *rank);
    Ok(found)
}

fn memory_rank(span: &Span) -> Option<usize> {
    span.segment().filter(|_| span.label.split('[').next() == Some(MEMORY))
}

/// By rank of each memory: true if some layer's choice of keys left the query a token of it. Empty without a query row or the tensor.
pub fn memory_selected(store: &AttentionStore) -> Vec<(usize, bool)> {
    let (Some(found), Some(&row)) = (&store.selected, in_role(&store.rows, QUERY).first()) else {
        return Vec::new();
    };
    let is_seen = |key: usize| found.selected.slice(s![.., row, key]).iter().any(|share| *share > 0.0);
    let keys = store.keys.iter().enumerate();
    keys.filter_map(|(key, span)| Some((memory_rank(span)?, is_seen(key)))).collect()
}
