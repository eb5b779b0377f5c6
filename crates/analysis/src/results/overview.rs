//! Models by benchmark and condition.
//!
//! Each benchmark defines its own number, so columns are never averaged. Further numbers of a model in a column (other judges or runs) get
//! extra rows, labelled with their source.

use std::collections::BTreeMap;

use super::sheets::{ResultRow, marked, short_names};
use palimpsest_data::ground::order::unique;
use palimpsest_data::ground::sheet::{Column, Sheet, cell};
use palimpsest_run::runs::condition::label;

/// Benchmarks, models and conditions keep first-seen order.
pub fn overview(rows: &[ResultRow]) -> Sheet {
    let benchmarks = unique(rows.iter().map(|row| row.benchmark));
    let places = |benchmark: &&'static str| {
        let own = rows.iter().filter(|row| row.benchmark == *benchmark);
        unique(own.map(|row| (row.benchmark, &*row.condition)))
    };
    let columns: Vec<(&str, &str)> = benchmarks.iter().flat_map(places).collect();
    let names = &short_names(rows);
    let mut lines = Vec::new();
    for model in unique(rows.iter().map(|row| &*row.system)) {
        let own = rows.iter().filter(|row| row.system == model);
        let at = |place: &(&str, &str)| -> Vec<&ResultRow> {
            own.clone().filter(|row| (row.benchmark, &*row.condition) == *place).collect()
        };
        let found: Vec<Vec<&ResultRow>> = columns.iter().map(at).collect();
        for nth in 0..found.iter().map(Vec::len).max().unwrap_or(0) {
            let mut line = vec![cell(if nth == 0 { model } else { "" })];
            line.extend(found.iter().map(|rows| {
                let whose = (rows.len() > 1).then_some(names);
                rows.get(nth).map_or_else(|| cell("-"), |row| cell_of(row, whose))
            }));
            lines.push(line);
        }
    }
    let mut head = vec![Column::text("model")];
    head.extend(columns.iter().map(|(benchmark, condition)| {
        let alone = columns.iter().filter(|(other, _)| other == benchmark).count() == 1;
        let name = if alone && *condition == label("") { "overall" } else { *condition };
        Column::number(name).under(*benchmark)
    }));
    let mut notes = vec!["accuracy in %, with right/asked and the 95% interval below it".to_owned()];
    for benchmark in &benchmarks {
        let mut tables =
            rows.iter().filter(|row| row.benchmark == *benchmark).filter_map(|row| row.table.as_ref());
        notes.extend(tables.next().map(|table| match (table.most, table.overall.of_cells) {
            (Some(most), _) => format!("{benchmark}: mean score in % of {most}"),
            (None, true) => format!("{benchmark}: mean of the cells"),
            (None, false) => format!("{benchmark}: mean over all questions"),
        }));
    }
    if rows.iter().any(|row| row.truncated > 0) {
        notes.push("* some histories were truncated".to_owned());
    }
    let one_condition = columns.iter().all(|(_, condition)| *condition == columns[0].1);
    for row in rows {
        let mut whose = format!("{}, {}", row.benchmark, row.system);
        if !one_condition {
            whose += &format!(" ({})", row.condition);
        }
        notes.extend(row.caveats(&whose, ""));
    }
    let judges = rows.iter().filter_map(|row| Some((row.benchmark, row.judged_by_among(names)?)));
    notes.extend(unique(judges).iter().map(|(benchmark, by)| format!("{benchmark}: judged by {by}")));
    Sheet { columns: head, rows: lines, notes }
}

/// `whose`: judge names, if the cell must state its source.
fn cell_of(row: &ResultRow, whose: Option<&BTreeMap<&str, &str>>) -> Vec<String> {
    let star = if row.truncated > 0 { "*" } else { "" };
    let lines = row.overall().unwrap_or_else(|| cell(row.nothing()));
    let mut lines = marked(lines, &format!("{}{star}", row.mark()));
    if let Some(names) = whose {
        lines.push(format!("{}, {}", row.judged_by_among(names).as_deref().unwrap_or("no judge"), row.dir));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::metrics::{AccuracyTable, Overall};

    fn row(
        (benchmark, model): (&'static str, &str),
        (condition, judge): (&str, &str),
        numbers: Option<(f64, usize, usize)>,
        most: Option<u32>,
    ) -> ResultRow {
        let table = numbers.map(|(accuracy, correct, expected)| AccuracyTable {
            most,
            overall: Overall { accuracy: Some(accuracy), correct, expected, ..Overall::default() },
            ..AccuracyTable::default()
        });
        ResultRow {
            benchmark,
            system: model.to_owned(),
            dir: format!("runs/{judge}"),
            condition: label(condition).to_owned(),
            judge: Some(judge.to_owned()),
            truncated: usize::from(condition == "full"),
            table,
            ..ResultRow::default()
        }
    }

    #[test]
    fn a_model_has_one_row_over_all_benchmarks_and_further_ones_for_other_judges() {
        let rows = [
            row(("Ships", "m"), ("", "j"), Some((0.25, 2, 8)), None),
            row(("Pairs", "m"), ("first", "strict"), Some((0.5, 5, 10)), None),
            row(("Pairs", "m"), ("first", "lenient"), Some((0.6, 6, 10)), None),
            row(("Pairs", "n"), ("full", "strict"), None, None),
            row(("Lives", "n"), ("", "j"), Some((0.704, 0, 10)), Some(5)),
        ];
        let sheet = overview(&rows);
        let heads: Vec<(&str, &str)> =
            sheet.columns.iter().map(|column| (column.group.as_str(), column.name.as_str())).collect();
        let expected = [
            ("", "model"),
            ("Ships", "overall"),
            ("Pairs", "first"),
            ("Pairs", "full"),
            ("Lives", "overall"),
        ];
        assert_eq!(heads, expected);
        let first = |row: usize, column: usize| sheet.rows[row][column][0].as_str();
        assert_eq!((sheet.rows.len(), first(0, 0), first(1, 0), first(2, 0)), (3, "m", "", "n"));
        assert_eq!((first(0, 1), first(0, 2), first(1, 2), first(1, 1)), ("25.0", "50.0", "60.0", "-"));
        assert_eq!(sheet.rows[0][1], ["25.0", "2/8"]);
        assert!(sheet.rows[1][2].contains(&"lenient, runs/lenient".to_owned()), "{:?}", sheet.rows[1]);
        assert_eq!((first(2, 3), first(2, 4)), ("no verdicts*", "70.4"));
        assert!(sheet.notes.iter().any(|note| note == "Lives: mean score in % of 5"), "{:?}", sheet.notes);
    }
}
