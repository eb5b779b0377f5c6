//! Ablations: the change of an answer when prompt spans are hidden, removed or replaced.
//!
//! A [`Prompt`] builds ablations: keys hidden from rows at some layers ([`hide`]), tokens removed, or replaced by [`neutral`] text. A
//! [`Metric`] is measured once as baseline and once per ablation; [`EffectRow`] holds the difference. Works on token ranges; callers choose
//! them and their controls.

mod distribution;
mod metric;
mod prompt;

pub use metric::{
    Effect, EffectRow, Measure, Metric, PairLogP, Position, Reading, Said, Target, ThoughtEffect, ValuePair,
    collect, forcing, lost,
};
pub use prompt::{History, NEUTRAL, Prompt, first_linear, hide, neutral, put, windows, without};
