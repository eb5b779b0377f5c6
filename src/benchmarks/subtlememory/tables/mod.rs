//! The paper's tables of results, from the graded questions of any number of runs: 1, 3, 11, 12 and 13, and figure 3.

mod accuracy;
mod columns;
mod heads;
mod paired;
mod systems;
mod waterfall;

use crate::benchmarks::{CUT_MARK, Chart, Graded, Table};

/// Those that the rows give.
pub(super) fn tables(graded: &[Graded<'_>]) -> Vec<Table> {
    let systems = systems::systems(graded);
    let tables = [
        accuracy::table_1(&systems),
        paired::table_3(&systems),
        accuracy::table_11(&systems),
        paired::table_12(&systems),
        accuracy::table_13(&systems),
        waterfall::figure_3(&systems),
    ];
    let mut tables: Vec<Table> = tables.into_iter().flatten().collect();
    let notes: Vec<String> = systems.iter().filter_map(systems::System::cut_note).collect();
    let is_marked =
        |table: &Table| table.sheet.rows.iter().flatten().flatten().any(|line| line.ends_with(CUT_MARK));
    for table in tables.iter_mut().filter(|table| is_marked(table)) {
        table.sheet.notes.extend(notes.iter().cloned());
    }
    tables
}

/// Figure 3, where any run has what it needs.
pub(super) fn charts(graded: &[Graded<'_>]) -> Vec<Chart> {
    waterfall::chart(&systems::systems(graded)).into_iter().collect()
}
