//! Run summaries: header, judges, progress, files.

use serde_json::{Value, json};

use super::fields::Fields;
use super::folder::{Folder, Way};
use super::state::{Entry, Runs};
use super::table::side_key;
use palimpsest_analysis::lens::{Layer, LayerKind};
use palimpsest_core::attention::AttentionStore;
use palimpsest_run::runs::causes::session_measures::MEASURES;
use palimpsest_run::runs::judged;

#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    pub layers: Vec<Layer>,
    pub heads: usize,
}

impl Shape {
    pub fn of(store: &AttentionStore) -> Self {
        let windowed = |at: usize| {
            store.uniform.as_ref().is_some_and(|uniform| matches!(uniform.windows.get(at), Some(Some(_))))
        };
        let kind = |at| if windowed(at) { LayerKind::Windowed } else { LayerKind::Softmax };
        let softmax = store.layers.iter().enumerate().map(|(at, &index)| Layer { index, kind: kind(at) });
        let linear = store.delta.iter().flat_map(|delta| &delta.layers);
        let mut layers: Vec<Layer> =
            softmax.chain(linear.map(|&index| Layer { index, kind: LayerKind::Linear })).collect();
        layers.sort();
        Shape { layers, heads: store.mass.dim().1 }
    }

    pub fn layers_json(layers: &[Layer]) -> Value {
        layers.iter().map(|layer| json!({"index": layer.index, "kind": layer.kind.key()})).collect()
    }
}

/// `/api/runs`.
pub fn of_all(runs: &Runs) -> Vec<Value> {
    let of = |(at, entry): (usize, &Entry)| match entry {
        Entry::Broken { id, dir, error } => {
            json!({"run": at, "id": id, "dir": dir.display().to_string(), "error": error})
        }
        Entry::Run(folder) => of_run(at, folder),
    };
    runs.entries.iter().enumerate().map(of).collect()
}

fn of_run(at: usize, folder: &Folder) -> Value {
    let identity = &folder.thin.header.identity;
    let benchmark = folder.benchmark;
    let run = json!({
        "run": at, "id": folder.id, "dir": folder.dir().display().to_string(), "benchmark": benchmark.name,
        "title": benchmark.title, "segment": benchmark.segment, "split": benchmark.split,
        "model": {"name": identity.model.name, "digest": identity.model.digest},
    });
    let run = run
        .with("dtype", identity.dtype.as_ref())
        .with("cache_dtype", identity.cache_dtype.as_ref())
        .with("device", Some(&folder.thin.header.machine.device))
        .with("dataset", Some(json!({"name": identity.dataset.name, "digest": identity.dataset.digest})))
        .with("made_by", Some(&identity.version))
        .with("thinking", identity.thinking.as_ref().and_then(|thinking| thinking.mode))
        .with("sampling", identity.sampling.as_ref());
    let conditions = identity.conditions_or_plain().iter().map(|condition| {
        json!({
            "name": condition.name, "label": condition.label(), "about": condition.in_words(benchmark),
            "segment": condition.segment(benchmark),
        })
    });
    let shape = shape(folder);
    let roles = folder.roles.iter().map(|role| {
        let side = benchmark.lens.sides.iter().find(|(known, _)| known == role);
        json!({"name": role}).with("side", side.map(|(_, side)| side_key(*side)))
    });
    run.with("conditions", Some(conditions.collect::<Value>()))
        .with("judges", Some(judges(folder)))
        .with("counts", Some(counts(folder)))
        .with("has", Some(has(folder)))
        .with("layers", shape.as_ref().map(|shape| Shape::layers_json(&shape.layers)))
        .with("heads", shape.as_ref().map(|shape| shape.heads))
        .with("roles", Some(roles.collect::<Value>()))
        .with("warnings", Some(folder.warnings()))
}

fn shape(folder: &Folder) -> Option<Shape> {
    let path = (0..folder.rows.len()).find_map(|row| folder.attention(row))?;
    AttentionStore::load(&path).ok().map(|store| Shape::of(&store))
}

fn judges(folder: &Folder) -> Value {
    let of = |judged: judged::Judged<'_>| {
        let counts = folder.judge.as_ref() == Some(judged.name);
        json!({"label": judged.name.label, "counts": counts})
            .with("no_result", judged.no_result())
            .with("warning", judged.warning())
    };
    folder.thin.judged().into_iter().map(of).collect()
}

fn counts(folder: &Folder) -> Value {
    let answers = || folder.facts.iter().filter_map(|facts| facts.answer.as_ref());
    let verdicts = folder.shown_verdicts();
    let right = verdicts.values().filter(|verdict| folder.is_right(verdict) == Some(true));
    json!({
        "planned": folder.rows.len(),
        "answered": answers().filter(|row| row.error.is_none()).count(),
        "errors": answers().filter(|row| row.error.is_some()).count(),
        "judged": verdicts.len(),
        "right": right.count(),
    })
}

fn has(folder: &Folder) -> Value {
    let any = |way: Way| folder.facts.iter().any(|facts| facts.causes.iter().any(|one| one.way == way));
    let answers = || folder.facts.iter().filter_map(|facts| facts.answer.as_ref());
    let systems = folder.thin.header.identity.memory.iter().map(|memory| &memory.name);
    json!({
        "attention": answers().any(|row| row.attention.is_some()),
        "measures": folder.dir().join(MEASURES).is_dir(),
        "direct": any(Way::Direct),
        "windows": any(Way::Window),
        "control": any(Way::Control),
        "total": any(Way::Total),
        "replaced": any(Way::Replaced),
        "carriers": any(Way::Carrier),
        "contextcite": any(Way::Surrogate),
        "contrast": answers().any(|row| row.contrast.is_some()),
        "contrast_causes": any(Way::ContrastDirect) || any(Way::ContrastOther),
        "why": folder.facts.iter().any(|facts| facts.why.is_some()),
        "memory": systems.collect::<Vec<_>>(),
        "trials": folder.facts.iter().map(|facts| facts.trials.len()).sum::<usize>(),
    })
}
