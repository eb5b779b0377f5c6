//! Cases of a dataset, with remedies in their errors.

use anyhow::Context;

use palimpsest_data::benchmarks::dataset::Dataset;
use palimpsest_data::benchmarks::reading::ReadError;
use palimpsest_data::case::Case;

/// Streams the cases of a dataset; errors include a remedy.
pub fn cases(dataset: &Dataset) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Case>>> {
    let name = dataset.name().to_owned();
    Ok(dataset.cases()?.map(move |case| {
        case.with_context(|| format!("{name} cannot be used; `palimpsest data check` lists all its problems"))
    }))
}

pub fn sound_cases(dataset: &Dataset) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Case>>> {
    let is_broken = |case: &anyhow::Error| matches!(case.downcast_ref(), Some(ReadError::Row(_)));
    Ok(cases(dataset)?.filter(move |case| !case.as_ref().is_err_and(is_broken)))
}
