//! The paper's tables of results, from the graded questions of any number of runs: 1, 3, 11, 12 and 13, and figure 3.

mod accuracy;
mod columns;
mod heads;
mod paired;
mod systems;
mod waterfall;

use crate::benchmarks::{Chart, Graded, Table, TableOptions};

/// Those that the rows give.
pub(super) fn tables(graded: &[Graded<'_>], options: TableOptions) -> Vec<Table> {
    let systems = systems::systems(graded);
    let tables = [
        accuracy::table_1(&systems),
        paired::table_3(&systems),
        accuracy::table_11(&systems, options),
        paired::table_12(&systems, options),
        accuracy::table_13(&systems),
        waterfall::figure_3(&systems),
    ];
    tables.into_iter().flatten().collect()
}

/// Figure 3, where any run has what it needs.
pub(super) fn charts(graded: &[Graded<'_>]) -> Vec<Chart> {
    waterfall::chart(&systems::systems(graded)).into_iter().collect()
}
