//! Masses by the scores of heads, in the place of the plain mean over heads.
//!
//! Owns the choice of a file and a score, and the checks that the file is of the run's model. The means are in
//! [`super::layers`].

use std::path::{Path, PathBuf};

use super::{AnalysedRun, LensError};
use crate::heads::Score;
use crate::heads::file::{HeadScores, HeadWeights};

/// A file of head scores, and which of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ByHeads {
    pub path: PathBuf,
    pub score: Score,
}

impl ByHeads {
    /// The weights, of a file of the run's model.
    pub(super) fn of(&self, run: &AnalysedRun) -> Result<HeadWeights, LensError> {
        let scores = HeadScores::load(&self.path)?;
        let model = &run.identity().model;
        if scores.digest != model.digest {
            return Err(LensError::OtherHeads(format!(
                "head scores {} are of {} (digest {}), and {} is a run of {} (digest {}); make a file of that model with `palimpsest heads`",
                self.path.display(),
                scores.model,
                scores.digest,
                run.path().display(),
                model.name,
                model.digest
            )));
        }
        Ok(scores.weights(self.score, &self.path)?)
    }

    /// Checks that the weights are of the layers and the number of heads of a file.
    pub(super) fn check(
        &self,
        weights: &HeadWeights,
        path: &Path,
        (layers, heads): (&[usize], usize),
    ) -> Result<(), LensError> {
        if weights.layers == layers && weights.weights.ncols() == heads {
            return Ok(());
        }
        Err(LensError::OtherHeads(format!(
            "head scores {} are of {} heads at layers {:?}, and {} has {heads} at layers {layers:?}; make them anew with `palimpsest heads`",
            self.path.display(),
            weights.weights.ncols(),
            weights.layers,
            path.display()
        )))
    }
}
