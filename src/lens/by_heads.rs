//! Masses by the scores of heads, in the place of the plain mean over heads.
//!
//! Owns the choice of a file and a score, and the checks that the file is of the run's model. The means are in
//! [`super::layers`].

use std::path::{Path, PathBuf};

use super::{AnalysedRun, LensError};
use crate::heads::Score;
use crate::heads::file::{HeadScores, HeadWeights};
use palimpsest_core::attention::AttentionStore;

/// A file of head scores, and which of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ByHeads {
    pub path: PathBuf,
    pub score: Score,
}

/// Scores of another model than the run's.
#[derive(Debug, thiserror::Error)]
#[error(
    "head scores {path} are of {found} (digest {digest}), and {run} is a run of {model} (digest {expected}); make a file of that \
     model with `palimpsest heads`"
)]
pub struct OtherModel {
    path: PathBuf,
    found: String,
    digest: String,
    run: PathBuf,
    model: String,
    expected: String,
}

/// Scores of another shape than a store.
#[derive(Debug, thiserror::Error)]
#[error(
    "head scores {path} are of {heads} heads at layers {layers:?}, and {store} has {found_heads} at layers {found:?}; make them \
     anew with `palimpsest heads`"
)]
pub struct OtherHeads {
    path: PathBuf,
    heads: usize,
    layers: Vec<usize>,
    store: PathBuf,
    found_heads: usize,
    found: Vec<usize>,
}

impl ByHeads {
    pub(super) fn of(&self, run: &AnalysedRun) -> Result<HeadWeights, LensError> {
        let scores = HeadScores::load(&self.path)?;
        let model = &run.identity().model;
        if scores.digest != model.digest {
            return Err(LensError::OtherModel(Box::new(OtherModel {
                path: self.path.clone(),
                found: scores.model,
                digest: scores.digest,
                run: run.path().to_owned(),
                model: model.name.clone(),
                expected: model.digest.clone(),
            })));
        }
        Ok(scores.weights(self.score, &self.path)?)
    }

    /// Checks that the weights are of a store's layers and heads.
    pub(super) fn check(
        &self,
        weights: &HeadWeights,
        path: &Path,
        store: &AttentionStore,
    ) -> Result<(), LensError> {
        self.fits(weights, path, (&store.layers, store.mass.dim().1))
    }

    /// [`ByHeads::check`] of the layers and heads of any file.
    pub(super) fn fits(
        &self,
        weights: &HeadWeights,
        path: &Path,
        (layers, found_heads): (&[usize], usize),
    ) -> Result<(), LensError> {
        if weights.layers == layers && weights.weights.ncols() == found_heads {
            return Ok(());
        }
        Err(LensError::OtherHeads(Box::new(OtherHeads {
            path: self.path.clone(),
            heads: weights.weights.ncols(),
            layers: weights.layers.clone(),
            store: path.to_owned(),
            found_heads,
            found: layers.to_vec(),
        })))
    }
}
