//! The ways in which `palimpsest causes` finds what answers, or contrasts in their place, owe to sessions.

use std::sync::atomic::AtomicBool;

use anyhow::Context;

use super::carriers::{self, CarrierOptions};
use super::causes::{self, CauseOptions, Measured};
use super::context_cite::{self, SurrogateOptions};
use super::contrast_carriers;
use super::contrast_causes;
use super::store::RunFolder;
use super::total_effect::{self, TotalOptions};
use palimpsest_core::engine::LocalModel;

/// A way, and its settings.
#[derive(Debug, Clone, Copy)]
pub enum Way {
    /// Sessions are blocked.
    Blocked(CauseOptions),
    /// Sessions are removed or replaced.
    Total(TotalOptions),
    /// Sessions are hidden from later ones.
    Carriers(CarrierOptions),
    /// A surrogate is fitted to random subsets.
    Surrogate(SurrogateOptions),
}

/// Measures what `folder` still lacks. `model` must be the run's.
///
/// # Errors
/// Any [`causes::CauseError`], with the folder's name; a stop is none.
pub fn measure(
    folder: &RunFolder,
    model: &mut LocalModel,
    (way, contrast): (Way, bool),
    stop: &AtomicBool,
    show: bool,
) -> anyhow::Result<Measured> {
    let measured = match way {
        Way::Blocked(options) if contrast => contrast_causes::measure(folder, model, options, stop, show),
        Way::Blocked(options) => causes::measure(folder, model, options, stop, show),
        Way::Total(options) if contrast => {
            contrast_causes::measure_removals(folder, model, options, stop, show)
        }
        Way::Total(options) => total_effect::measure(folder, model, options, stop, show),
        Way::Carriers(options) if contrast => contrast_carriers::measure(folder, model, options, stop, show),
        Way::Carriers(options) => carriers::measure(folder, model, options, stop, show),
        Way::Surrogate(options) => context_cite::measure(folder, model, options, stop, show),
    };
    measured.with_context(|| folder.dir.display().to_string())
}
