//! CSV table of dose runs: one row per item and level.

use std::collections::BTreeSet;

use super::Doses;
use super::answer::{BASE, Chosen};
use super::cell::{Cell, NUMBERS};
use super::sweep::Sweep;
use palimpsest_data::benchmarks::dose::terms::{NO_OLD, NO_UPDATE, OTHER, PARAPHRASE};
use palimpsest_data::ground::csv::CsvTable;

#[derive(Clone, Copy)]
struct Row<'a> {
    doses: &'a Doses,
    cell: &'a Cell,
    sweep: Option<&'a Sweep>,
}

impl Row<'_> {
    fn level(&self) -> String {
        let level = |factor: &str| self.cell.labels.get(factor).cloned().unwrap_or_default();
        let levels = self.sweep.iter().flat_map(|sweep| &sweep.axes).map(|axis| level(&axis.factor));
        levels.collect::<Vec<_>>().join("*")
    }
}

/// Several runs are told apart by a first column `run`.
pub fn csv(all: &[Doses]) -> Vec<u8> {
    let rows = all.iter().flat_map(rows);
    let numbers: BTreeSet<&str> = all.iter().flat_map(Doses::numbers).collect();
    let mut table = CsvTable::of(rows)
        .column_if(all.len() > 1, "run", |row| row.doses.run())
        .column("item", |row| &row.cell.item)
        .column("family", |row| &row.cell.family)
        .column("probe", |row| &row.cell.probe)
        .column("sweep", |row| row.sweep.map_or(BASE.to_owned(), |sweep| sweep.factor.clone()))
        .column("level", |row| row.level())
        .column("base", |row| row.cell.is_base());
    for name in NUMBERS {
        table = table.optional(name, |row| row.cell.number(name));
    }
    for kind in [NO_UPDATE, NO_OLD, OTHER, PARAPHRASE] {
        for order in ["ab", "ba"] {
            let name = format!("{}_{order}", kind.replace('-', "_"));
            table = table.optional(name, |row| row.cell.contrasts.get(&(kind, order)).copied());
        }
    }
    table = table
        .optional("right_with_old_alone", |row| row.cell.old_alone)
        .optional("right_with_new_alone", |row| row.cell.new_alone)
        .optional("gate", |row| row.cell.gate)
        .column("updates", |row| row.cell.updates)
        .column("chance", |row| row.cell.chance);
    for (chosen, name) in Chosen::ALL.into_iter().zip(["current", "first", "other_old", "absent"]) {
        table = table.optional(format!("chosen_{name}"), |row| row.cell.chosen.get(&chosen).copied());
    }
    for name in numbers {
        table = table.optional(name, |row| row.cell.number(name));
    }
    table.bytes()
}

fn rows(doses: &Doses) -> Vec<Row<'_>> {
    let cells = &doses.cells;
    let of_sweep = |sweep: &'_ Sweep| -> Vec<usize> { sweep.members.iter().map(|(at, _)| *at).collect() };
    let mut rows: Vec<Row<'_>> = Vec::new();
    for sweep in &doses.sweeps {
        let row = |at: usize| Row { doses, cell: &cells[at], sweep: Some(sweep) };
        rows.extend(of_sweep(sweep).into_iter().map(row));
    }
    if doses.sweeps.is_empty() {
        rows.extend(cells.iter().map(|cell| Row { doses, cell, sweep: None }));
    }
    rows
}
