//! Ablations: the change of an answer when prompt spans are hidden, removed or replaced.
//!
//! A [`Prompt`] hides keys from rows at some layers ([`hide`]), removes tokens, or replaces them with [`neutral`] text. A [`Metric`] is
//! measured as baseline and per ablation; [`EffectRow`] is the difference. Callers choose token ranges and controls.

mod distribution;
mod metric;
mod prompt;

pub use metric::{
    Effect, EffectRow, Measure, Metric, PairLogP, Position, Reading, Said, Target, ThoughtEffect, ValuePair,
    collect, divergence, forcing, lost,
};
pub use prompt::{History, NEUTRAL, Prompt, first_linear, hide, neutral, put, windows, without};
