//! What a [`MassObserver`](super::MassObserver) measured, and faults of the spans that it is given.

use ndarray::{Array3, Array4};

use super::Uniform;
use crate::span::Span;

/// Invalid spans.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[allow(missing_docs)] // printed by the messages
pub enum SpanError {
    #[error("span `{label}` [{start}, {end}) is not within the {tokens} tokens")]
    OutOfRange { label: String, start: usize, end: usize, tokens: usize },
    #[error(
        "span `{label}`: `last`, `answer` and `each` name rows (the prompt's last position and the generated tokens); call it something else"
    )]
    Reserved { label: String },
    #[error("row `{label}` is none of the spans; add it to `spans`")]
    UnknownRow { label: String },
    #[error("row `{label}` comes twice; name it once")]
    RowTwice { label: String },
    #[error("row span `{label}` is empty; a mass is a mean over its tokens, so give it at least one")]
    EmptyRows { label: String },
}

/// The masses measured by a [`MassObserver`](super::MassObserver).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Masses {
    /// Softmax layers, ascending.
    pub layers: Vec<usize>,
    /// Row spans: the requested ones, and `answer` if requested and tokens were generated.
    pub rows: Vec<Span>,
    /// f32 `[layers, heads, row spans, key spans]`.
    pub mass: Array4<f32>,
    /// The layers' windows and the masses of uniform attention.
    pub uniform: Uniform,
    /// f32 `[layers, heads, row spans]`: sink weight, if any layer has sinks.
    pub sink: Option<Array3<f32>>,
    /// f32 `[layers, heads, row spans]`: mass on the prompt's first token, if requested. Its spans' masses include it.
    pub first_token: Option<Array3<f32>>,
    /// Implicit attention of linear-attention layers, if any.
    pub delta: Option<DeltaMasses>,
    /// One row per generated token, if requested.
    pub each: Option<EachMasses>,
}

/// Masses of each of n generated tokens over the prompt's key spans.
#[derive(Debug, Clone, PartialEq)]
pub struct EachMasses {
    /// f32 `[layers, heads, n, key spans]`.
    pub mass: Array4<f32>,
    /// f32 `[layers, heads, n]`: sink weight, if any layer has sinks.
    pub sink: Option<Array3<f32>>,
    /// f32 `[layers, value heads, n, key spans]`, for linear-attention layers, if any.
    pub delta: Option<DeltaMasses>,
}

/// Implicit attention of gated delta rule layers, whose output is o_t = sum over s <= t of a_ts v_s.
#[derive(Debug, Clone, PartialEq)]
pub struct DeltaMasses {
    /// Linear-attention layers, ascending.
    pub layers: Vec<usize>,
    /// f32 `[layers, value heads, row spans, key spans]`: mean over the row span's tokens t of the sum of a_ts over the key span's tokens
    /// s. Weights are signed, so it may be negative.
    pub signed: Array4<f32>,
    /// As `signed`, for the sum of |a_ts| over the key span divided by that over all s <= t: shares of spans that tile the prompt sum to
    /// 1. Tokens whose weights are all 0 have share 0.
    pub share: Array4<f32>,
}
