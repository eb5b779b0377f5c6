//! The figures of `palimpsest dose --out`.

use std::path::Path;

use crate::dose::Doses;
use crate::figures;

/// Draws a run's figures into a folder.
pub(super) fn write(doses: &Doses, folder: &Path) -> anyhow::Result<()> {
    figures::write(&figures::draw_doses(doses), folder)?;
    Ok(())
}
