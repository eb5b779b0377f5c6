//! A varied factor: its levels, and within-item trends over them.

use std::collections::BTreeMap;

use super::answer::BASE;
use super::cell::{Cell, per_item};
use super::estimate::{Estimate, slope};
use palimpsest_data::ground::order::{entry, unique};
use palimpsest_data::statistics::rank::spearman;

/// Levels that reach this value are lengths in tokens.
const TOKENS: f64 = 64.0;

const RANKS: (f64, f64) = (-1.0, 1.0);

const ORDERS: [&[&str]; 5] = [
    &["E0", "E1", "E2", "E3", "E4", "E5", "EN"],
    &["none", "part", "full"],
    &["none", "unrelated", "topic"],
    &["false", "true"],
    &["off", "on"],
];

/// Kind of levels; sets the unit of slopes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Slope per doubling; level 0 is excluded.
    Tokens,
    /// Slope per unit.
    Counts,
    /// Slope per level.
    Ordered,
    /// No slope.
    Names,
}

impl Scale {
    pub fn unit(self) -> &'static str {
        match self {
            Scale::Tokens => "a doubling",
            Scale::Counts => "for one more",
            Scale::Ordered | Scale::Names => "a level",
        }
    }

    pub fn is_ordered(self) -> bool {
        self != Scale::Names
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Level {
    pub name: String,
    pub number: Option<f64>,
    pub base: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Levels {
    pub factor: String,
    pub scale: Scale,
    /// Ascending; unordered levels keep first-seen order.
    pub all: Vec<Level>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Sweep {
    pub factor: String,
    pub axes: Vec<Levels>,
    /// Cell indices, each with its level on each axis.
    pub members: Vec<(usize, Vec<usize>)>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trend {
    /// Spearman correlation with the level, over items with three or more levels.
    pub spearman: Option<Estimate>,
    /// Slope per item, over items with two or more levels.
    pub slope: Option<Estimate>,
}

pub type ByItem<'a> = Vec<(&'a str, Vec<Option<f64>>)>;

/// Factors with the base level included, then grids.
pub(super) fn sweeps(cells: &[Cell]) -> Vec<Sweep> {
    let names = unique(cells.iter().map(|cell| cell.sweep.as_str()).filter(|name| *name != BASE));
    let (single, grids): (Vec<&str>, Vec<&str>) = names.into_iter().partition(|name| !name.contains('*'));
    single.into_iter().chain(grids).map(|factor| sweep(cells, factor)).collect()
}

fn sweep(cells: &[Cell], factor: &str) -> Sweep {
    let factors: Vec<&str> = factor.split('*').collect();
    let level = |cell: &Cell, factor: &str| cell.labels.get(factor).cloned();
    let of = |(at, cell): (usize, &Cell)| {
        let levels: Vec<String> = factors.iter().map(|f| level(cell, f)).collect::<Option<_>>()?;
        Some((at, levels, cell.sweep == factor || cell.is_base()))
    };
    // Grid cells at the base level of one factor may be stored under the other.
    let related =
        |cell: &Cell| cell.sweep == factor || cell.is_base() || factors.contains(&cell.sweep.as_str());
    let members: Vec<(usize, Vec<String>, bool)> =
        cells.iter().enumerate().filter(|(_, cell)| related(cell)).filter_map(of).collect();
    let axis = |(nth, factor): (usize, &&str)| {
        let own = members.iter().filter(|(.., own)| *own);
        let names = unique(own.map(|(_, levels, _)| levels[nth].clone()));
        let base = cells.iter().find(|cell| cell.is_base()).and_then(|cell| level(cell, factor));
        Levels::of(factor, names, base.as_deref())
    };
    let axes: Vec<Levels> = factors.iter().enumerate().map(axis).collect();
    let placed = |levels: &Vec<String>| -> Option<Vec<usize>> {
        let place = |(axis, name): (&Levels, &String)| axis.all.iter().position(|level| level.name == *name);
        axes.iter().zip(levels).map(place).collect()
    };
    let members = members.iter().filter_map(|(at, levels, _)| Some((*at, placed(levels)?))).collect();
    Sweep { factor: factor.to_owned(), axes, members }
}

impl Levels {
    fn of(factor: &str, names: Vec<String>, base: Option<&str>) -> Self {
        let numbers: Option<Vec<f64>> = names.iter().map(|name| name.parse().ok()).collect();
        let order = ORDERS.iter().find(|order| names.iter().all(|name| order.contains(&name.as_str())));
        let level = |name: &String| Level {
            name: name.clone(),
            number: name.parse().ok(),
            base: Some(name.as_str()) == base,
        };
        let mut all: Vec<Level> = names.iter().map(level).collect();
        let scale = match (&numbers, order) {
            (Some(numbers), _) => {
                all.sort_by(|a, b| a.number.unwrap_or(0.0).total_cmp(&b.number.unwrap_or(0.0)));
                if numbers.iter().any(|number| *number >= TOKENS) { Scale::Tokens } else { Scale::Counts }
            }
            (None, Some(order)) => {
                all.sort_by_key(|level| order.iter().position(|known| *known == level.name));
                Scale::Ordered
            }
            (None, None) => Scale::Names,
        };
        Levels { factor: factor.to_owned(), scale, all }
    }

    /// Slope coordinate of a level; `None` for 0 tokens.
    fn at(&self, level: usize) -> Option<f64> {
        let number = self.all.get(level)?.number;
        match self.scale {
            Scale::Tokens => number.filter(|tokens| *tokens > 0.0).map(f64::log2),
            Scale::Counts => number,
            Scale::Ordered => Some(level as f64),
            Scale::Names => None,
        }
    }
}

impl Sweep {
    /// Levels of the factor; for a grid, of the first factor.
    pub fn levels(&self) -> &Levels {
        &self.axes[0]
    }

    pub fn is_grid(&self) -> bool {
        self.axes.len() > 1
    }

    /// A number by item and level of the first axis, averaged over probes.
    pub fn by_item<'a>(&self, cells: &'a [Cell], of: impl Fn(&Cell) -> Option<f64>) -> ByItem<'a> {
        let mut items: Vec<(&str, Vec<Vec<f64>>)> = Vec::new();
        for (at, levels) in &self.members {
            let cell = &cells[*at];
            let new = || (cell.item.as_str(), vec![Vec::new(); self.levels().all.len()]);
            let (_, values) = entry(&mut items, |(item, _)| *item == cell.item, new);
            if let (Some(level), Some(value)) = (levels.first(), of(cell)) {
                values[*level].push(value);
            }
        }
        let mean = |values: &Vec<f64>| {
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        items.into_iter().map(|(item, values)| (item, values.iter().map(mean).collect())).collect()
    }

    fn at_levels(
        &self,
        items: &ByItem<'_>,
        estimate: impl Fn(&[f64]) -> Option<Estimate>,
    ) -> Vec<Option<Estimate>> {
        let at = |level: usize| items.iter().filter_map(|(_, values)| values[level]).collect::<Vec<f64>>();
        (0..self.levels().all.len()).map(|level| estimate(&at(level))).collect()
    }

    pub fn shares(&self, items: &ByItem<'_>) -> Vec<Option<Estimate>> {
        self.at_levels(items, |values| Estimate::between(values, (0.0, 1.0)))
    }

    pub fn means(&self, items: &ByItem<'_>) -> Vec<Option<Estimate>> {
        self.at_levels(items, Estimate::of)
    }

    pub fn trend(&self, items: &ByItem<'_>) -> Trend {
        let levels = self.levels();
        let (mut slopes, mut ranks) = (Vec::new(), Vec::new());
        for (_, values) in items.iter().filter(|_| levels.scale.is_ordered()) {
            let known = || values.iter().enumerate().filter_map(|(level, value)| Some((level, (*value)?)));
            let (x, y): (Vec<f64>, Vec<f64>) =
                known().filter_map(|(level, value)| Some((levels.at(level)?, value))).unzip();
            slopes.extend(slope(&x, &y));
            let (order, value): (Vec<f64>, Vec<f64>) =
                known().map(|(level, value)| (level as f64, value)).unzip();
            ranks.extend(spearman(&order, &value));
        }
        Trend { spearman: Estimate::between(&ranks, RANKS), slope: Estimate::of(&slopes) }
    }

    /// Within-item Spearman correlation of two numbers over levels.
    pub fn together(&self, first: &ByItem<'_>, second: &ByItem<'_>) -> Option<Estimate> {
        let by_item: BTreeMap<&str, &Vec<Option<f64>>> =
            second.iter().map(|(item, values)| (*item, values)).collect();
        let of = |(item, values): &(&str, Vec<Option<f64>>)| {
            let both = values.iter().zip(*by_item.get(item)?).filter_map(|(a, b)| a.zip(*b));
            let (a, b): (Vec<f64>, Vec<f64>) = both.unzip();
            spearman(&a, &b)
        };
        Estimate::between(&first.iter().filter_map(of).collect::<Vec<_>>(), RANKS)
    }

    pub fn against_base(&self, items: &ByItem<'_>) -> Option<Vec<Option<Estimate>>> {
        let base = self.levels().all.iter().position(|level| level.base)?;
        let difference = |level: usize| {
            let of = |(_, values): &(&str, Vec<Option<f64>>)| Some(values[level]? - values[base]?);
            Estimate::of(&items.iter().filter_map(of).collect::<Vec<_>>()).filter(|_| level != base)
        };
        Some((0..self.levels().all.len()).map(difference).collect())
    }

    /// Means over items, by level of the first factor, then of the second.
    pub fn grid(&self, cells: &[Cell], of: impl Fn(&Cell) -> Option<f64>) -> Vec<Vec<Option<Estimate>>> {
        let columns = self.axes.get(1).map_or(0, |axis| axis.all.len());
        let mut members: Vec<Vec<Vec<&Cell>>> = vec![vec![Vec::new(); columns]; self.levels().all.len()];
        for (at, levels) in &self.members {
            if let [row, column] = levels[..] {
                members[row][column].push(&cells[*at]);
            }
        }
        let mean = |cells: &Vec<&Cell>| Estimate::of(&per_item(cells.iter().copied(), &of));
        members.iter().map(|row| row.iter().map(mean).collect()).collect()
    }
}
