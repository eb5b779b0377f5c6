//! What commands open: data sets, models, runs.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::benchmarks::dataset::Dataset;
use crate::benchmarks::reading::ReadError;
use crate::benchmarks::{self, Benchmark};
use crate::data::Case;
use crate::run::header::RunHeader;

/// The model files behind a name or path.
pub(super) fn model_paths(name: &str) -> anyhow::Result<Vec<PathBuf>> {
    Ok(crate::models::ModelStore::open()?.resolve_to_run(name)?.paths())
}

/// The cases of a data set, one in memory at a time, with what helps where one is not sound.
pub(super) fn cases(dataset: &Dataset) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Case>>> {
    let name = dataset.name().to_owned();
    Ok(dataset.cases()?.map(move |case| {
        case.with_context(|| format!("{name} cannot be used; `palimpsest data check` lists all its problems"))
    }))
}

/// [`cases`] without the rows that are broken.
pub(super) fn sound_cases(dataset: &Dataset) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Case>>> {
    let is_broken = |case: &anyhow::Error| matches!(case.downcast_ref(), Some(ReadError::Row(_)));
    Ok(cases(dataset)?.filter(move |case| !case.as_ref().is_err_and(is_broken)))
}

/// What a run is of.
pub(super) fn benchmark_of(dir: &Path, header: &RunHeader) -> anyhow::Result<&'static Benchmark> {
    let name = &header.identity.benchmark;
    benchmarks::named(name).with_context(|| {
        let known: Vec<&str> = benchmarks::ALL.iter().map(|benchmark| benchmark.name).collect();
        let (dir, known) = (dir.display(), known.join(", "));
        format!(
            "{dir} is a run of the benchmark `{name}`, which this version does not know; it knows {known}"
        )
    })
}
