//! The paper's result tables 1, 3, 11, 12 and 13, and figure 3, over all runs.

mod accuracy;
mod columns;
mod paired;
mod systems;
mod waterfall;

use crate::benchmarks::{CUT_MARK, Counts, Graded, Table};
use crate::statistics::bounded::Intervals;

pub(super) fn counts(graded: &[Graded<'_>], intervals: Intervals) -> Counts {
    let systems = systems::systems(graded);
    let tables = [
        accuracy::table_1(&systems),
        paired::table_3(&systems),
        accuracy::table_11(&systems, intervals),
        paired::table_12(&systems, intervals),
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
    Counts { tables, charts: waterfall::chart(&systems).into_iter().collect() }
}
