//! The ways of finding out what answers owe to sessions, each with its settings.

use std::sync::atomic::AtomicBool;

use anyhow::Context;
use palimpsest_core::engine::LocalModel;

use super::Measured;
use super::blocked::{self, CauseOptions};
use super::carriers::{self, CarrierOptions};
use super::context_cite::{self, SurrogateOptions};
use super::removed::{self, RemovalOptions};
use crate::run::causes::metric::Measure;
use crate::run::store::RunFolder;

/// A way, and its settings.
#[derive(Debug, Clone, Copy)]
pub enum Way {
    Blocked(CauseOptions),
    Removed(RemovalOptions),
    Carriers(CarrierOptions),
    /// A surrogate is fitted to random subsets, of answers alone.
    Surrogate(SurrogateOptions),
}

/// Measures what `folder` still lacks. `model` must be the run's. `stop` is looked at after each chunk and reading.
pub fn measure(
    folder: &RunFolder,
    model: &mut LocalModel,
    (way, of): (Way, Measure),
    stop: &AtomicBool,
    show: bool,
) -> anyhow::Result<Measured> {
    let measured = match way {
        Way::Blocked(options) => blocked::measure(folder, model, (options, of), stop, show),
        Way::Removed(options) => removed::measure(folder, model, (options, of), stop, show),
        Way::Carriers(options) => carriers::measure(folder, model, (options, of), stop, show),
        Way::Surrogate(options) => context_cite::measure(folder, model, options, stop, show),
    };
    measured.with_context(|| folder.dir.display().to_string())
}
