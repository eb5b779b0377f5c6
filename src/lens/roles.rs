//! Attention of the rows of a store to the evidence in each role, averaged over heads: mass, share and density by layer.
//!
//! Called by [`crate::dose`]. Mass, share and density are those of [`super::example`], of any row and role that a store has: spans in one
//! role add up.

use std::path::Path;

use super::layers::{ByLayer, Layer};
use super::paid::{Paid, in_role, of_rows};
use crate::heads::file::HeadWeights;
use palimpsest_core::attention::{AttentionStore, StoreError};

/// Attention of one row to one role.
#[derive(Debug, Clone, PartialEq)]
pub struct RoleAttention {
    /// The row, by its role or its name: `query`, `last`, `answer`, `new`.
    pub from: String,
    /// The role of the spans that are looked at.
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
