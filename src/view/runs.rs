//! A summary of each run: its header, judges, progress and files.

use serde_json::{Map, Value, json};

use super::folder::{Folder, Way};
use super::state::{Entry, Runs};
use super::table::side_key;
use crate::lens::{Layer, LayerKind};
use crate::run::causes::session_measures::MEASURES;
use crate::run::judged;
use palimpsest_core::attention::AttentionStore;

/// Layers and heads of a run's attention.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    /// The decoder's layers that were measured.
    pub layers: Vec<Layer>,
    /// Heads of a softmax layer.
    pub heads: usize,
}

impl Shape {
    /// Of an attention store.
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

    /// Its layers as replies have them.
    pub fn layers_json(layers: &[Layer]) -> Value {
        layers.iter().map(|layer| json!({"index": layer.index, "kind": layer.kind.key()})).collect()
    }
}

/// All runs, as `/api/runs` has them.
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
    let mut run = Map::new();
    let mut put = |key: &str, value: Value| _ = run.insert(key.to_owned(), value);
    put("run", json!(at));
    put("id", json!(folder.id));
    put("dir", json!(folder.dir().display().to_string()));
    put("benchmark", json!(benchmark.name));
    put("title", json!(benchmark.title));
    put("segment", json!(benchmark.segment));
    put("split", json!(benchmark.split));
    put("model", json!({"name": identity.model.name, "digest": identity.model.digest}));
    if let Some(dtype) = &identity.dtype {
        put("dtype", json!(dtype));
    }
    if let Some(dtype) = &identity.cache_dtype {
        put("cache_dtype", json!(dtype));
    }
    put("device", json!(folder.thin.header.machine.device));
    put("dataset", json!({"name": identity.dataset.name, "digest": identity.dataset.digest}));
    put("made_by", json!(identity.version));
    if let Some(mode) = identity.thinking.as_ref().and_then(|thinking| thinking.mode) {
        put("thinking", json!(mode));
    }
    if let Some(sampling) = &identity.sampling {
        put("sampling", json!(sampling));
    }
    let conditions = identity.conditions_or_plain().iter().map(|condition| {
        json!({
            "name": condition.name, "label": condition.label(), "about": condition.in_words(benchmark),
            "segment": condition.segment(benchmark),
        })
    });
    put("conditions", conditions.collect());
    put("judges", judges(folder));
    put("counts", counts(folder));
    put("has", has(folder));
    if let Some(Shape { layers, heads }) = shape(folder) {
        put("layers", Shape::layers_json(&layers));
        put("heads", json!(heads));
    }
    let roles = folder.roles.iter().map(|role| {
        let side = benchmark.lens.sides.iter().find(|(known, _)| known == role);
        match side {
            Some((_, side)) => json!({"name": role, "side": side_key(*side)}),
            None => json!({"name": role}),
        }
    });
    put("roles", roles.collect());
    put("warnings", json!(folder.warnings()));
    Value::Object(run)
}

/// That of the first attention store that can be read.
fn shape(folder: &Folder) -> Option<Shape> {
    let path = (0..folder.rows.len()).find_map(|row| folder.attention(row))?;
    AttentionStore::load(&path).ok().map(|store| Shape::of(&store))
}

fn judges(folder: &Folder) -> Value {
    let of = |judged: judged::Judged<'_>| {
        let mut judge = json!({
            "label": judged.name.label, "counts": folder.judge.as_ref() == Some(judged.name),
        });
        if let Some(why) = judged.no_result() {
            judge["no_result"] = json!(why);
        }
        if let Some(warning) = judged.warning() {
            judge["warning"] = json!(warning);
        }
        judge
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
