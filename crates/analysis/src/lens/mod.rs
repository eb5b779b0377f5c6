//! Turns attention stores into curves, ratios and confidence bands.
//!
//! Reads run folders ([`AnalysedRun`]), computes masses, noise baselines and densities ([`Example`]) and groups them with bands ([`Lens`],
//! [`Series`]; [`Study`] for several conditions). Used by `lens`, `figures` and `report`. Runs no model and draws nothing. Definitions
//! follow STALE, section 4.3 and appendix E.4; see [`example`] and [`group`].

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

#[derive(Debug, thiserror::Error)]
pub enum LensError {
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{path} holds no verdict of judge `{judge}`; its judges are: {known}")]
    UnknownJudge { path: PathBuf, judge: String, known: String },
    #[error(
        "{path}: no attention can be read from this run ({reason}); the run must have been made with attention on"
    )]
    NoAttention { path: PathBuf, reason: String },
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
    #[error("{0}")]
    OtherHeads(String),
}
