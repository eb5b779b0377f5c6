//! Agreement of blind judges with data labels: Cohen's kappa and confusion tables.

use std::collections::BTreeMap;

use palimpsest_data::benchmarks::{LabelCheck, Table};
use palimpsest_data::ground::sheet::{Column, Columns};
use palimpsest_data::statistics::kappa::{Weights, confusion, kappa};
use palimpsest_run::runs::labels::{LabelRow, units};
use palimpsest_run::runs::plan::PlannedCase;

#[derive(Debug, Clone, PartialEq)]
pub struct LabelAgreement {
    pub judge: String,
    pub units: usize,
    pub said: usize,
    pub agreed: usize,
    pub table: Vec<Vec<usize>>,
    pub kappa: Option<f64>,
}

/// Agreement of each judge under its latest instructions. The last row per unit counts.
pub fn label_agreement(check: &LabelCheck, plan: &[PlannedCase], rows: &[LabelRow]) -> Vec<LabelAgreement> {
    let mut last: Vec<(&str, &str)> = Vec::new();
    for row in rows {
        last.retain(|(judge, _)| *judge != row.judge);
        last.push((&row.judge, &row.rubric));
    }
    let asked = units(check, plan);
    let is_asked = |row: &LabelRow| {
        asked.iter().any(|(case, at)| {
            let unit = case.probes.get(*at).and_then(|probe| probe.facets.get(check.unit));
            case.case == row.case && unit == Some(&row.unit)
        })
    };
    let place = |value: &str| check.values.iter().position(|known| *known == value);
    let of = |(judge, rubric): (&str, &str)| {
        let own = rows.iter().filter(|row| row.judge == judge && row.rubric == rubric && is_asked(row));
        let own: BTreeMap<(&str, &str), &LabelRow> =
            own.map(|row| ((row.case.as_str(), row.unit.as_str()), row)).collect();
        let pairs = own.values().filter_map(|row| Some((place(&row.label)?, place(row.said.as_deref()?)?)));
        let table = confusion(pairs, check.values.len());
        let agreed = table.iter().enumerate().filter_map(|(at, row)| row.get(at)).sum();
        let said = table.iter().flatten().sum();
        let kappa = kappa(&table, Weights::Plain);
        LabelAgreement { judge: judge.to_owned(), units: asked.len(), said, agreed, table, kappa }
    };
    last.into_iter().map(of).collect()
}

impl LabelAgreement {
    /// Example: `kappa 0.55, 63 of 90 agree`, plus the number without a parsed word.
    pub fn line(&self) -> String {
        let kappa = self.kappa.map_or_else(|| "no kappa".to_owned(), |kappa| format!("kappa {kappa:.3}"));
        let silent = match self.units.saturating_sub(self.said) {
            0 => String::new(),
            n => format!(" (left out without a label: {n})"),
        };
        format!("{kappa}, {} of {} agree{silent}", self.agreed, self.said)
    }
}

/// One row per judge and label: the confusion counts. `run` names the run.
pub fn label_table(check: &LabelCheck, run: &str, agreements: &[LabelAgreement]) -> Option<Table> {
    let rows = agreements.iter().flat_map(|one| {
        check.values.iter().zip(&one.table).map(move |(label, counts)| (&*one.judge, *label, counts))
    });
    let mut table = Columns::of(rows)
        .text("run", |_| run)
        .text("judge", |(judge, ..)| judge)
        .text(check.facet, |(_, label, _)| label);
    for (at, value) in check.values.iter().enumerate() {
        table = table.column(Column::number(*value).under("said"), |(.., counts)| counts[at]);
    }
    let notes = agreements.iter().map(|one| format!("{}: {}", one.judge, one.line())).collect();
    let title = format!("the data's {} beside blind judges' labels: Cohen's kappa", check.facet);
    let (key, sheet) = (format!("{}-check", check.facet), table.sheet(notes));
    (!agreements.is_empty()).then_some(Table { key, title, sheet })
}
