//! Another engine's numbers for one prompt, held against our own pass: logits, and the keys that layers chose.

use std::path::Path;

use anyhow::{Context, anyhow, bail, ensure};
use candle_core::safetensors::Load;
use candle_core::{DType, Device};
use ndarray::Array2;
use palimpsest_core::attention::LayerKind;
use palimpsest_data::ground::table::columns;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::job::TraceJob;
use super::request::ObserveRequest;

/// A safetensors file with `tokens` (n), and for some rows (`rows`, their positions; without it the last ones) `logits` (rows, vocab),
/// `selected.LAYER` u8 or bool [rows, keys], which is not 0 where the row's attention at that layer has the key, or both.
pub struct Dump {
    pub tokens: Vec<u32>,
    rows: Vec<usize>,
    /// By row.
    logits: Option<Vec<Vec<f32>>>,
    /// By layer; by row and key.
    selected: Vec<(usize, Vec<Vec<f32>>)>,
}

/// Of `tokens` or `rows`.
fn ids(name: &str, view: &TensorView<'_>) -> anyhow::Result<Vec<u32>> {
    let (dtype, shape) = (view.dtype(), view.shape());
    ensure!(
        [Dtype::U32, Dtype::I32, Dtype::I64].contains(&dtype) && shape.len() == 1,
        "`{name}` is {dtype:?} {shape:?}; write u32, i32 or i64 in one dimension"
    );
    let ids = view.load(&Device::Cpu)?.to_dtype(DType::I64)?.to_vec1::<i64>()?;
    let id =
        |id: i64| u32::try_from(id).map_err(|_| anyhow!("`{name}` has {id}; write numbers of 0 and more"));
    ids.into_iter().map(id).collect()
}

/// By row; `known` are the dtypes that the tensor may have.
fn by_row(name: &str, view: &TensorView<'_>, known: &[Dtype]) -> anyhow::Result<Vec<Vec<f32>>> {
    let (dtype, shape) = (view.dtype(), view.shape());
    ensure!(
        known.contains(&dtype) && shape.len() == 2,
        "`{name}` is {dtype:?} {shape:?}; write {} in two dimensions",
        known.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    );
    match dtype {
        // Candle has no booleans.
        Dtype::U8 | Dtype::BOOL => {
            let row = |row: &[u8]| row.iter().map(|byte| f32::from(u8::from(*byte != 0))).collect();
            Ok(view.data().chunks_exact(shape[1].max(1)).map(row).collect())
        }
        _ => Ok(view.load(&Device::Cpu)?.to_dtype(DType::F32)?.to_vec2()?),
    }
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
        Dump::parse(&std::fs::read(path).with_context(place)?).with_context(place)
    }

    fn parse(bytes: &[u8]) -> anyhow::Result<Self> {
        let file = SafeTensors::deserialize(bytes)
            .map_err(|error| anyhow!("it is no safetensors file ({error}); write it anew"))?;
        let (mut tokens, mut rows, mut logits, mut selected) = (None, None, None, Vec::new());
        for (name, view) in file.tensors() {
            match (name.as_str(), name.strip_prefix("selected.").map(str::parse)) {
                ("tokens", _) => tokens = Some(ids(&name, &view)?),
                ("rows", _) => rows = Some(ids(&name, &view)?),
                ("logits", _) => logits = Some(by_row(&name, &view, &[Dtype::F32, Dtype::BF16, Dtype::F16])?),
                (_, Some(Ok(layer))) => {
                    selected.push((layer, by_row(&name, &view, &[Dtype::U8, Dtype::BOOL])?));
                }
                _ => bail!(
                    "`{name}` is none of `tokens`, `rows`, `logits` and `selected.LAYER` (LAYER: a number from 0); rename it, or leave it out"
                ),
            }
        }
        selected.sort_by_key(|(layer, _)| *layer);
        let tokens = tokens.context("it has no tensor `tokens`; write the prompt's token ids, u32 or i64")?;
        let n = tokens.len();
        ensure!(n > 0, "`tokens` is empty; give at least one");
        let tables = || logits.iter().chain(selected.iter().map(|(_, table)| table));
        let first =
            tables().next().context("it has neither `logits` nor `selected.LAYER`; write one of them")?;
        let rows = match rows {
            Some(rows) => rows.into_iter().map(|row| row as usize).collect(),
            None => (n.saturating_sub(first.len())..n).collect::<Vec<_>>(),
        };
        ensure!(
            !rows.is_empty() && tables().all(|table| table.len() == rows.len()),
            "it has {} rows (`rows`, or the last tokens), and its tensors {:?}: they must be as many, and at least one",
            rows.len(),
            tables().map(Vec::len).collect::<Vec<_>>()
        );
        if let Some(row) = rows.iter().find(|row| **row >= n) {
            bail!("row {row} is not among its {n} tokens; rows count from 0");
        }
        Ok(Dump { tokens, rows, logits, selected })
    }

    /// The pass that gives our numbers: logits of all positions from the first row on.
    pub fn job(&self, place: &str) -> anyhow::Result<TraceJob> {
        let first = self.rows.iter().min().copied().unwrap_or(0);
        let logits = if self.logits.is_some() { self.tokens.len() - first } else { 0 };
        let request = ObserveRequest { logits, ..ObserveRequest::default() };
        TraceJob::new(request, self.tokens.clone(), Vec::new(), Vec::new(), None, place)
    }

    /// Differences by tensor. `logits` (positions, vocab): of the last positions. `tolerance`: the largest that is allowed.
    pub fn differences(
        &self,
        logits: &Array2<f32>,
        kinds: &[LayerKind],
        tolerance: f64,
    ) -> anyhow::Result<Vec<Difference>> {
        let n = self.tokens.len();
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
                    bail!(
                        "`selected.{layer}`: that layer has linear attention, which chooses no keys; leave it out"
                    )
                }
                None => bail!(
                    "`selected.{layer}`: the model's layers are 0 to {}; name one of these",
                    kinds.len().saturating_sub(1)
                ),
            };
            let ours = |row: usize| -> Option<Vec<f32>> {
                let first = window.map_or(0, |window| (row + 1).saturating_sub(window));
                Some((0..n).map(|key| f32::from(u8::from((first..=row).contains(&key)))).collect())
            };
            found.push(self.difference(format!("selected.{layer}"), theirs, &ours, tolerance)?);
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
                "`{tensor}` has rows of {} numbers, and ours have {}: {}",
                theirs.len(),
                ours.len(),
                if tensor == "logits" {
                    "one for each token of the vocabulary"
                } else {
                    "one for each of `tokens`"
                }
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
