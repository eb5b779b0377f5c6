//! Counts by stage, for `yield.csv`.

use std::collections::BTreeMap;

use super::stage_file::{Line, attempts, outcomes, taken};
use palimpsest_data::ground::csv::CsvTable;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Yield {
    pub stage: String,
    /// Rows that the stage took; so far, if it is not whole.
    pub rows: usize,
    pub attempts: usize,
    /// Questions to models.
    pub asks: usize,
    /// Rows of which at least one was made.
    pub accepted: usize,
    pub made: usize,
    /// Rows by the reason of their rejection.
    pub rejected: BTreeMap<String, usize>,
}

impl Yield {
    pub fn of(stage: &str, lines: &[Line]) -> Self {
        let mut counts = Yield { stage: stage.to_owned(), ..Yield::default() };
        for attempt in attempts(lines) {
            counts.attempts += 1;
            counts.asks += attempt.asked().count();
        }
        for outcome in outcomes(lines) {
            counts.rows += 1;
            counts.accepted += usize::from(!outcome.made.is_empty());
            counts.made += outcome.made.len();
            for rejected in &outcome.rejected {
                *counts.rejected.entry(rejected.reason.clone()).or_default() += 1;
            }
        }
        counts.rows = taken(lines).unwrap_or(counts.rows);
        counts
    }

    /// `check filled: 2; schema: 1`
    pub fn reasons(&self) -> String {
        let reasons = self.rejected.iter().map(|(reason, rows)| format!("{reason}: {rows}"));
        reasons.collect::<Vec<_>>().join("; ")
    }
}

/// The table of all stages that began.
pub fn csv(yields: &[Yield]) -> Vec<u8> {
    let table = CsvTable::of(yields)
        .column("stage", |counts| counts.stage.clone())
        .column("rows", |counts| counts.rows)
        .column("attempts", |counts| counts.attempts)
        .column("asks", |counts| counts.asks)
        .column("accepted", |counts| counts.accepted)
        .column("made", |counts| counts.made)
        .column("rejected", |counts| counts.rejected.values().sum::<usize>());
    table.column("reasons", Yield::reasons).bytes()
}
