//! Masses weighted by head scores instead of the plain mean over heads. Checks that the score file fits the run's model; [`super::layers`]
//! computes the means.

use std::path::{Path, PathBuf};

use super::{AnalysedRun, LensError};
use crate::heads::Score;
use crate::heads::file::{HeadScores, HeadWeights};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ByHeads {
    pub path: PathBuf,
    pub score: Score,
}

impl ByHeads {
    /// Loads the weights and checks that they are of the run's model.
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

    /// Checks layers and head count against an attention file.
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
