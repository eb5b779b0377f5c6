//! Table columns: run, model and setting, then all questions, relations and subtypes.

use std::collections::BTreeMap;

use super::super::terms::{
    COMPLEMENTARY, CONTRADICTORY, NUANCED, RELATION, RELATIONS, SINGLE_EVIDENCE, SUBTYPE,
};
use super::systems::{Group, System};
use crate::benchmarks::{Graded, Share};
use crate::ground::sheet::{self, Sheet, cell};
use crate::statistics::bounded::Stratum;

pub(super) const DECIMALS: u32 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
    /// Micro average.
    All,
    Relation(&'static str),
    Subtype(&'static str),
}

/// In the paper's order. Single evidence, absent from the paper, is shown only if present.
const COLUMNS: [Column; 9] = [
    Column::All,
    Column::Relation(COMPLEMENTARY),
    Column::Subtype("multi_evidence"),
    Column::Subtype("any_one"),
    Column::Subtype(SINGLE_EVIDENCE),
    Column::Relation(NUANCED),
    Column::Subtype("temporal"),
    Column::Subtype("contextual"),
    Column::Relation(CONTRADICTORY),
];

pub(super) fn columns_of(systems: &[&System<'_>]) -> Vec<Column> {
    let is_asked = |column: &Column| systems.iter().any(|system| column.share(system).of > 0);
    let single = Column::Subtype(SINGLE_EVIDENCE);
    COLUMNS.into_iter().filter(|column| *column != single || is_asked(column)).collect()
}

impl Column {
    pub(super) fn name(self) -> &'static str {
        match self {
            Column::All => "all",
            Column::Relation(name) | Column::Subtype(name) => name,
        }
    }

    pub(super) fn holds(self, outcome: &Graded<'_>) -> bool {
        match self {
            Column::All => true,
            Column::Relation(name) => outcome.facet(RELATION) == Some(name),
            Column::Subtype(name) => outcome.facet(SUBTYPE) == Some(name),
        }
    }

    pub(super) fn share(self, system: &System<'_>) -> Share {
        let own = system.outcomes.values().filter(|outcome| self.holds(outcome));
        Share::of(own.map(Graded::is_right))
    }

    /// Strata for intervals: relations (or unknown) for all questions, else the column itself.
    pub(super) fn strata<'s, 'a: 's>(
        self,
        questions: impl Iterator<Item = (&'s Graded<'a>, f64)>,
    ) -> Vec<Stratum> {
        let mut strata: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        let mut count = 0.0;
        for (outcome, number) in questions {
            let relation = RELATIONS.iter().position(|relation| outcome.facet(RELATION) == Some(*relation));
            let at = if self == Column::All { relation.unwrap_or(RELATIONS.len()) } else { 0 };
            strata.entry(at).or_default().push(number);
            count += 1.0;
        }
        strata.into_values().map(|units| Stratum { weight: units.len() as f64 / count, units }).collect()
    }
}

/// Leading columns; data and judge only if they differ.
pub(super) struct Heads {
    datasets: bool,
    judges: bool,
}

impl Heads {
    pub(super) fn of(rows: &[&System<'_>]) -> Option<Self> {
        let first = rows.first()?.group;
        let differ = |same: fn(&Group<'_>, &Group<'_>) -> bool| rows.iter().any(|r| !same(&r.group, &first));
        Some(Heads {
            datasets: differ(|a, b| a.dataset == b.dataset),
            judges: differ(|a, b| a.judge == b.judge),
        })
    }

    pub(super) fn columns(&self) -> Vec<sheet::Column> {
        let mut columns: Vec<sheet::Column> = ["run", "model", "setting"].map(sheet::Column::text).into();
        columns.extend(self.of_groups());
        columns
    }

    pub(super) fn of_groups(&self) -> Vec<sheet::Column> {
        let names = self.datasets.then_some("data").into_iter().chain(self.judges.then_some("judge"));
        names.map(sheet::Column::text).collect()
    }

    pub(super) fn cells(&self, row: &System<'_>) -> Vec<Vec<String>> {
        let mut cells = vec![
            cell(row.run),
            cell(row.group.model),
            cell(format!("{}{}", row.setting(), row.cuts(|_| true).mark())),
        ];
        cells.extend(self.of_group(row));
        cells
    }

    pub(super) fn of_group(&self, row: &System<'_>) -> Vec<Vec<String>> {
        let dataset = self.datasets.then(|| cell(row.group.dataset));
        dataset.into_iter().chain(self.judges.then(|| cell(row.group.judge.unwrap_or("none")))).collect()
    }
}

/// One row per system: percent per column, marked if histories were truncated, and a second line.
pub(super) fn shares(
    rows: &[&System<'_>],
    below: impl Fn(&System<'_>, Column, Share) -> String,
) -> Option<Sheet> {
    let heads = Heads::of(rows)?;
    let own = columns_of(rows);
    let mut columns = heads.columns();
    columns.extend(own.iter().map(|column| sheet::Column::number(column.name())));
    let cells = |row: &&System<'_>| {
        let numbers = own.iter().map(|column| {
            let share = column.share(row);
            let cuts = row.cuts(|outcome| column.holds(outcome));
            vec![format!("{}{}", share.percent(DECIMALS), cuts.mark()), below(row, *column, share)]
        });
        heads.cells(row).into_iter().chain(numbers).collect()
    };
    Some(Sheet { columns, rows: rows.iter().map(cells).collect(), notes: Vec::new() })
}
