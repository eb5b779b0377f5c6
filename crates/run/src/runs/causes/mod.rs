//! Effects of sessions on answers or contrasts: paths are blocked, sessions removed or replaced, and the answer scored again.
//!
//! Called by `palimpsest causes` on a finished run. Attention files hold prompt tokens, spans and generated tokens, so no dataset is
//! needed. Methods: [`blocked`] (with random control stretches), [`removed`] or replaced by neutral text, [`repaired`], shown to sliding
//! windows that left them behind (`--force`), [`carriers`], random
//! subsets ([`context_cite`]), and paths through [`thoughts`]. Rows are appended to `causes.jsonl` ([`rows`]) and `contrast-causes.jsonl`
//! ([`contrast_rows`]); an interrupted
//! measurement resumes.

pub mod blocked;
pub mod carriers;
pub mod case;
pub mod context_cite;
pub mod contrast_rows;
pub mod control_pool;
pub mod flash_trace;
mod forced;
mod log;
pub mod removed;
pub mod repair_rows;
pub mod repaired;
pub mod rows;
pub mod session_measures;
pub mod thoughts;
pub mod two_hop;
pub mod ways;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, anyhow, bail};
use palimpsest_core::ablate::{self, EffectRow, Measure};
use palimpsest_core::attention::{AttentionStore, LayerKind};
use palimpsest_core::engine::{EngineError, ModelText, RequestError};

use super::rows::AnswerRow;
use super::store::RunFolder;

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Measured {
    pub skipped: usize,
    pub done: usize,
    pub stopped: bool,
    /// Prefill of histories: seconds and tokens.
    pub histories: (f64, usize),
    /// Ablated readings: seconds and tokens.
    pub readings: (f64, usize),
}

impl Measured {
    fn stopped(self) -> Self {
        Measured { stopped: true, ..self }
    }
}

struct Task<'a> {
    folder: &'a RunFolder,
    of: Measure,
    text: ModelText,
    kinds: Vec<LayerKind>,
    /// Replacement tokens for removed sessions, if any.
    neutral: Option<Arc<[u32]>>,
    stop: &'a AtomicBool,
    show: bool,
}

impl Task<'_> {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}

fn unless_stopped<T>(case: &str, read: Result<T, RequestError>) -> anyhow::Result<Option<T>> {
    match read {
        Err(RequestError::Engine(EngineError::Interrupted)) => Ok(None),
        read => read.map(Some).with_context(|| format!("case {case}")),
    }
}

/// Receives the effect of reading `nth`; returns false to stop.
type Sink<'a> = &'a mut dyn FnMut(usize, EffectRow) -> anyhow::Result<bool>;

/// Passes the effects that `read` measures to `sink`; true if all were read.
fn all_read(
    case: &str,
    sink: Sink<'_>,
    read: impl FnOnce(&mut dyn FnMut(usize, EffectRow) -> bool) -> Result<(), RequestError>,
) -> anyhow::Result<bool> {
    let mut stored = Ok(true);
    let read = read(&mut |nth, row| {
        if matches!(stored, Ok(true)) {
            stored = sink(nth, row);
        }
        matches!(stored, Ok(true))
    });
    Ok(stored? && unless_stopped(case, read)?.is_some())
}

fn unusable(store: &AttentionStore, why: &str) -> anyhow::Error {
    anyhow!("case {}, probe {}: {why}", store.case, store.probe)
}

/// Tokens of the neutral text.
pub fn neutral(text: &ModelText) -> anyhow::Result<Arc<[u32]>> {
    ablate::neutral(text)
        .map_err(|error| anyhow!("the neutral text cannot be tokenised for this model: {error}"))
}

/// Layer windows to block; windows without softmax layers are skipped.
pub fn windows(
    kinds: &[LayerKind],
    (windows, softmax_only): (Option<usize>, bool),
) -> anyhow::Result<Vec<Option<Range<usize>>>> {
    if let Some(layer) = ablate::first_linear(kinds).filter(|_| !softmax_only) {
        bail!(
            "layer {layer} is a linear-attention layer, which has no keys to hide; hide sessions at the softmax layers alone with \
             --softmax-only"
        );
    }
    Ok(ablate::windows(kinds, windows))
}

/// Fraction of the layers that are linear-attention layers, which blocking leaves open; `None` if zero.
fn layers_open(kinds: &[LayerKind], layers: Option<&Range<usize>>) -> Option<f64> {
    let named = layers.map_or(kinds, |layers| kinds.get(layers.clone()).unwrap_or_default());
    let open = named.iter().filter(|kind| **kind == LayerKind::Linear).count();
    (open > 0).then(|| open as f64 / named.len() as f64)
}

/// Answers that can be scored again: they have an attention file and generated tokens (for contrasts, a contrast), under conditions that
/// neither block nor evict.
pub fn asked(folder: &RunFolder, measure: Measure) -> Vec<&AnswerRow> {
    let conditions = folder.header.identity.conditions_or_plain();
    let can_be_read = |row: &&AnswerRow| {
        let is_open = |name: &str| conditions.iter().any(|one| one.name == name && one.is_open());
        let has_metric = match measure {
            Measure::LogP => row.completion_tokens.is_none_or(|tokens| tokens > 0),
            Measure::Contrast => row.contrast.is_some(),
        };
        is_open(&row.condition) && row.error.is_none() && row.attention.is_some() && has_metric
    };
    folder.answers.iter().filter(can_be_read).collect()
}
