//! Decoder inference: chunked prefill, decode, sampling, measurement, memory planning. Works on token ids; [`LocalModel`] adds text.
//!
//! [`Session`] answers requests on the caller's thread, [`thread::EngineThread`] many at once; remote models implement [`Backend`] too. No
//! code outside this module touches a KV cache.

use std::sync::Arc;

use candle_core::{D, Device, Tensor};

use crate::model::{Cache, Decoder, Pass, Phase};
use crate::timing;
use crate::transfer;

mod closing;
mod constraint;
mod cuda;
mod decoding;
mod device;
mod end_tokens;
mod generated;
pub mod json_schema;
mod likelihood;
mod local;
mod local_error;
mod mean_state;
mod measure;
pub mod memory_plan;
mod phases;
mod repair;
mod request;
mod request_error;
mod rules;
mod sampler;
mod sampling;
mod schema_limits;
mod score;
mod session;
mod step;
mod stop_strings;
mod text_side;
pub mod thread;
mod variants;

pub use constraint::{Constraint, ConstraintError, GrammarVocabulary, Starts};
pub use decoding::Decoding;
pub use device::{DeviceError, DeviceName, default_dtype, parse_device_names, parse_devices, parse_dtype};
pub use end_tokens::EndToken;
pub use generated::Generated;
pub(crate) use likelihood::log_p;
pub use likelihood::{Likelihood, is_likeliest, log_sum_exp};
pub use local::{ContextLength, DEFAULT_MAX_THINKING, LocalModel, LocalOptions, ModelText, ThinkingOptions};
pub use local_error::LocalError;
pub use measure::{Measurement, Observe, RESERVED, Rows, TopRequest, last};
pub use memory_plan::peak_resident_bytes;
pub use phases::Thinker;
pub use repair::{LaterRows, Repairing, check_repairable};
pub use request::{Branch, Chosen, Event, Generate, Measured, Next, Request, Reuse, Sink, Task};
pub use request_error::RequestError;
pub use rules::TokenRules;
pub use sampler::Sampler;
pub use sampling::{Sampling, StopReason};
pub use session::{Backend, OnEvent, Outputs, Session};
pub use stop_strings::{StopStrings, StopWatch, before_stop, without_partial};
pub use text_side::TextSide;
pub use variants::LOGITS_AT_ONCE;

/// Tokens of a prefill chunk: large enough for full-speed matrix products, small enough to bound activations.
pub const DEFAULT_CHUNK: usize = 1024;

/// A failed prefill or decode.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // printed by the messages
pub enum EngineError {
    /// The logits contain NaN or infinity, first at `position` of the context. NaN can reach earlier positions of the chunk: 0 * NaN is
    /// NaN.
    #[error(
        "the model's output at position {position} is not finite ({value}): the weights are damaged{}; fetch the model again",
        if *dtype == candle_core::DType::F32 { "" } else { " or too large for this dtype (f32 holds more)" }
    )]
    NotFinite { position: usize, value: f32, dtype: candle_core::DType },
    #[error("the prompt has no tokens; a model needs at least one to say anything")]
    EmptyPrompt,
    #[error("interrupted")]
    Interrupted,
    #[error(transparent)]
    Text(#[from] crate::text::TextError),
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

/// A decoder with its settings. A clone shares the weights.
#[derive(Debug, Clone)]
pub struct Engine {
    decoder: Arc<Decoder>,
    chunk: usize,
}

/// Called between chunks and tokens with the tokens done since the last call; returns false to stop.
pub type Progress<'a> = &'a mut dyn FnMut(usize) -> bool;

impl Engine {
    /// An engine with prefill chunks of `chunk` tokens, rounded up to a multiple of the decoder's grain (delta-rule blocks).
    pub fn new(decoder: Decoder, chunk: usize) -> Self {
        let grain = decoder.spec().grain();
        Engine { decoder: Arc::new(decoder), chunk: chunk.max(1).next_multiple_of(grain) }
    }

    /// Largest position up to `at` where a prefill can be split with bit-equal results on the CPU in f32, unless a part is a single token.
    pub fn border(&self, at: usize) -> usize {
        at - at % self.decoder.spec().grain()
    }

    /// Next chunk end: at most `chunk` tokens, at a [`Engine::border`], never leaving one last token, which would sum in decode order.
    pub(crate) fn next_border(&self, at: usize, end: usize, chunk: usize) -> usize {
        let grain = self.decoder.spec().grain();
        let to = at.saturating_add(chunk.max(1).next_multiple_of(grain));
        if to >= end {
            return end;
        }
        let to = match self.border(to) {
            border if border > at => border,
            _ => to,
        };
        match (end - to, to - at > grain) {
            (1, true) => to - grain,
            _ => to,
        }
    }

    /// The decoder.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// Tokens of a prefill chunk.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.decoder.device()
    }

    /// Prefills `tokens` after the cached ones and returns the logits of the last `keep` positions (at least one), f32 (keep, vocab). On
    /// the CPU in f32 or bf16 the result is bit-equal for every chunk size and cached length, provided the cached tokens end at a
    /// [`Engine::border`] and more than one token follows.
    pub fn prefill<'p>(
        &self,
        cache: &mut Cache,
        tokens: &[u32],
        keep: usize,
        pass: impl Into<Pass<'p>>,
        progress: Progress<'_>,
    ) -> Result<Tensor, EngineError> {
        if tokens.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        let _span = timing::prefill(tokens.len());
        let kept = self.prefill_chunks(cache, tokens, keep.clamp(1, tokens.len()), pass.into(), progress)?;
        let logits = self.decoder.logits(&Tensor::cat(&kept, 0)?, Phase::Prefill)?;
        self.check_finite(&logits, cache.len() - 1)?;
        Ok(logits)
    }

    /// [`Engine::prefill`] without logits.
    pub fn fill_cache<'p>(
        &self,
        cache: &mut Cache,
        tokens: &[u32],
        pass: impl Into<Pass<'p>>,
        progress: Progress<'_>,
    ) -> Result<(), EngineError> {
        let _span = timing::prefill(tokens.len());
        self.prefill_chunks(cache, tokens, 0, pass.into(), progress).map(drop)
    }

    /// Returns the last `keep` hidden states in parts of (n, hidden).
    fn prefill_chunks(
        &self,
        cache: &mut Cache,
        tokens: &[u32],
        keep: usize,
        mut pass: Pass<'_>,
        progress: Progress<'_>,
    ) -> Result<Vec<Tensor>, EngineError> {
        let first_kept = tokens.len() - keep;
        let mut kept = Vec::new();
        let mut done = 0;
        let before = cache.len();
        while done < tokens.len() {
            let end = self.next_border(before + done, before + tokens.len(), self.chunk) - before;
            let chunk = tokens.get(done..end).unwrap_or_default();
            match end.saturating_sub(first_kept.max(done)) {
                0 => self.decoder.fill_cache(chunk, cache, pass.again())?,
                keep => kept.push(self.decoder.forward(chunk, keep, cache, Phase::Prefill, pass.again())?),
            }
            done = end;
            if !progress(chunk.len()) {
                return Err(EngineError::Interrupted);
            }
        }
        Ok(kept)
    }

    /// Rejects logits (n, vocab) with NaN or infinity; `last` is the position of the last row.
    fn check_finite(&self, logits: &Tensor, last: usize) -> Result<(), EngineError> {
        let sizes = sizes(logits)?;
        match sizes.iter().enumerate().find(|(_, size)| !size.is_finite()) {
            None => Ok(()),
            Some((row, &value)) => Err(self.not_finite(last + 1 - sizes.len() + row, value)),
        }
    }

    fn not_finite(&self, position: usize, value: f32) -> EngineError {
        EngineError::NotFinite { position, value, dtype: self.decoder.dtype() }
    }
}

/// Row sums of absolute logits (n, vocab); finite only if every logit is. Only n values leave the device.
fn sizes(logits: &Tensor) -> Result<Vec<f32>, candle_core::Error> {
    let _layouts = transfer::keep_layouts(logits.device());
    transfer::fetch(&logits.abs()?.sum(D::Minus1)?)
}
