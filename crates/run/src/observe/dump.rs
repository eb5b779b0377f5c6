//! Another engine's numbers for one prompt, held against our own pass: logits, and the keys that layers chose.

use std::path::Path;

use anyhow::{Context, ensure};
use candle_core::{DType, Device, Tensor};
use ndarray::Array2;
use palimpsest_core::attention::LayerKind;
use palimpsest_core::engine::Engine;
use palimpsest_data::ground::table::columns;

use super::choices::Choices;
use super::job::TraceJob;
use super::request::ObserveRequest;

/// A safetensors file with `tokens` (n), and for some rows (`rows`, their positions; without it the last ones) `logits` (rows, vocab),
/// `selected.LAYER` u8 [rows, keys], which is not 0 where the row's attention at that layer has the key, or both.
pub struct Dump {
    pub tokens: Vec<u32>,
    rows: Vec<usize>,
    /// By row.
    logits: Option<Vec<Vec<f32>>>,
    /// By layer; by row and key.
    selected: Vec<(usize, Vec<Vec<f32>>)>,
}

/// A tensor's difference from ours.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    pub tensor: String,
    pub rows: usize,
    /// Infinite where a number is NaN.
    pub largest: f64,
    /// Position and column of the largest.
    pub at: (usize, usize),
    /// Position of the first row that is further off than allowed.
    pub first: Option<usize>,
}

impl Dump {
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let place = || path.display().to_string();
        let file = candle_core::safetensors::load(path, &Device::Cpu).with_context(place)?;
        let ids = |name: &str, tensor: &Tensor| -> anyhow::Result<Vec<u32>> {
            let whole = matches!(tensor.dtype(), DType::U32 | DType::I64) && tensor.rank() == 1;
            ensure!(
                whole,
                "`{name}` is {:?} {:?}; write u32 or i64 in one dimension",
                tensor.dtype(),
                tensor.dims()
            );
            let ids = tensor.to_dtype(DType::I64)?.to_vec1::<i64>()?;
            let id = |id: i64| u32::try_from(id).with_context(|| format!("`{name}` holds {id}"));
            ids.into_iter().map(id).collect()
        };
        let read = || -> anyhow::Result<Self> {
            let tokens = file.get("tokens").context("it has no tensor `tokens`")?;
            let tokens = ids("tokens", tokens)?;
            let n = tokens.len();
            let mut named: Vec<(&String, &Tensor)> = file.iter().collect();
            named.sort_by_key(|(name, _)| *name);
            let table = |name: &str, tensor: &Tensor| -> anyhow::Result<Vec<Vec<f32>>> {
                let table = tensor.to_dtype(DType::F32)?.to_vec2::<f32>();
                table.with_context(|| {
                    format!("`{name}` has shape {:?}, and two dimensions are wanted", tensor.dims())
                })
            };
            let mut selected = Vec::new();
            for (name, tensor) in named {
                let Some(layer) = name.strip_prefix("selected.") else { continue };
                let layer = layer.parse().with_context(|| format!("`{name}` names no layer"))?;
                selected.push((layer, table(name, tensor)?));
            }
            let logits = file.get("logits").map(|tensor| table("logits", tensor)).transpose()?;
            let tables = || logits.iter().chain(selected.iter().map(|(_, table)| table));
            let count = tables().next().context("it has neither `logits` nor `selected.LAYER`")?.len();
            let rows = match file.get("rows") {
                Some(rows) => ids("rows", rows)?.into_iter().map(|row| row as usize).collect(),
                None => (n.saturating_sub(count)..n).collect::<Vec<_>>(),
            };
            ensure!(
                !rows.is_empty() && tables().all(|table| table.len() == rows.len()),
                "it has {} rows (`rows`, or the last tokens), and its tensors {:?}: they must be as many, and at least one",
                rows.len(),
                tables().map(Vec::len).collect::<Vec<_>>()
            );
            if let Some(row) = rows.iter().find(|row| **row >= n) {
                anyhow::bail!("row {row} is not among its {n} tokens");
            }
            Ok(Dump { tokens, rows, logits, selected })
        };
        read().with_context(place)
    }

    /// The pass that gives our numbers: logits of all positions from the first row on.
    pub fn job(&self, place: &str) -> anyhow::Result<TraceJob> {
        let first = self.rows.iter().min().copied().unwrap_or(0);
        let logits = if self.logits.is_some() { self.tokens.len() - first } else { 0 };
        let request = ObserveRequest { logits, ..ObserveRequest::default() };
        TraceJob::new(request, self.tokens.clone(), Vec::new(), Vec::new(), None, place)
    }

    /// Differences by tensor. `logits` (positions, vocab): of the last positions. `tolerance`: the largest that is allowed. Choices of
    /// indexers are read in a pass of `engine`.
    pub fn differences(
        &self,
        logits: &Array2<f32>,
        engine: &Engine,
        tolerance: f64,
    ) -> anyhow::Result<Vec<Difference>> {
        let (n, kinds) = (self.tokens.len(), engine.decoder().spec().layer_kinds());
        let indexed =
            |layer: &usize| matches!(kinds.get(*layer), Some(LayerKind::Softmax { indexed: true, .. }));
        let choices = match self.selected.iter().any(|(layer, _)| indexed(layer)) {
            true => Choices::read(engine, &self.tokens)?,
            false => Choices::default(),
        };
        let mut found = Vec::new();
        if let Some(theirs) = &self.logits {
            let ours = |row: usize| -> Option<Vec<f32>> {
                let at = (row + logits.nrows()).checked_sub(n)?;
                (at < logits.nrows()).then(|| logits.row(at).to_vec())
            };
            found.push(self.difference("logits".to_owned(), theirs, &ours, tolerance)?);
        }
        for (layer, theirs) in &self.selected {
            let window = match kinds.get(*layer) {
                Some(LayerKind::Softmax { window, .. }) => *window,
                Some(LayerKind::Linear) => {
                    anyhow::bail!(
                        "`selected.{layer}`: that layer has linear attention, which chooses no keys"
                    )
                }
                None => anyhow::bail!("`selected.{layer}`: the model has the layers 0..{}", kinds.len()),
            };
            let ours = |row: usize| -> Option<Vec<f32>> {
                let first = window.map_or(0, |window| (row + 1).saturating_sub(window));
                let chosen = choices.row(*layer, row);
                let sees = |key: usize| match chosen {
                    Some(chosen) => chosen.get(key).is_some_and(|chosen| *chosen),
                    None => (first..=row).contains(&key),
                };
                Some((0..n).map(|key| f32::from(u8::from(sees(key)))).collect())
            };
            let theirs: Vec<Vec<f32>> = theirs
                .iter()
                .map(|row| row.iter().map(|x| f32::from(u8::from(*x != 0.0))).collect())
                .collect();
            found.push(self.difference(format!("selected.{layer}"), &theirs, &ours, tolerance)?);
        }
        Ok(found)
    }

    fn difference(
        &self,
        tensor: String,
        theirs: &[Vec<f32>],
        ours: &dyn Fn(usize) -> Option<Vec<f32>>,
        tolerance: f64,
    ) -> anyhow::Result<Difference> {
        let (mut largest, mut at, mut first) = (0.0, (0, 0), None);
        for (&row, theirs) in self.rows.iter().zip(theirs) {
            let ours = ours(row).with_context(|| format!("This is a bug: {tensor} lacks row {row}"))?;
            ensure!(
                ours.len() == theirs.len(),
                "`{tensor}` has rows of {} numbers, and the model's have {}",
                theirs.len(),
                ours.len()
            );
            for (column, (a, b)) in ours.iter().zip(theirs).enumerate() {
                let apart = match (f64::from(*a) - f64::from(*b)).abs() {
                    apart if apart.is_nan() => f64::INFINITY,
                    apart => apart,
                };
                if apart > largest {
                    (largest, at) = (apart, (row, column));
                }
                if apart > tolerance && first.is_none_or(|first| row < first) {
                    first = Some(row);
                }
            }
        }
        Ok(Difference { tensor, rows: self.rows.len(), largest, at, first })
    }
}

/// One line per tensor.
pub fn table(found: &[Difference], tolerance: f64) -> String {
    let header = ["TENSOR", "ROWS", "LARGEST DIFFERENCE", "AT", "FIRST ROW BEYOND"].map(str::to_owned);
    let line = |one: &Difference| {
        let (row, column) = one.at;
        let at = if one.largest > 0.0 { format!("row {row}, {column}") } else { "-".to_owned() };
        let first = one.first.map_or_else(|| "-".to_owned(), |row| row.to_string());
        [one.tensor.clone(), one.rows.to_string(), format!("{:.3e}", one.largest), at, first]
    };
    let lines: Vec<[String; 5]> = std::iter::once(header).chain(found.iter().map(line)).collect();
    let verdict = match found.iter().all(|one| one.first.is_none()) {
        true => format!("all within {tolerance}"),
        false => format!("not all within {tolerance}"),
    };
    format!("{}{verdict}\n", columns(&lines))
}
