//! Methods of measuring the effects of sessions, with their settings.

use std::sync::atomic::AtomicBool;

use anyhow::Context;
use palimpsest_core::ablate::Measure;
use palimpsest_core::engine::LocalModel;

use super::blocked::{self, CauseOptions};
use super::carriers::{self, CarrierOptions};
use super::case::SessionChoice;
use super::context_cite::{self, SurrogateOptions};
use super::forced;
use super::removed::{self, RemovalOptions};
use super::repaired::{self, RepairOptions};
use super::thoughts::{self, ThoughtOptions};
use super::{Measured, Task, neutral};
use crate::runs::store::RunFolder;

#[derive(Debug, Clone)]
pub enum Way {
    Blocked(CauseOptions),
    Removed(RemovalOptions),
    Repaired(RepairOptions),
    /// Shows each chosen session to windowed layers.
    Forced(SessionChoice),
    Carriers(CarrierOptions),
    Surrogate(SurrogateOptions),
    Thoughts(ThoughtOptions),
}

/// Measures and appends what `folder` lacks. `model` must be the run's. `stop` is checked after each chunk and reading.
pub fn measure(
    folder: &RunFolder,
    model: &mut LocalModel,
    (way, of): (Way, Measure),
    stop: &AtomicBool,
    show: bool,
) -> anyhow::Result<Measured> {
    let kinds = model.engine().decoder().spec().layer_kinds();
    let replaces = matches!(way, Way::Removed(RemovalOptions { replace: true, .. }) | Way::Repaired(_));
    let neutral = if replaces { Some(neutral(model.text())?) } else { None };
    let task = Task { folder, of, text: model.text().clone(), kinds, neutral, stop, show };
    let session = model.session();
    let measured = match way {
        Way::Blocked(options) => blocked::measure(&task, session, options),
        Way::Removed(options) => removed::measure(&task, session, options),
        Way::Repaired(options) => repaired::measure(&task, session, &options),
        Way::Forced(sessions) => forced::measure(&task, session, sessions),
        Way::Carriers(options) => carriers::measure(&task, session, options),
        Way::Surrogate(options) => context_cite::measure(&task, session, options),
        Way::Thoughts(options) => thoughts::measure(&task, session, options),
    };
    measured.with_context(|| folder.dir.display().to_string())
}
