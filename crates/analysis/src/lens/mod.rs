//! Attention stores become curves, ratios and confidence bands.
//!
//! Owns the reading of a run folder for analysis ([`AnalysedRun`]), the masses, noise baselines and densities of each
//! example ([`Example`]), and their groupings with bands ([`Lens`], [`Series`]; of several conditions [`Study`]). Called by the commands `lens`,
//! `figures` and `report`. Reads files only: it runs no model, changes no row of a run, and knows nothing of pictures.
//!
//! Where a model has linear-attention layers, a curve has at such a layer the share of the implicit weights' sizes
//! ([`layers`]), and whatever is averaged over layers is averaged over one kind of them.
//!
//! The definitions follow STALE, section 4.3 and appendix E.4; [`example`] and [`group`] say each one exactly.

use std::path::PathBuf;

use crate::heads::HeadsFileError;
use palimpsest_core::attention::StoreError;
use palimpsest_run::runs::error::RunError;

pub mod band;
pub mod baseline;
mod by_heads;
pub mod causes;
pub mod difference;
pub mod draw;
pub mod example;
pub mod group;
pub mod layers;
pub mod measured;
mod paid;
pub mod roles;
pub mod run;
pub mod selection;
pub mod strip;
pub mod study;
pub mod table;
mod words;

pub use band::{Numbers, Point};
pub use baseline::{Baseline, StandIn};
pub use by_heads::ByHeads;
pub use difference::Difference;
pub use draw::{Drawn, PerGroup};
pub use example::{Example, SegmentMass, Target};
pub use group::{Correctness, Group, Lens, Options, Series, Skipped, Statistic};
pub use layers::{ByLayer, Layer, LayerKind};
pub use palimpsest_data::benchmarks::{Curve, Scale};
pub use roles::{RoleMass, masses_in_role};
pub use run::AnalysedRun;
pub use selection::Selection;
pub use study::{Condition, HeadMap, MeasureLine, MeasureRow, Study};
pub use words::in_words;

/// Why a run could not be analysed.
#[derive(Debug, thiserror::Error)]
pub enum LensError {
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{path} is a run of the benchmark `{name}`, which this version does not know; it knows {known}")]
    UnknownBenchmark { path: PathBuf, name: String, known: String },
    #[error("{path} holds no verdict of judge `{judge}`; its judges are: {known}")]
    UnknownJudge { path: PathBuf, judge: String, known: String },
    /// No example can be measured.
    #[error(
        "{path}: no attention can be read from this run ({reason}); the run must have been made with attention on"
    )]
    NoAttention { path: PathBuf, reason: String },
    /// The stores of one run disagree.
    #[error(
        "{store}: its layers are {}, those of the run's other stores {}; delete it and start the run again, which redoes \
         this probe",
        layers::named(found),
        layers::named(expected)
    )]
    Layers { store: PathBuf, found: Vec<Layer>, expected: Vec<Layer> },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Heads(#[from] HeadsFileError),
    /// Head scores are of another model, or of other heads, than a run.
    #[error("{0}")]
    OtherHeads(String),
}
