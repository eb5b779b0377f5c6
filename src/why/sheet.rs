//! Counts of labels: a row a type, probe and condition.

use super::labels::Labels;
use crate::benchmarks::Table;
use crate::ground::sheet::{Column, Sheet, cell};
use crate::run::condition::label;
use crate::run::why_rows::Label;

/// A count of labels.
type Counts = [usize; Label::ALL.len()];

/// A row a type, probe and condition, all types and probes last.
pub fn table(labels: &Labels, run: &str) -> Table {
    let mut groups: Vec<([String; 3], Counts)> = Vec::new();
    let mut all: Vec<(String, Counts)> = Vec::new();
    for answer in &labels.answers {
        let condition = label(&answer.row.condition).to_owned();
        let names = [condition.clone(), answer.kind.clone(), answer.dimension.clone()];
        add(&mut groups, names, answer.row.label);
        add(&mut all, condition, answer.row.label);
    }
    let conditions = all.len();
    let mut rows: Vec<Vec<Vec<String>>> = groups.iter().map(|(names, counts)| row(names, counts)).collect();
    rows.extend(
        all.iter()
            .map(|(condition, counts)| row(&[condition.clone(), "all".to_owned(), "all".to_owned()], counts)),
    );
    if conditions == 1 {
        rows.iter_mut().for_each(|row| drop(row.remove(0)));
    }
    let mut columns: Vec<Column> = ["condition", "type", "probe"].map(Column::text).to_vec();
    if conditions == 1 {
        columns.remove(0);
    }
    columns.push(Column::number("answers"));
    columns.extend(Label::ALL.map(|label| Column::number(label.key())));
    let mut notes = super::words::of_certificates(labels);
    notes.push(
        "an answer's row of why.jsonl has the reason for its label and the readings that it rests on (docs/why.md)".to_owned(),
    );
    Table {
        key: format!("why {run}").trim().replace(' ', "_"),
        title: format!("why answers are as they are, by verdicts of {}: {run}", labels.judges.join(", ")),
        sheet: Sheet { columns, rows, notes },
    }
}

fn add<K: PartialEq>(groups: &mut Vec<(K, Counts)>, names: K, label: Label) {
    let at = Label::ALL.iter().position(|known| *known == label).unwrap_or_default();
    match groups.iter_mut().find(|(known, _)| *known == names) {
        Some((_, counts)) => counts[at] += 1,
        None => {
            let mut counts = Counts::default();
            counts[at] = 1;
            groups.push((names, counts));
        }
    }
}

fn row(names: &[String; 3], counts: &Counts) -> Vec<Vec<String>> {
    let numbers = std::iter::once(counts.iter().sum::<usize>()).chain(counts.iter().copied());
    names.iter().map(cell).chain(numbers.map(|count| cell(count.to_string()))).collect()
}
