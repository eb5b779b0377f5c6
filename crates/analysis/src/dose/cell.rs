//! An item at one level: contrasts of its twins, update effect, value prior, gate and related numbers.

use std::collections::BTreeMap;

use super::answer::{Answer, BASE, Chosen};
use palimpsest_data::benchmarks::dose::terms::{NO_OLD, NO_UPDATE, OTHER, PARAPHRASE, UPDATE};
use palimpsest_data::ground::order::entry;

#[derive(Debug, Clone, Default)]
pub struct Cell {
    pub item: String,
    pub family: String,
    pub probe: String,
    /// The varied factor, two joined by `*`, or [`BASE`].
    pub sweep: String,
    /// Case labels except the twin: the level of every factor.
    pub labels: BTreeMap<String, String>,
    /// Keyed by twin kind and order.
    pub contrasts: BTreeMap<(&'static str, &'static str), f64>,
    /// Share of update twins by their most likely value; empty if no value is right.
    pub chosen: BTreeMap<Chosen, f64>,
    pub chance: f64,
    pub exact: Option<f64>,
    pub updates: usize,
    /// Mean over update twins: log p of all values over time, oldest first, minus the mean over values never given. Empty without such
    /// values.
    pub chain: Vec<f64>,
    /// Right in both orders given the old session alone; `None` if not asked.
    pub old_alone: Option<bool>,
    pub new_alone: Option<bool>,
    /// True if both hold, here or, without such twins, at the base level.
    pub gate: Option<bool>,
    /// Attention, value norms and causal effects of update twins, by name.
    pub numbers: BTreeMap<String, f64>,
    pub by_layer: BTreeMap<String, Vec<f64>>,
}

/// Numbers of every cell, in the order of the table.
pub const NUMBERS: [&str; 13] = [
    "c_ab",
    "c_ba",
    "u",
    "b",
    "no_update",
    "no_old",
    "other",
    "paraphrase",
    "over_updating",
    "choice",
    "exact",
    "primacy",
    "recency",
];

impl Cell {
    /// Mean contrast over both orders, where the value prior cancels; `None` if either is missing.
    pub fn mean(&self, kind: &'static str) -> Option<f64> {
        let of = |order| self.contrasts.get(&(kind, order));
        Some((of("ab")? + of("ba")?) / 2.0)
    }

    pub fn u(&self) -> Option<f64> {
        self.mean(UPDATE)
    }

    pub fn number(&self, name: &str) -> Option<f64> {
        let update = |order| self.contrasts.get(&(UPDATE, order)).copied();
        match name {
            "c_ab" => update("ab"),
            "c_ba" => update("ba"),
            "u" => self.u(),
            "b" => Some((update("ab")? - update("ba")?) / 2.0),
            "no_update" => self.mean(NO_UPDATE),
            "no_old" => self.mean(NO_OLD),
            "other" => self.mean(OTHER),
            "paraphrase" => self.mean(PARAPHRASE),
            "over_updating" => self.mean(NO_UPDATE).map(|held| (-held).max(0.0)),
            "choice" => self.chosen.get(&Chosen::Current).copied(),
            "exact" => self.exact,
            "primacy" => self.chain.first().copied(),
            "recency" => self.chain.last().copied(),
            other => self.numbers.get(other).copied(),
        }
    }

    pub fn is_base(&self) -> bool {
        self.sweep == BASE
    }

    /// Above 0 in both orders; `None` if either is missing.
    fn is_right(&self, kind: &'static str) -> Option<bool> {
        let of = |order| self.contrasts.get(&(kind, order));
        Some(*of("ab")? > 0.0 && *of("ba")? > 0.0)
    }
}

pub(super) fn cells(answers: &[Answer]) -> Vec<Cell> {
    let mut places: BTreeMap<(&str, &str, &str, Vec<&str>), usize> = BTreeMap::new();
    let mut groups: Vec<Vec<&Answer>> = Vec::new();
    for answer in answers.iter().filter(|answer| !answer.is_blind()) {
        let level = |factor| answer.labels.get(factor).map_or("", String::as_str);
        let levels = match answer.sweep.as_str() {
            BASE => Vec::new(),
            sweep => sweep.split('*').map(level).collect(),
        };
        let key = (answer.item.as_str(), answer.probe.as_str(), answer.sweep.as_str(), levels);
        let place = *places.entry(key).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[place].push(answer);
    }
    groups.iter().filter_map(|group| of_answers(group)).collect()
}

fn of_answers(answers: &[&Answer]) -> Option<Cell> {
    let first = answers.first()?;
    let contrasts = answers.iter().map(|answer| (answer.twin, answer.contrast));
    let updates: Vec<&&Answer> = answers.iter().filter(|answer| answer.is_update()).collect();
    // Twins without an update differ in the number of updates.
    let mut labels = updates.first().map_or(&first.labels, |update| &update.labels).clone();
    labels.remove("twin");
    let mut cell = Cell {
        item: first.item.clone(),
        family: first.family.clone(),
        probe: first.probe.clone(),
        sweep: first.sweep.clone(),
        labels,
        contrasts: grouped(contrasts).into_iter().map(|(twin, values)| (twin, mean(&values))).collect(),
        ..Cell::default()
    };
    cell.old_alone = cell.is_right(NO_UPDATE);
    cell.new_alone = cell.is_right(NO_OLD);
    if updates.is_empty() {
        return Some(cell);
    }
    let choosing: Vec<&&&Answer> = updates.iter().filter(|answer| answer.has_value).collect();
    let share = |chosen: Chosen| {
        let of = choosing.iter().filter(|answer| answer.chosen() == chosen).count();
        of as f64 / choosing.len() as f64
    };
    if !choosing.is_empty() {
        cell.chosen = Chosen::ALL.into_iter().map(|chosen| (chosen, share(chosen))).collect();
    }
    cell.chance = mean(&updates.iter().map(|answer| answer.chance()).collect::<Vec<_>>());
    let exact: Vec<f64> =
        updates.iter().filter_map(|answer| answer.exact).map(|right| f64::from(u8::from(right))).collect();
    cell.exact = (!exact.is_empty()).then(|| mean(&exact));
    cell.updates = updates.iter().map(|answer| answer.updates()).max().unwrap_or(0);
    let chains = updates.iter().filter(|answer| !answer.absent.is_empty());
    let chains: Vec<Vec<f64>> = chains
        .map(|answer| {
            let never = mean(&answer.absent);
            answer.chain.iter().map(|log_p| log_p - never).collect()
        })
        .collect();
    cell.chain = mean_of(chains.iter());
    let numbers = updates.iter().map(|answer| answer.attention.means.iter().chain(&answer.effects));
    let numbers = grouped(numbers.flatten().map(|(name, number)| (name.clone(), *number)));
    cell.numbers = numbers.into_iter().map(|(name, all)| (name, mean(&all))).collect();
    let layers = grouped(updates.iter().flat_map(|answer| &answer.attention.by_layer));
    cell.by_layer = layers.into_iter().map(|(name, all)| (name.clone(), mean_of(all.into_iter()))).collect();
    Some(cell)
}

fn grouped<K: Ord, V>(all: impl Iterator<Item = (K, V)>) -> BTreeMap<K, Vec<V>> {
    let mut groups: BTreeMap<K, Vec<V>> = BTreeMap::new();
    all.for_each(|(key, value)| groups.entry(key).or_default().push(value));
    groups
}

pub(super) fn gate(cells: &mut [Cell]) {
    let base: BTreeMap<(String, String), [Option<bool>; 2]> = (cells.iter())
        .filter(|cell| cell.is_base())
        .map(|cell| ((cell.item.clone(), cell.probe.clone()), [cell.old_alone, cell.new_alone]))
        .collect();
    for cell in cells {
        let at_base = base.get(&(cell.item.clone(), cell.probe.clone())).copied().unwrap_or_default();
        let old = cell.old_alone.or(at_base[0]);
        let new = cell.new_alone.or(at_base[1]);
        cell.gate = old.zip(new).map(|(old, new)| old && new);
    }
}

pub fn per_item<'a>(
    cells: impl IntoIterator<Item = &'a Cell>,
    of: impl Fn(&Cell) -> Option<f64>,
) -> Vec<f64> {
    let mut items: Vec<(&str, Vec<f64>)> = Vec::new();
    for cell in cells {
        if let Some(value) = of(cell) {
            entry(&mut items, |(item, _)| *item == cell.item, || (&cell.item, Vec::new())).1.push(value);
        }
    }
    items.iter().map(|(_, values)| mean(values)).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn mean_of<'a>(lists: impl Iterator<Item = &'a Vec<f64>> + Clone) -> Vec<f64> {
    let length = lists.clone().map(Vec::len).min().unwrap_or(0);
    let count = lists.clone().count() as f64;
    (0..length).map(|at| lists.clone().map(|list| list[at]).sum::<f64>() / count).collect()
}
