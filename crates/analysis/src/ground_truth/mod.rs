//! Holds scores of sessions, from anywhere, against the exact effects of `palimpsest causes`.
//!
//! [`exact`] reads effects, [`scores`] and `builtin` scores, [`metrics`] compares them for one answer, [`table`] averages over answers and
//! units. Definitions are in docs/ground-truth.md.

use std::path::PathBuf;

mod builtin;
pub mod exact;
pub mod metrics;
mod reading;
pub mod scores;
pub mod table;

pub use exact::{Effects, EffectsLine, ExactAnswer};
pub use scores::Scored;

/// The effects themselves as scores: what the best method would reach.
pub const EXACT: &str = "exact";
/// Equal scores: what any order reaches on average.
pub const CHANCE: &str = "chance";

/// Properties of an answer that rows are split by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum By {
    /// The role of the answer's decisive session
    Role,
    /// Tokens from the decisive session to the end of the history
    Distance,
    /// Tokens of the history
    Length,
}

#[derive(Debug, Clone, Default)]
pub struct Options {
    pub effects: Effects,
    pub by: Option<By>,
    /// Sessions of the drop.
    pub top: usize,
    pub scores: Vec<PathBuf>,
    /// Files of `palimpsest heads`.
    pub heads: Vec<PathBuf>,
    /// Runs whose exact effects the ridge regression is fitted to.
    pub learn_from: Vec<PathBuf>,
    /// Runs of other models, or files of their effects.
    pub proxies: Vec<PathBuf>,
    pub halves_seed: u64,
}

#[derive(Debug, Clone, Default)]
pub struct Run {
    pub name: String,
    pub model: String,
    pub data: String,
    pub answers: Vec<ExactAnswer>,
    pub scored: Vec<Scored>,
}

#[derive(Debug, Clone, Default)]
pub struct GroundTruth {
    pub runs: Vec<Run>,
    /// Remarks on the data of fits and tests, and on answers that were left out.
    pub remarks: Vec<String>,
    pub options: Options,
}
