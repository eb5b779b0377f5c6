//! The attention of one row to the spans in a role, by layer: what a notebook asks a run for.

use std::path::Path;

use super::layers::Layer;
use super::roles::{RoleAttention, role_attention};
use super::{AnalysedRun, ByHeads, LensError};

/// The attention of an answer's row to the spans in a role.
#[derive(Debug, Clone, PartialEq)]
pub struct RoleMass {
    pub case: String,
    pub probe: String,
    /// The condition's stored name; empty for the plain one.
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
    for (_, run) in AnalysedRun::open_all(&crate::benchmarks::ALL, folder)? {
        let weights = heads.map(|heads| heads.of(&run)).transpose()?;
        for answer in run.answers() {
            let Some(name) = &answer.attention else { continue };
            let path = folder.join(name);
            let store = palimpsest_core::attention::AttentionStore::load(&path)?;
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
