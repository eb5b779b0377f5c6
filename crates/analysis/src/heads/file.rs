//! A model's head scores as one JSON file. Written by `palimpsest heads`; the lens reads it to weight masses.

use std::path::{Path, PathBuf};

use ndarray::Array2;
use serde::{Deserialize, Serialize};

use palimpsest_core::files::{io_remedy, write_atomically};
use palimpsest_data::ground::text_file;

/// Minimum retrieval score of a retrieval head (Wu et al. 2024).
const RETRIEVES: f64 = 0.1;

/// Minimum number of retrieval heads, if enough have a score above 0.
const FEWEST: usize = 8;

/// At most this fraction of all heads (1 / `ONE_IN`), unless that is fewer than [`FEWEST`].
const ONE_IN: usize = 10;

pub(super) const FORMAT: &str = "palimpsest heads 1";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Score {
    /// The share of a needle's tokens that the head copies
    #[default]
    Retrieval,
    /// The question's mass on the needle's session less that of a null question
    Qr,
}

impl Score {
    pub const ALL: [Score; 2] = [Score::Retrieval, Score::Qr];

    pub fn key(self) -> &'static str {
        match self {
            Score::Retrieval => "retrieval",
            Score::Qr => "qr",
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeadScores {
    pub(super) format: String,
    pub model: String,
    /// SHA-256 of the model's weights.
    pub digest: String,
    pub dtype: String,
    pub context: usize,
    pub seed: u64,
    pub max_new_tokens: usize,
    /// Decoder layers with softmax attention, ascending: the first axis of the scores.
    pub layers: Vec<usize>,
    /// Linear-attention layers: no per-key weights, so no scores.
    pub linear_layers: Vec<usize>,
    /// Heads per layer: the second axis.
    pub heads: usize,
    /// Needles answered with more than half of their tokens.
    pub answered: usize,
    /// (layers, heads): mean over answered needles; absent without any.
    pub retrieval: Option<Vec<Vec<f64>>>,
    /// (layers, heads): mean over all needles; negative if the null question attends more.
    pub qr: Vec<Vec<f64>>,
    pub needles: Vec<NeedleRow>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NeedleRow {
    pub sentence: String,
    pub case: String,
    pub session: usize,
    pub prompt_tokens: usize,
    /// Position of the needle in the prompt, 0 to 1.
    pub depth: f64,
    pub answer: String,
    pub recall: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct HeadWeights {
    pub layers: Vec<usize>,
    /// (layers, heads).
    pub weights: Array2<f64>,
}

#[derive(Debug, thiserror::Error)]
pub enum HeadsFileError {
    #[error("head scores {path}: {source}{}", io_remedy(source))]
    Io { path: PathBuf, source: std::io::Error },
    #[error("head scores {path}: {reason}; make it anew with `palimpsest heads`")]
    Broken { path: PathBuf, reason: String },
    #[error(
        "head scores {path}: {model} answered none of its {needles} needles, so no head has a retrieval score; take the \
         other score with --head-score qr, or a shorter context"
    )]
    NoRetrieval { path: PathBuf, model: String, needles: usize },
    #[error("head scores {path}: no head has a {score} score above 0, so heads cannot be weighted by it")]
    NoWeight { path: PathBuf, score: &'static str },
}

impl HeadScores {
    /// (layers, heads); `None` if absent from the file.
    pub fn of(&self, score: Score) -> Option<&Vec<Vec<f64>>> {
        match score {
            Score::Retrieval => self.retrieval.as_ref(),
            Score::Qr => Some(&self.qr),
        }
    }

    /// Heads by score, descending; ties keep layer order. Items: decoder layer, head, score.
    pub fn ranked(&self, score: Score) -> Vec<(usize, usize, f64)> {
        let rows = self.of(score).into_iter().flatten().zip(&self.layers);
        let mut all: Vec<(usize, usize, f64)> = rows
            .flat_map(|(row, &layer)| row.iter().enumerate().map(move |(head, &score)| (layer, head, score)))
            .collect();
        all.sort_by(|a, b| b.2.total_cmp(&a.2));
        all
    }

    /// Retrieval heads (decoder layer, head), highest score first: scores above 0.1, at least 8 if as many have a positive score, otherwise
    /// at most a tenth of all heads. `None` if no needle was answered or no head copied.
    pub fn retrieving(&self) -> Option<Vec<(usize, usize)>> {
        let ranked = self.ranked(Score::Retrieval);
        let above = ranked.iter().filter(|(_, _, score)| *score > RETRIEVES).count();
        let most = (ranked.len() / ONE_IN).max(FEWEST);
        let taken = above.clamp(FEWEST, most);
        let heads = ranked.into_iter().filter(|(_, _, score)| *score > 0.0).take(taken);
        let heads: Vec<(usize, usize)> = heads.map(|(layer, head, _)| (layer, head)).collect();
        (!heads.is_empty()).then_some(heads)
    }

    /// Path of a model's scores in the model home, by weights digest.
    pub fn kept_at(home: &Path, digest: &str) -> PathBuf {
        home.join("heads").join(format!("{digest}.json"))
    }

    pub fn json(&self) -> Result<String, serde_json::Error> {
        Ok(format!("{}\n", serde_json::to_string(self)?))
    }

    pub fn save(&self, path: &Path) -> Result<(), HeadsFileError> {
        let io = |source: std::io::Error| HeadsFileError::Io { path: path.to_owned(), source };
        let text = self.json().map_err(|e| io(e.into()))?;
        write_atomically(path, text.as_bytes()).map_err(io)
    }

    pub fn load(path: &Path) -> Result<Self, HeadsFileError> {
        let text =
            text_file::read(path).map_err(|source| HeadsFileError::Io { path: path.to_owned(), source })?;
        let broken = |reason: String| HeadsFileError::Broken { path: path.to_owned(), reason };
        let scores: HeadScores = serde_json::from_str(&text).map_err(|e| broken(e.to_string()))?;
        if scores.format != FORMAT {
            return Err(broken(format!("its format is `{}`, not `{FORMAT}`", scores.format)));
        }
        for score in Score::ALL {
            let Some(rows) = scores.of(score) else { continue };
            let fits = rows.len() == scores.layers.len() && rows.iter().all(|row| row.len() == scores.heads);
            if !fits || rows.iter().flatten().any(|x| !x.is_finite()) {
                let (layers, heads) = (scores.layers.len(), scores.heads);
                return Err(broken(format!(
                    "`{}` is not {layers} layers of {heads} finite numbers",
                    score.key()
                )));
            }
        }
        Ok(scores)
    }

    /// A score as weights, with negative values set to 0. `path` names the file in errors.
    pub fn weights(&self, score: Score, path: &Path) -> Result<HeadWeights, HeadsFileError> {
        let rows = self.of(score).ok_or_else(|| HeadsFileError::NoRetrieval {
            path: path.to_owned(),
            model: self.model.clone(),
            needles: self.needles.len(),
        })?;
        let weights = Array2::from_shape_fn((rows.len(), self.heads), |(layer, head)| {
            rows.get(layer).and_then(|row| row.get(head)).map_or(0.0, |score| score.max(0.0))
        });
        if weights.iter().all(|weight| *weight == 0.0) {
            return Err(HeadsFileError::NoWeight { path: path.to_owned(), score: score.key() });
        }
        Ok(HeadWeights { layers: self.layers.clone(), weights })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores(retrieval: Option<Vec<f64>>) -> HeadScores {
        let retrieval = retrieval.map(|values| vec![values]);
        HeadScores { layers: vec![4], retrieval, ..HeadScores::default() }
    }

    #[test]
    fn retrieving_heads_are_those_above_a_tenth_eight_at_least_and_a_tenth_of_all_at_most() {
        let with = |above: usize, below: usize| {
            let values = (0..100).map(|i| match i {
                i if i < above => 0.9 - i as f64 / 200.0,
                i if i < above + below => 0.05,
                _ => 0.0,
            });
            scores(Some(values.collect())).retrieving()
        };
        let first = |n: usize| (0..n).map(|head| (4, head)).collect::<Vec<_>>();
        assert_eq!(with(9, 50), Some(first(9)));
        assert_eq!(with(40, 50), Some(first(10)));
        assert_eq!(with(2, 50), Some(first(8)));
        assert_eq!(with(2, 1), Some(first(3)), "none without a score");
        assert_eq!(with(0, 0), None);
        assert_eq!(scores(None).retrieving(), None);
    }
}
