//! A standalone HTML file: the page with embedded replies for some answers.
//!
//! Attention by layer is quantised to a byte per number (error at most 0.2% of the maximum per row and layer). Single heads and comparisons
//! are omitted.

use serde_json::{Map, Value, json};

use super::case::Case;
use super::maps;
use super::page::Parts;
use super::replies::runs_json;
use super::state::{Runs, Shared};
use super::table::Table;

const SAMPLED: usize = 6;

/// Answers that have one of the words in each named column.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Alternative columns, and the accepted words.
    pub wanted: Vec<(Vec<&'static str>, Vec<String>)>,
}

impl Filter {
    /// Requires one of the words in one of the columns; ignored without words.
    pub fn push(&mut self, columns: &[&'static str], words: &[String]) {
        if !words.is_empty() {
            self.wanted.push((columns.to_vec(), words.to_vec()));
        }
    }

    pub fn rows(&self, table: &Table) -> Vec<usize> {
        let has = |row: usize, (columns, words): &(Vec<&'static str>, Vec<String>)| {
            let known = columns.iter().filter_map(|name| table.column(name));
            known.map(|column| column.values.cell(row)).any(|cell| words.contains(&cell))
        };
        (0..table.n).filter(|row| self.wanted.iter().all(|one| has(*row, one))).collect()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// Page rows in page order.
    pub rows: Vec<usize>,
    pub of: usize,
    /// Estimated file size, from a sample of the answers.
    pub bytes: u64,
}

pub fn contents(runs: &Shared, parts: &Parts, filter: &Filter) -> std::io::Result<Contents> {
    let held = runs.held();
    let table = Table::of(&held);
    let rows = filter.rows(&table);
    let step = rows.len().div_ceil(SAMPLED).max(1);
    let sampled: Vec<usize> = rows.iter().copied().step_by(step).collect();
    let sizes = sampled.iter().map(|row| {
        let replies = of_row(&held, *row, 0);
        replies.iter().map(|(address, reply)| address.len() + reply.to_string().len() + 8).sum::<usize>()
            as u64
    });
    let each = sizes.sum::<u64>() / sampled.len().max(1) as u64;
    let page = parts.page(None)?.html.len() as u64;
    let table = serde_json::to_string(&table.select(&rows)).map_or(0, |text| text.len() as u64);
    let known = runs_json(&held, None).to_string().len() as u64;
    Ok(Contents { bytes: page + table + known + each * rows.len() as u64, of: held.count(), rows })
}

/// Replies about one row, renumbered for the file.
fn of_row(runs: &Runs, row: usize, number: usize) -> Vec<(String, Value)> {
    let Some((run, folder, at)) = runs.located(row) else { return Vec::new() };
    let case = Case::open(folder, at);
    let mut replies = vec![(format!("/api/case?row={number}"), case.json(number, run))];
    if let Some(attention) = &case.attention {
        replies.push((format!("/api/layers?row={number}"), maps::layers_in_bytes(attention)));
    }
    replies
}

pub fn file(runs: &Shared, parts: &Parts, contents: &Contents) -> std::io::Result<String> {
    // The table includes these answers' ranks.
    for row in &contents.rows {
        let job = runs.held().located(*row).map(|(run, folder, at)| (run, at, folder.rank_job(at)));
        if let Some((run, at, job)) = job {
            runs.rank(run, at, &job);
        }
    }
    let held = runs.held();
    let table = Table::of(&held).select(&contents.rows);
    let mut replies = Map::new();
    for (number, row) in contents.rows.iter().enumerate() {
        replies.extend(of_row(&held, *row, number));
    }
    replies.insert("/api/runs".to_owned(), runs_json(&held, None));
    replies.insert("/api/table".to_owned(), serde_json::to_value(&table).unwrap_or_default());
    let notes = [
        format!("{} of {} answers", contents.rows.len(), contents.of),
        "attention by layer is in 8 bits: within 0.2% of the largest number of its row and layer".to_owned(),
        "single heads and comparisons are left out: palimpsest view has them".to_owned(),
    ];
    let embedded = json!({"stamp": held.stamp(), "notes": notes, "replies": replies});
    Ok(parts.page(Some(&embedded.to_string()))?.html)
}
