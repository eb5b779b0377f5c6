//! Ablations: the change of an answer when spans of its prompt are hidden, removed or replaced.
//!
//! A [`Prompt`] gives each ablation: keys hidden from rows at some layers ([`hide`]), a history without some tokens, or with [`neutral`] text
//! in their place. A [`Metric`] (the log-probability of an answer, or that of one value less that of another) is read once as it is and again
//! under each ablation; an [`EffectRow`] holds the difference. All causes are measured here: those of a run, of a prompt of one's own, of the
//! server's answers, of labels and of trials. This module knows tokens and ranges of them. Which ranges are sessions, and which random ones
//! are controls, is for the caller to say.

mod distribution;
mod metric;
mod prompt;

pub use metric::{
    Effect, EffectRow, Measure, Metric, PairLogP, Position, Reading, Said, Target, ThoughtEffect, ValuePair,
    collect, forcing, lost,
};
pub use prompt::{History, NEUTRAL, Prompt, first_linear, hide, neutral, put, windows, without};
