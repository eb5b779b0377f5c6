//! Runs a decoder: one way to ask ([`Request`]), and one implementation that answers ([`thread`]).
//!
//! [`Session`] answers requests one by one on the caller's thread, [`thread::EngineThread`] those of many at once; [`Backend`] is the
//! trait that a model elsewhere answers them by, too. Inside: prefill in
//! chunks, decode, sampling, measuring, and the plan of what fits in memory. Works on tokens; a [`LocalModel`] adds text. Nothing
//! outside this room touches a cache.

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
mod likelihood;
mod local;
mod local_error;
mod mean_state;
mod measure;
pub mod memory_plan;
mod phases;
mod request;
mod request_error;
mod rules;
mod sampler;
mod sampling;
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
pub use likelihood::{Likelihood, is_likeliest, log_sum_exp};
pub use local::{ContextLength, DEFAULT_MAX_THINKING, LocalModel, LocalOptions, ModelText, ThinkingOptions};
pub use local_error::LocalError;
pub use measure::{Measurement, Observe, RESERVED, Rows, TopRequest, last};
pub use memory_plan::peak_resident_bytes;
pub use phases::Thinker;
pub use request::{Branch, Chosen, Event, Generate, Measured, Next, Request, Reuse, Sink, Task};
pub use request_error::RequestError;
pub use rules::TokenRules;
pub use sampler::Sampler;
pub use sampling::{Sampling, StopReason};
pub use session::{Backend, OnEvent, Outputs, Session};
pub use stop_strings::{StopStrings, StopWatch, before_stop, without_partial};
pub use text_side::TextSide;
pub use variants::LOGITS_AT_ONCE;

/// Tokens of a prefill chunk: enough for full-speed matrix products, few enough that activations stay small.
pub const DEFAULT_CHUNK: usize = 1024;

/// Why a prefill or a decode failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The model's output is not a number.
    #[error(
        "the model's output at position {position} is not finite ({value}): the weights are damaged{}; fetch the model again",
        if *dtype == candle_core::DType::F32 { "" } else { " or too large for this dtype (f32 holds more)" }
    )]
    NotFinite {
        /// Position in the context of the first output found. A value that is not finite reaches the outputs of earlier
        /// positions of its chunk too: a weight of 0 times NaN is NaN.
        position: usize,
        /// The value.
        value: f32,
        /// The dtype that the model ran in.
        dtype: candle_core::DType,
    },
    /// No tokens.
    #[error("the prompt has no tokens; a model needs at least one to say anything")]
    EmptyPrompt,
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// The text of what was generated cannot be read.
    #[error(transparent)]
    Text(#[from] crate::text::TextError),
    /// The answer cannot be kept to what was asked for.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

/// A decoder with its settings. A clone shares the weights.
#[derive(Debug, Clone)]
pub struct Engine {
    decoder: Arc<Decoder>,
    chunk: usize,
}

/// Asked between chunks and tokens; returns whether to go on. Gets the number of tokens done since the last call.
pub type Progress<'a> = &'a mut dyn FnMut(usize) -> bool;

impl Engine {
    /// An engine whose prefill takes `chunk` tokens at a time; of a model with linear-attention layers whole blocks of their rule.
    pub fn new(decoder: Decoder, chunk: usize) -> Self {
        let grain = decoder.spec().grain();
        Engine { decoder: Arc::new(decoder), chunk: chunk.max(1).next_multiple_of(grain) }
    }

    /// The last position up to `at` at which the prefill of a prompt may be cut in two without a change of its bits on the CPU in
    /// f32, where neither part is a single token.
    pub fn border(&self, at: usize) -> usize {
        at - at % self.decoder.spec().grain()
    }

    /// The end of the next chunk of at most `chunk` tokens, of a prompt that ends at `end` and of which `at` tokens were read: at a
    /// [`Engine::border`], and not before a last token alone, whose sums would be made in the order of decoding.
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

    /// Tokens that a prefill takes at a time.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.decoder.device()
    }

    /// Prefills `tokens` after those in the cache, chunk by chunk, and returns the logits of the last `keep` positions (at least
    /// one), f32 (keep, vocab). `pass` is the observer, with knock-outs or without. On the CPU in f32 or bf16 the bits depend neither on the chunks nor on how
    /// many tokens were in the cache, where these ended at a [`Engine::border`] and more than one token comes after them.
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

    /// [`Engine::prefill`] of tokens after which nothing is to be predicted yet.
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

    /// Prefills chunk by chunk and returns the last `keep` hidden states in parts, (n, hidden) each.
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

    /// Refuses logits (n, vocab) that hold NaN or infinity; `last` is the position of the last row.
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

/// The sum of each row's absolute logits (n, vocab), which is finite only if all of them are: one number a row comes back
/// from the device.
fn sizes(logits: &Tensor) -> Result<Vec<f32>, candle_core::Error> {
    let _layouts = transfer::keep_layouts(logits.device());
    transfer::fetch(&logits.abs()?.sum(D::Minus1)?)
}
