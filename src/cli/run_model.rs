//! The model of a run, opened again to read the run's own prompts.

use std::fmt::Display;

use anyhow::{Context, ensure};

use crate::models::{self, DeviceArgs, Opened, Weights};
use crate::run::header::Identity;
use palimpsest_core::engine::memory_plan::{Branches, ObservedSpans};
use palimpsest_core::engine::{self, ContextLength, LocalModel, LocalOptions};

/// Opens the model of the run at `place`: the one named, or that of the run's own name. `longest` is the longest prompt with its answer,
/// `chunk` what is read at once, in tokens.
///
/// # Errors
/// A model that cannot be opened, and one that is not the run's.
pub(super) fn open(
    place: &dyn Display,
    identity: &Identity,
    (named, on, weights): (Option<&str>, &DeviceArgs, Weights),
    (longest, chunk): (usize, usize),
) -> anyhow::Result<LocalModel> {
    let name = named.unwrap_or(&identity.model.name);
    let options = LocalOptions {
        kernel: on.attention_kernel,
        devices: on.open()?,
        dtype: identity.dtype.as_deref().map(engine::parse_dtype).transpose()?,
        cache_dtype: identity.cache_dtype.as_deref().map(engine::parse_dtype).transpose()?,
        context: ContextLength::Exactly(longest),
        allow_longer: true,
        chunk: engine::DEFAULT_CHUNK.max(chunk),
        logits: engine::LOGITS_AT_ONCE,
        branches: Branches::default(),
        observed: ObservedSpans { rows: 0, keys: 0, generated: 0 },
        kept: weights.into(),
        hides_keys: true,
        ..LocalOptions::default()
    };
    let Opened { model, digest } = models::open(name, &options)
        .with_context(|| format!("the model of {place}; name its folder or file with --model"))?;
    ensure!(
        digest == identity.model.digest,
        "{name} is not the model of {place}: its digest is {}, the run's {}; give that one with --model",
        digest,
        identity.model.digest
    );
    Ok(model)
}
