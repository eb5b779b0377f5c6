//! Figures of `data stats` and `dose --out`.

use std::path::Path;

use crate::benchmarks::dataset::Dataset;
use crate::benchmarks::reading::ReadError;
use crate::case::labels;
use crate::dose::Doses;
use crate::figures;
use crate::progress;

pub(super) fn distribution(dataset: &Dataset, label: &str, folder: &Path) -> anyhow::Result<()> {
    let sound = dataset.cases()?.filter(|case| !matches!(case, Err(ReadError::Row(_))));
    let counts = labels::count(sound, label, dataset.benchmark().split)?;
    let origin = format!("{} · {} cases", dataset.name(), counts.cases);
    let figure = figures::distribution(&counts, &origin);
    figures::write(std::slice::from_ref(&figure), folder)?;
    progress::note(format_args!("wrote {}", folder.join(figure.name).with_extension("svg").display()));
    Ok(())
}

pub(super) fn doses(doses: &Doses, folder: &Path) -> anyhow::Result<()> {
    figures::write(&figures::draw_doses(doses), folder)?;
    Ok(())
}
