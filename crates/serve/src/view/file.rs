//! A standalone HTML file: the page with embedded replies for some answers.
//!
//! Attention by layer is quantised to a byte per number (error at most 0.2% of the maximum per row and layer). Single heads and comparisons
//! are omitted.

use std::io;

use serde_json::{Map, json};

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

pub fn contents(runs: &Shared, parts: &Parts, filter: &Filter) -> io::Result<Contents> {
    let held = runs.held();
    let rows = filter.rows(&Table::of(&held));
    let step = rows.len().div_ceil(SAMPLED).max(1);
    let sampled: Vec<usize> = rows.iter().copied().step_by(step).collect();
    let size = |rows: &[usize]| html(&held, parts, rows).map(|html| html.len() as u64);
    let (empty, some) = (size(&[])?, size(&sampled)?);
    let bytes = empty + (some - empty) * rows.len() as u64 / sampled.len().max(1) as u64;
    Ok(Contents { rows, of: held.count(), bytes })
}

pub fn file(runs: &Shared, parts: &Parts, contents: &Contents) -> io::Result<String> {
    // The table includes these answers' ranks.
    for row in &contents.rows {
        let job = runs.held().located(*row).map(|(run, folder, at)| (run, at, folder.rank_job(at)));
        if let Some((run, at, job)) = job {
            runs.rank(run, at, &job);
        }
    }
    html(&runs.held(), parts, &contents.rows)
}

/// The page with the replies about these rows, which are numbered anew.
fn html(runs: &Runs, parts: &Parts, rows: &[usize]) -> io::Result<String> {
    let mut replies = Map::new();
    for (number, row) in rows.iter().enumerate() {
        let Some((run, folder, at)) = runs.located(*row) else { continue };
        let case = Case::open(folder, at);
        replies.insert(format!("/api/case?row={number}"), case.json(number, run));
        if let Some(attention) = &case.attention {
            replies.insert(format!("/api/layers?row={number}"), maps::layers_in_bytes(attention));
        }
    }
    replies.insert("/api/runs".to_owned(), runs_json(runs, None));
    replies.insert(
        "/api/table".to_owned(),
        serde_json::to_value(Table::of(runs).select(rows)).unwrap_or_default(),
    );
    let notes = [
        format!("{} of {} answers", rows.len(), runs.count()),
        "attention by layer is in 8 bits: within 0.2% of the largest number of its row and layer".to_owned(),
        "single heads and comparisons are left out: palimpsest view has them".to_owned(),
    ];
    let embedded = json!({"stamp": runs.stamp(), "notes": notes, "replies": replies});
    Ok(parts.page(Some(&embedded.to_string()))?.html)
}
