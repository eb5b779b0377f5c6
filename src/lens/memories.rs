//! The query's attention to the memories of a prompt: spans `memory[i]`, by their rank from 0.
//!
//! Called by [`crate::losses`]. It knows no provenance: which memory carries what is decided there.

use std::path::Path;

use ndarray::Axis;

use super::layers::{ByLayer, LayerKind, mean_over};
use super::paid::{densities_of, in_role};
use crate::benchmarks::QUERY;
use crate::memory::shown::MEMORY;
use palimpsest_core::attention::{AttentionStore, StoreError};

/// The density of the query's attention to each memory that a store has a span of, by rank: averaged over heads, and over the layers that
/// see the whole prompt or, where there are none, those of the first kind that there is. Empty without a row of the query.
pub fn memory_densities(path: &Path, store: &AttentionStore) -> Result<Vec<(usize, f64)>, StoreError> {
    let Some(&row) = in_role(&store.rows, QUERY).first() else { return Ok(Vec::new()) };
    let ByLayer { layers, mass, share, .. } = ByLayer::of(path, store, None)?; // (layers, rows, keys)
    let (mass, share) = (mass.index_axis(Axis(1), row).to_owned(), share.index_axis(Axis(1), row).to_owned());
    let densities = densities_of(&mass, &share); // (layers, keys)
    let kind = LayerKind::ALL.into_iter().find(|kind| layers.iter().any(|layer| layer.kind == *kind));
    let mean = |key: usize| mean_over(&layers, kind?, &densities.column(key).to_vec());
    let of_memory = |(key, span): (usize, &palimpsest_core::span::Span)| {
        let rank = span.segment().filter(|_| span.label.split('[').next() == Some(MEMORY))?;
        Some((rank, mean(key)?))
    };
    let mut found: Vec<(usize, f64)> = store.keys.iter().enumerate().filter_map(of_memory).collect();
    found.retain(|(_, density)| density.is_finite());
    found.sort_by_key(|(rank, _)| *rank);
    Ok(found)
}
