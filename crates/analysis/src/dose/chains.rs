//! Chains of values: likelihood of the first and last value, errors, and accuracy by number of updates.
//!
//! PI-LLM (arXiv 2506.08184) finds that accuracy falls with the logarithm of the number of updates, and that errors are old values. Here
//! accuracy is that of the choice among all values of a probe.

use std::collections::BTreeMap;

use super::Doses;
use super::answer::Chosen;
use super::cell::{Cell, per_item};
use super::estimate::{Estimate, slope};

#[derive(Debug, Clone, PartialEq)]
pub struct ChainLevel {
    pub updates: usize,
    pub items: usize,
    /// Share of twins by their most likely value, over items.
    pub chosen: Vec<(Chosen, Estimate)>,
    pub chance: f64,
    /// Share of wrong choices that name an earlier value, over items with errors.
    pub old_of_errors: Option<Estimate>,
    /// From the first value to the last: log p minus that of values never given. Empty without such values.
    pub positions: Vec<Estimate>,
    /// Contrast of the current value with the last one replaced.
    pub contrast: Option<Estimate>,
}

impl ChainLevel {
    pub fn right(&self) -> Option<Estimate> {
        self.chosen.iter().find(|(chosen, _)| *chosen == Chosen::Current).map(|(_, share)| *share)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Chains {
    /// Factor that varies the number of updates, if any.
    pub factor: Option<String>,
    pub levels: Vec<ChainLevel>,
    /// Slope of the right share per doubling of updates, by item.
    pub right_slope: Option<Estimate>,
    pub contrast_slope: Option<Estimate>,
}

impl Chains {
    /// Returns `None` if no value is replaced twice.
    pub fn of(doses: &Doses) -> Option<Self> {
        let varied = doses.sweeps.iter().filter(|sweep| !sweep.is_grid()).find(|sweep| {
            let of = |(at, _): &(usize, Vec<usize>)| doses.cells[*at].updates;
            let counts: Vec<usize> = sweep.members.iter().map(of).filter(|updates| *updates > 0).collect();
            counts.iter().min() != counts.iter().max()
        });
        let cells: Vec<&Cell> = match varied {
            Some(sweep) => sweep.members.iter().map(|(at, _)| &doses.cells[*at]).collect(),
            None => doses.cells.iter().filter(|cell| cell.is_base()).collect(),
        };
        if cells.iter().all(|cell| cell.updates < 2) {
            return None;
        }
        let mut by_updates: BTreeMap<usize, Vec<&Cell>> = BTreeMap::new();
        for cell in cells.into_iter().filter(|cell| cell.updates > 0) {
            by_updates.entry(cell.updates).or_default().push(cell);
        }
        let slopes = |of: &dyn Fn(&Cell) -> Option<f64>| {
            let mut items: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
            for (updates, cells) in &by_updates {
                for (cell, value) in cells.iter().filter_map(|cell| Some((cell, of(cell)?))) {
                    items.entry(&cell.item).or_default().push(((*updates as f64).log2(), value));
                }
            }
            let of_item = |points: &Vec<(f64, f64)>| {
                let (x, y): (Vec<f64>, Vec<f64>) = points.iter().copied().unzip();
                slope(&x, &y)
            };
            Estimate::of(&items.values().filter_map(of_item).collect::<Vec<_>>())
        };
        Some(Chains {
            factor: varied.map(|sweep| sweep.factor.clone()),
            right_slope: slopes(&|cell| cell.number("choice")),
            contrast_slope: slopes(&Cell::u),
            levels: by_updates.iter().map(|(updates, cells)| level(*updates, cells)).collect(),
        })
    }

    /// True if the share of right choices never lies above chance, so that it cannot fall.
    pub fn is_floor(&self) -> bool {
        !self.levels.iter().any(|level| level.right().is_some_and(|share| share.is_above(level.chance)))
    }
}

fn level(updates: usize, cells: &[&Cell]) -> ChainLevel {
    let share = |of: &dyn Fn(&Cell) -> Option<f64>| Estimate::share(&per_item(cells.iter().copied(), of));
    let mean = |of: &dyn Fn(&Cell) -> Option<f64>| Estimate::of(&per_item(cells.iter().copied(), of));
    let of_sort =
        |chosen: Chosen| share(&|cell| cell.chosen.get(&chosen).copied()).map(|share| (chosen, share));
    let old_of_errors = share(&|cell| {
        let of = |chosen| cell.chosen.get(&chosen).copied().unwrap_or(0.0);
        let old = of(Chosen::First) + of(Chosen::Old);
        let wrong = old + of(Chosen::Absent);
        (wrong > 0.0).then(|| old / wrong)
    });
    let length = cells.iter().map(|cell| cell.chain.len()).min().unwrap_or(0);
    ChainLevel {
        updates,
        items: palimpsest_data::ground::order::unique(cells.iter().map(|cell| cell.item.as_str())).len(),
        chosen: Chosen::ALL.into_iter().filter_map(of_sort).collect(),
        chance: cells.iter().map(|cell| cell.chance).sum::<f64>() / cells.len() as f64,
        old_of_errors,
        positions: (0..length).filter_map(|at| mean(&|cell| cell.chain.get(at).copied())).collect(),
        contrast: mean(&Cell::u),
    }
}
