//! The first columns of every table: which run, model and setting a row is of; data and judge where they differ.

use super::systems::{Group, System};
use crate::ground::sheet::{Column, cell};

/// Which of them a table needs.
pub(super) struct Heads {
    datasets: bool,
    judges: bool,
}

impl Heads {
    /// The columns that some rows need; absent without rows.
    pub(super) fn of(rows: &[&System<'_>]) -> Option<Self> {
        let first = rows.first()?.group;
        let differ = |same: fn(&Group<'_>, &Group<'_>) -> bool| rows.iter().any(|r| !same(&r.group, &first));
        Some(Heads {
            datasets: differ(|a, b| a.dataset == b.dataset),
            judges: differ(|a, b| a.judge == b.judge),
        })
    }

    pub(super) fn columns(&self) -> Vec<Column> {
        let mut columns: Vec<Column> = ["run", "model", "setting"].map(Column::text).into();
        columns.extend(self.of_groups());
        columns
    }

    /// Data and judge, where they differ.
    pub(super) fn of_groups(&self) -> Vec<Column> {
        let names = self.datasets.then_some("data").into_iter().chain(self.judges.then_some("judge"));
        names.map(Column::text).collect()
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

    /// The cells of [`Heads::of_groups`].
    pub(super) fn of_group(&self, row: &System<'_>) -> Vec<Vec<String>> {
        let dataset = self.datasets.then(|| cell(row.group.dataset));
        dataset.into_iter().chain(self.judges.then(|| cell(row.group.judge.unwrap_or("none")))).collect()
    }
}
