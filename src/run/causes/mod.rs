//! Effects of sessions on answers, or on contrasts in their place: paths are blocked, sessions removed or replaced, and the answer read again.
//!
//! Called by `palimpsest causes` on a finished run. The attention files hold the prompts' tokens, their spans and what was generated, so that
//! no data set is needed. What is compared is a [`metric`]: the log-probability of the model's own answer, or the contrast of two values. A
//! [`case`]'s history is computed once for all of its answers. Sessions and, as controls, random stretches ([`crate::statistics::control`]) are
//! [`blocked`] from the question on, sessions are [`removed`] or replaced by neutral text ([`replacement`]), hidden from later ones as well
//! ([`carriers`]), or left out in random subsets ([`context_cite`]). Rows go to `causes.jsonl` ([`rows`]), those of contrasts to
//! `contrast-causes.jsonl` ([`contrast_rows`]); both are gone on with after a stop.

pub mod blocked;
pub mod carriers;
pub mod case;
pub mod context_cite;
pub mod contrast_rows;
pub mod control_pool;
mod log;
pub mod metric;
pub mod removed;
pub mod replacement;
pub mod rows;
pub mod session_measures;
pub mod ways;

use std::ops::Range;

use palimpsest_core::attention::{AttentionStore, LayerKind};
use palimpsest_core::engine::{EngineError, RequestError};

use super::error::RunError;
use super::rows::AnswerRow;
use super::store::RunFolder;
use crate::ground::jsonl::JsonlError;
use metric::Measure;

/// Why causes cannot be measured.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the messages print
pub enum CauseError {
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Rows(#[from] JsonlError),
    /// A linear-attention layer among those to block.
    #[error(
        "layer {layer} is a linear-attention layer, which keeps no keys that could be hidden; block the softmax layers alone with \
         --softmax-only"
    )]
    Linear { layer: usize },
    #[error("case {case}, probe {probe}: {why}")]
    Unusable { case: String, probe: String, why: &'static str },
    #[error("the neutral text cannot be tokenised for this model: {0}")]
    Neutral(palimpsest_core::text::TextError),
    #[error("case {case}: {source}")]
    Model { case: String, source: anyhow::Error },
}

/// Progress of a measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Measured {
    pub skipped: usize,
    pub done: usize,
    /// True if a stop was asked for before the end.
    pub stopped: bool,
    /// Of histories: seconds and tokens.
    pub histories: (f64, usize),
    /// Of readings with paths blocked: seconds and tokens.
    pub readings: (f64, usize),
}

impl Measured {
    fn stopped(self) -> Self {
        Measured { stopped: true, ..self }
    }
}

/// The outcome of a reading for a case; `None` where it was interrupted.
fn unless_stopped<T>(case: &str, read: Result<T, RequestError>) -> Result<Option<T>, CauseError> {
    match read {
        Err(RequestError::Engine(EngineError::Interrupted)) => Ok(None),
        read => {
            read.map(Some).map_err(|error| CauseError::Model { case: case.to_owned(), source: error.into() })
        }
    }
}

fn unusable(store: &AttentionStore, why: &'static str) -> CauseError {
    CauseError::Unusable { case: store.case.clone(), probe: store.probe.clone(), why }
}

/// The layers to block, window by window; a window without softmax layers is left out.
pub fn windows(
    kinds: &[LayerKind],
    (windows, softmax_only): (Option<usize>, bool),
) -> Result<Vec<Option<Range<usize>>>, CauseError> {
    let linear = kinds.iter().position(|kind| *kind == LayerKind::Linear);
    if let Some(layer) = linear.filter(|_| !softmax_only) {
        return Err(CauseError::Linear { layer });
    }
    let Some(width) = windows else { return Ok(vec![None]) };
    let all = (0..kinds.len()).step_by(width.max(1)).map(|start| start..(start + width).min(kinds.len()));
    let softmax = |layers: &Range<usize>| kinds[layers.clone()].iter().any(|kind| *kind != LayerKind::Linear);
    Ok(all.filter(softmax).map(Some).collect())
}

/// Of some layers, or all, the share that are linear-attention layers, through which everything is still seen; `None` where none is.
fn layers_open(kinds: &[LayerKind], layers: Option<&Range<usize>>) -> Option<f64> {
    let named = layers.map_or(kinds, |layers| kinds.get(layers.clone()).unwrap_or_default());
    let open = named.iter().filter(|kind| **kind == LayerKind::Linear).count();
    (open > 0).then(|| open as f64 / named.len() as f64)
}

/// The answers of a run that can be read again: those with an attention file and tokens of their own, under conditions that block nothing;
/// of contrasts those with one.
pub fn asked(folder: &RunFolder, measure: Measure) -> Vec<&AnswerRow> {
    let conditions = folder.header.identity.conditions_or_plain();
    let open = |row: &&AnswerRow| {
        conditions.iter().any(|condition| condition.name == row.condition && condition.knockout.is_none())
    };
    let answered = |row: &&AnswerRow| row.error.is_none() && row.attention.is_some();
    let has_metric = |row: &&AnswerRow| match measure {
        Measure::LogP => row.completion_tokens.is_none_or(|tokens| tokens > 0),
        Measure::Contrast => row.contrast.is_some(),
    };
    folder.answers.iter().filter(open).filter(answered).filter(has_metric).collect()
}
