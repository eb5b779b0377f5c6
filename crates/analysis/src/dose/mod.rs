//! Analysis of `dose` runs: how each factor changes the update effect, attention and causal effects.
//!
//! Log-probabilities of values ([`palimpsest_run::runs::rows::Contrast`]) give the update effect and the value prior of each item and
//! level; attention, measures of causes and effects on the contrast are added. Reads files only. Called by `dose`, `figures` and `report`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::lens::Layer;
use crate::lens::causes::Residues;
use crate::records;
use palimpsest_data::benchmarks::dose::DOSE;
use palimpsest_data::ground::order::unique;
use palimpsest_run::runs::store::RunFolder;

pub mod answer;
pub mod attention;
pub mod cell;
pub mod chains;
pub mod effects;
mod error;
pub mod estimate;
pub mod sweep;
pub mod table;
pub mod words;

use answer::Answer;
use cell::Cell;
use effects::Effects;
pub use error::DoseError;
use estimate::Estimate;
use sweep::Sweep;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DoseOptions {
    pub factor: Option<String>,
    pub gated: bool,
}

#[derive(Debug, Clone)]
pub struct Doses {
    pub dir: PathBuf,
    pub model: String,
    pub dataset: String,
    pub cells: Vec<Cell>,
    pub sweeps: Vec<Sweep>,
    /// Layers of the attention files; empty without attention.
    pub layers: Vec<Layer>,
    /// Share of blind twins that choose the current value, and the chance level.
    pub blind: Option<(Estimate, f64)>,
    /// Items that pass the gate, and items where it is known.
    pub gate: (usize, usize),
    pub without: usize,
    pub gated: bool,
    pub residues: Residues,
}

impl Doses {
    /// Reads a run folder; of several conditions, takes the plain one or the first.
    pub fn open(dir: &Path, options: &DoseOptions) -> Result<Self, DoseError> {
        Doses::of_run(RunFolder::read(dir)?, options)
    }

    pub fn of_run(run: RunFolder, options: &DoseOptions) -> Result<Self, DoseError> {
        if run.header.identity.benchmark != DOSE.name {
            let (dir, benchmark) = (run.dir, run.header.identity.benchmark);
            return Err(DoseError::OtherBenchmark { dir, benchmark });
        }
        let run = &run.condition("")?;
        let effects = Effects::read(&run.dir)?;
        let condition = run.answers.first().map_or("", |row| &row.condition);
        let (mut answers, mut layers, mut without) = (Vec::new(), Vec::new(), 0);
        for record in records::of(run, condition) {
            let Some(row) = record.row else { continue };
            let Some(mut answer) = Answer::of(&record, row) else {
                without += 1;
                continue;
            };
            if answer.is_update()
                && let Some(file) = &row.attention
            {
                let (of_store, measured) = attention::measure(&run.dir, file, row, &record.case.evidence)?;
                if layers.is_empty() {
                    layers = of_store;
                }
                answer.attention = measured;
            }
            answer.effects = effects.of_answer(row.key());
            answers.push(answer);
        }
        if answers.is_empty() {
            let reason = run.answers.iter().find_map(|row| row.error.clone());
            return Err(DoseError::NoContrast {
                dir: run.dir.clone(),
                answers: run.answers.len(),
                reason: reason.unwrap_or_else(|| "an endpoint does not give them".to_owned()),
            });
        }
        let blind = blind(&answers);
        let mut cells = cell::cells(&answers);
        cell::gate(&mut cells);
        let gate = gate(&cells);
        if options.gated {
            cells.retain(|cell| cell.gate == Some(true));
            if cells.is_empty() {
                return Err(DoseError::NoneGated { dir: run.dir.clone() });
            }
        }
        let mut sweeps = sweep::sweeps(&cells);
        if let Some(factor) = &options.factor {
            let known: Vec<String> = sweeps.iter().map(|sweep| sweep.factor.clone()).collect();
            sweeps.retain(|sweep| sweep.factor == *factor);
            if sweeps.is_empty() {
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                let (dir, factor) = (run.dir.clone(), factor.clone());
                return Err(DoseError::UnknownFactor { dir, factor, known });
            }
        }
        let identity = &run.header.identity;
        Ok(Doses {
            residues: Residues::of_contrasts(&run.dir)?,
            dir: run.dir.clone(),
            model: identity.model.name.clone(),
            dataset: identity.dataset.name.clone(),
            cells,
            sweeps,
            layers,
            blind,
            gate,
            without,
            gated: options.gated,
        })
    }

    /// The run folder's name.
    pub fn run(&self) -> String {
        let folder = self.dir.file_name().map(|name| name.to_string_lossy().into_owned());
        folder.unwrap_or_else(|| self.dir.display().to_string())
    }

    pub fn items(&self) -> Vec<&str> {
        unique(self.cells.iter().map(|cell| cell.item.as_str()))
    }

    /// True if all items are counted but only some pass the gate; numbers are then reported with and without the gate.
    pub fn has_others(&self) -> bool {
        let passed = self.cells.iter().filter(|cell| cell.gate == Some(true)).count();
        passed > 0 && passed < self.cells.len()
    }

    /// Sorted names of the numbers other than contrasts.
    pub fn numbers(&self) -> Vec<&str> {
        let all: BTreeSet<&str> =
            self.cells.iter().flat_map(|cell| cell.numbers.keys().map(String::as_str)).collect();
        all.into_iter().collect()
    }
}

/// Cells of a condition's contrasts, without attention and effects of sessions; empty for other benchmarks.
pub fn contrasts_of(run: &RunFolder, condition: &str) -> Vec<Cell> {
    let records = match run.header.identity.benchmark == DOSE.name {
        true => records::of(run, condition),
        false => Vec::new(),
    };
    let answers = records.iter().filter_map(|record| Answer::of(record, record.row?));
    cell::cells(&answers.collect::<Vec<_>>())
}

fn blind(answers: &[Answer]) -> Option<(Estimate, f64)> {
    let blind: Vec<&Answer> = answers.iter().filter(|answer| answer.is_blind()).collect();
    let chance = blind.iter().map(|answer| answer.chance()).sum::<f64>() / blind.len() as f64;
    let mut items: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for answer in &blind {
        items.entry(&answer.item).or_default().push(answer.right());
    }
    let right: Vec<f64> = items.values().map(|all| all.iter().sum::<f64>() / all.len() as f64).collect();
    Some((Estimate::share(&right)?, chance))
}

/// Items that pass the gate at their base level (any level if they have no base level), and items where it is known.
fn gate(cells: &[Cell]) -> (usize, usize) {
    let mut items: BTreeMap<&str, bool> = BTreeMap::new();
    for cell in cells {
        let Some(gate) = cell.gate else { continue };
        items.entry(&cell.item).and_modify(|known| *known &= gate).or_insert(gate);
    }
    (items.values().filter(|gate| **gate).count(), items.len())
}
