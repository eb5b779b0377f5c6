//! Run summaries: names, progress, roles.

use serde_json::{Value, json};

use super::fields::Fields;
use super::folder::Folder;
use super::state::{Entry, Runs};
use palimpsest_analysis::lens::Layer;
use palimpsest_run::runs::causes::session_measures::MEASURES;

pub fn layers_json(layers: &[Layer]) -> Value {
    layers.iter().map(|layer| json!({"index": layer.index, "kind": layer.kind.key()})).collect()
}

/// `/api/runs`.
pub fn of_all(runs: &Runs) -> Vec<Value> {
    let of = |(at, entry): (usize, &Entry)| match &entry.run {
        Ok(folder) => of_run(at, folder),
        Err(error) => {
            json!({"run": at, "id": entry.id, "dir": entry.dir.display().to_string(), "error": error})
        }
    };
    runs.entries.iter().enumerate().map(of).collect()
}

fn of_run(at: usize, folder: &Folder) -> Value {
    let (identity, benchmark) = (&folder.run.header.identity, folder.benchmark);
    let conditions = identity.conditions_or_plain().iter().map(|condition| {
        json!({"name": condition.name, "label": condition.label(), "about": condition.in_words(benchmark)})
    });
    let roles = folder.roles.iter().map(|role| {
        let side = benchmark.lens.sides.iter().find(|(known, _)| known == role);
        json!({"name": role}).with("side", side.map(|(_, side)| side))
    });
    let answered = folder.rows.iter().filter_map(|facts| facts.answer.as_ref());
    json!({
        "run": at, "id": folder.id, "dir": folder.dir().display().to_string(), "benchmark": benchmark.name,
        "title": benchmark.title, "segment": benchmark.segment, "made_by": identity.version,
        "model": {"name": identity.model.name, "digest": identity.model.digest},
        "conditions": conditions.collect::<Vec<_>>(),
        "counts": {"planned": folder.rows.len(), "answered": answered.filter(|row| row.error.is_none()).count()},
        "has": {"measures": folder.dir().join(MEASURES).is_dir()},
        "roles": roles.collect::<Vec<_>>(),
        "why_judges": folder.why_judges,
        "warnings": folder.warnings(),
    })
    .with("judge", folder.judge.as_ref().map(|judge| &judge.label))
    .with("no_result", folder.no_result.as_ref())
}
