//! Runs for Python: started with the flags of `palimpsest run`, returned as JSON rows and tensors.

use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;
use palimpsest::heads::Score;
use palimpsest::lens::{ByHeads, masses_in_role};
use palimpsest::observe::TraceTensors;
use palimpsest::runs::causes::rows::read_lines;
use palimpsest::runs::setup::{Begin, RunSpec};
use palimpsest::runs::store::RunFolder;
use palimpsest::runs::why_rows::read_why;
use palimpsest_core::attention::{AttentionStore, Selected, Values};
use pyo3::prelude::*;
use serde_json::{Value, json};
use std::sync::Arc;

use super::arrays::{self, Arrays};
use super::work;

/// The flags of a run.
#[derive(Parser)]
#[command(name = "run", no_binary_name = true)]
struct Flags {
    #[command(flatten)]
    spec: RunSpec,
}

/// Answers a benchmark as `palimpsest run` with these flags does, in the folder `out`. JSON of the counts.
#[pyfunction]
#[pyo3(signature = (flags, out, progress=None))]
pub fn run(
    py: Python<'_>,
    flags: Vec<String>,
    out: PathBuf,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    work::run(py, progress, move |watch| {
        let Flags { spec } = Flags::try_parse_from(flags).map_err(|error| {
            let text = error.to_string();
            let text = text.split("\n\n").next().unwrap_or_default();
            anyhow::anyhow!("{}", text.trim_start_matches("error: ").trim().replace("\n  ", " "))
        })?;
        let summary = spec.run(&Begin {
            folder: &out,
            recorder: None,
            show_progress: false,
            on_text: &|_| (),
            watch: &|_| Ok(Arc::clone(watch.stopped())),
        })?;
        Ok(json!({
            "planned": summary.planned,
            "skipped": summary.skipped,
            "done": summary.done,
            "errors": summary.errors,
            "stopped": summary.stopped,
        })
        .to_string())
    })
}

/// Rows of a run folder that count, as a JSON list: `answers`, `verdicts`, `causes` or `why`; `header` is run.json.
#[pyfunction]
pub fn rows(py: Python<'_>, dir: PathBuf, of: &str) -> PyResult<String> {
    work::run(py, None, |_| {
        let folder = RunFolder::read(&dir)?;
        let found: Value = match of {
            "answers" => serde_json::to_value(&folder.answers)?,
            "verdicts" => serde_json::to_value(&folder.verdicts)?,
            "causes" => serde_json::to_value(read_lines(&dir)?)?,
            "why" => serde_json::to_value(read_why(&dir)?)?,
            "header" => serde_json::to_value(&folder.header)?,
            other => anyhow::bail!("This is a bug: rows of `{other}`"),
        };
        Ok(found.to_string())
    })
}

/// The attention file of an answer.
#[pyfunction]
pub fn attention<'py>(
    py: Python<'py>,
    dir: PathBuf,
    case: &str,
    probe: &str,
    condition: &str,
) -> PyResult<(Arrays<'py>, Vec<u32>)> {
    let (found, tokens) = work::run(py, None, |_| {
        let folder = RunFolder::read(&dir)?;
        let place = dir.display();
        let answer = folder
            .answers
            .iter()
            .find(|answer| answer.case == case && answer.probe == probe && answer.condition == condition);
        let named = if condition.is_empty() { String::new() } else { format!(" under `{condition}`") };
        let answer = answer.with_context(|| format!("{place} has no answer to {case} {probe}{named}"))?;
        let store = folder.attention(answer)?;
        let store =
            store.with_context(|| format!("{place}: no attention was recorded of {case} {probe}{named}"))?;
        Ok(tensors(store))
    })?;
    Ok((arrays::of(py, found)?, tokens))
}

fn tensors(store: AttentionStore) -> (TraceTensors, Vec<u32>) {
    let shape = store.mass.shape().to_vec();
    let mut tensors = vec![("mass", Values::F32(store.mass.iter().copied().collect()), shape)];
    let mut metadata = vec![
        ("layers", json!(store.layers).to_string()),
        ("rows", json!(store.rows).to_string()),
        ("spans", json!(store.keys).to_string()),
        ("case", store.case),
        ("probe", store.probe),
        ("model", store.model),
        ("dtype", store.dtype),
    ];
    if let Some(uniform) = &store.uniform {
        tensors.push(uniform.tensor());
        metadata.push(uniform.metadata());
    }
    if let Some(sink) = &store.sink {
        tensors.push(("sink", Values::F32(sink.iter().copied().collect()), sink.shape().to_vec()));
    }
    if let Some(delta) = &store.delta {
        tensors.extend(delta.tensors());
        metadata.push(delta.metadata());
    }
    if let Some(kept) = &store.kept {
        tensors.push(kept.tensor());
        metadata.push(kept.metadata());
    }
    tensors.extend(store.selected.iter().flat_map(Selected::tensors));
    if !store.condition.is_empty() {
        metadata.push(("condition", store.condition));
    }
    let generated = vec![store.generated.len()];
    tensors.push(("generated", Values::U32(store.generated), generated));
    (TraceTensors { tensors, metadata }, store.tokens)
}

/// The attention of a row to the spans in a role, answer by answer and layer by layer, as a JSON list.
#[pyfunction]
#[pyo3(signature = (dir, row, role, heads=None))]
pub fn masses(
    py: Python<'_>,
    dir: PathBuf,
    row: &str,
    role: &str,
    heads: Option<PathBuf>,
) -> PyResult<String> {
    work::run(py, None, |_| {
        let heads = heads.map(|path| ByHeads { path, score: Score::default() });
        let found = masses_in_role(&dir, (row, role), heads.as_ref())?;
        let rows = found.iter().flat_map(|one| {
            one.layers.iter().zip(one.mass.iter().zip(&one.share)).map(move |(layer, (mass, share))| {
                json!({
                    "case": one.case,
                    "probe": one.probe,
                    "condition": one.condition,
                    "layer": layer.index,
                    "kind": layer.kind.key(),
                    "mass": mass,
                    "share": share,
                })
            })
        });
        Ok(Value::Array(rows.collect()).to_string())
    })
}
