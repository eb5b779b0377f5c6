//! Models by benchmark and condition.
//!
//! Each benchmark defines its own number, so columns are never averaged. Further numbers of a model in a column (other judges or runs) get
//! extra rows, labelled with their source.

use std::collections::BTreeMap;

use super::sheets::{self, ResultRow, WARNED, marked};
use palimpsest_data::ground::order::entry;
use palimpsest_data::ground::sheet::{Column, Sheet, cell};
use palimpsest_run::runs::condition::label;
use palimpsest_run::runs::judge_name::short_judges;

/// A row of the general table, with its source.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    pub benchmark: &'a str,
    pub model: &'a str,
    pub row: &'a ResultRow,
}

/// Benchmarks, models and conditions keep first-seen order.
pub fn overview(entries: &[Entry<'_>]) -> Sheet {
    let mut heads: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut models: Vec<(&str, Vec<Vec<Option<&ResultRow>>>)> = Vec::new();
    for &Entry { benchmark, row, .. } in entries {
        let (_, conditions) = entry(&mut heads, |(name, _)| *name == benchmark, || (benchmark, Vec::new()));
        entry(conditions, |name| *name == row.condition, || &row.condition);
    }
    let columns: Vec<(&str, &str)> = heads
        .iter()
        .flat_map(|(benchmark, conditions)| conditions.iter().map(move |condition| (*benchmark, *condition)))
        .collect();
    for &Entry { benchmark, model, row } in entries {
        let place = columns.iter().position(|place| *place == (benchmark, &row.condition));
        let Some(place) = place else { continue };
        let (_, rows) = entry(&mut models, |(name, _)| *name == model, || (model, Vec::new()));
        entry(rows, |row| row[place].is_none(), || vec![None; columns.len()])[place] = Some(row);
    }
    let mut head = vec![Column::text("model")];
    let alone = |benchmark: &str| columns.iter().filter(|(other, _)| *other == benchmark).count() == 1;
    head.extend(columns.iter().map(|(benchmark, condition)| {
        let is_alone = *condition == label("") && alone(benchmark);
        Column::number(if is_alone { "overall" } else { *condition }).under(*benchmark)
    }));
    let names = &short_judges(entries.iter().filter_map(|entry| entry.row.judge.as_deref()));
    let lines = models.iter().flat_map(|(model, rows)| {
        rows.iter().enumerate().map(move |(at, row)| {
            let mut line = vec![cell(if at == 0 { (*model).to_owned() } else { String::new() })];
            line.extend(row.iter().enumerate().map(|(place, found)| {
                let several = rows.iter().filter(|row| row[place].is_some()).count() > 1;
                found.map_or_else(|| cell("-"), |row| cell_of(row, several.then_some(names)))
            }));
            line
        })
    });
    let rows: Vec<&ResultRow> = entries.iter().map(|entry| entry.row).collect();
    let mut notes = vec!["in %, below it right answers of all asked and the 95% interval".to_owned()];
    for (benchmark, _) in &heads {
        let of_benchmark = entries.iter().filter(|entry| entry.benchmark == *benchmark);
        if let Some(table) = of_benchmark.filter_map(|entry| entry.row.table.as_ref()).next() {
            let what = match (table.most, table.overall.of_cells) {
                (Some(most), _) => format!("mean score in % of {most}"),
                (None, true) => "mean of the cells".to_owned(),
                (None, false) => "mean over all probes".to_owned(),
            };
            notes.push(format!("{benchmark}: {what}"));
        }
    }
    if rows.iter().any(|row| row.truncated > 0) {
        notes.push("* some histories were truncated".to_owned());
    }
    for Entry { benchmark, model, row } in entries {
        let whose = match row.condition.as_str() {
            condition if columns.iter().all(|(_, other)| *other == condition) => {
                format!("{benchmark}, {model}")
            }
            condition => format!("{benchmark}, {model} ({condition})"),
        };
        if row.missing > 0 {
            notes.push(format!(
                "{whose}: {} of {} probes are missing, which were not asked yet; they count as wrong",
                row.missing, row.expected
            ));
        }
        notes.extend(row.apart.iter().map(|note| format!("{whose}: {note}")));
        notes.extend(row.about_cut().map(|about| format!("{whose}: {about}")));
        notes.extend(row.warning.as_ref().map(|warning| format!("{WARNED} {whose}: {warning}")));
    }
    let mut judges: Vec<(&str, String)> = Vec::new();
    for Entry { benchmark, row, .. } in entries {
        let by = row.judged_by_among(names).map(|by| (*benchmark, by));
        judges.extend(by.filter(|by| !judges.contains(by)));
    }
    notes.extend(judges.iter().map(|(benchmark, by)| format!("{benchmark}: judged by {by}")));
    Sheet { columns: head, rows: lines.collect(), notes }
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

/// One row per number, unrounded, with a benchmark column: for CSV.
pub fn overview_records(entries: &[Entry<'_>]) -> Sheet {
    let mut all = Sheet::default();
    for entry in entries {
        let Sheet { columns, rows, .. } = sheets::accuracy_records(std::slice::from_ref(entry.row));
        all.columns = [vec![Column::text("benchmark")], columns].concat();
        all.rows.extend(rows.into_iter().map(|row| [vec![cell(entry.benchmark)], row].concat()));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::metrics::{AccuracyTable, Overall};

    fn row(
        condition: &str,
        judge: &str,
        numbers: Option<(f64, usize, usize)>,
        most: Option<u32>,
    ) -> ResultRow {
        let table = numbers.map(|(accuracy, correct, expected)| AccuracyTable {
            most,
            overall: Overall { accuracy: Some(accuracy), correct, expected, ..Overall::default() },
            ..AccuracyTable::default()
        });
        ResultRow {
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
            ("Ships", "m", row("", "j", Some((0.25, 2, 8)), None)),
            ("Pairs", "m", row("first", "strict", Some((0.5, 5, 10)), None)),
            ("Pairs", "m", row("first", "lenient", Some((0.6, 6, 10)), None)),
            ("Pairs", "n", row("full", "strict", None, None)),
            ("Lives", "n", row("", "j", Some((0.704, 0, 10)), Some(5))),
        ];
        let entries: Vec<Entry<'_>> =
            rows.iter().map(|(benchmark, model, row)| Entry { benchmark, model, row }).collect();
        let sheet = overview(&entries);
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
        assert_eq!(overview_records(&entries).rows.len(), 5);
    }
}
