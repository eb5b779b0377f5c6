//! A standalone HTML file: the page with embedded replies for some answers.
//!
//! Attention by layer is quantised to a byte per number (error at most 0.2% of the maximum per row and layer). Single heads and comparisons
//! are omitted.

use std::io;

use serde_json::{Map, json};

use super::case::Case;
use super::fields::Fields;
use super::maps;
use super::overview::{self, MakeOverview, Screen};
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
    /// Number of leading answers held with their texts and attention; the others are in the table alone.
    pub whole: usize,
    overviews: Vec<RunOverview>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct RunOverview {
    run: String,
    wide: String,
    phone: String,
}

impl Contents {
    /// Leaves texts and attention of the last answers out, as needed for a file of about so many bytes.
    pub fn limit(&mut self, bytes: u64) {
        if self.bytes > bytes {
            self.whole = (self.rows.len() as u64 * bytes / self.bytes) as usize;
        }
    }
}

pub fn contents(runs: &Shared, parts: &Parts, filter: &Filter, make: &MakeOverview) -> io::Result<Contents> {
    let held = runs.held();
    let rows = filter.rows(&Table::of(&held));
    let step = rows.len().div_ceil(SAMPLED).max(1);
    let sampled: Vec<usize> = rows.iter().copied().step_by(step).collect();
    let overviews = held.entries.iter().map(|entry| {
        let refused = |error: String| format!("<p class=\"empty\">{}</p>", escaped(&error));
        let of = |screen| overview::html(make, &entry.dir, screen).unwrap_or_else(refused);
        RunOverview { run: entry.id.clone(), wide: of(Screen::Wide), phone: of(Screen::Phone) }
    });
    let overviews: Vec<RunOverview> = overviews.collect();
    let size =
        |rows: &[usize]| html(&held, parts, rows, rows.len(), &overviews).map(|html| html.len() as u64);
    let (empty, some) = (size(&[])?, size(&sampled)?);
    let bytes = empty + (some - empty) * rows.len() as u64 / sampled.len().max(1) as u64;
    Ok(Contents { of: held.count(), bytes, whole: rows.len(), rows, overviews })
}

pub fn file(runs: &Shared, parts: &Parts, contents: &Contents) -> io::Result<String> {
    // The table includes these answers' ranks.
    for row in &contents.rows {
        let job = runs.held().located(*row).map(|(run, folder, at)| (run, at, folder.rank_job(at)));
        if let Some((run, at, job)) = job {
            runs.rank(run, at, &job);
        }
    }
    html(&runs.held(), parts, &contents.rows, contents.whole, &contents.overviews)
}

/// The page with the replies about these rows, which are numbered anew; the first `whole` with texts and attention.
fn html(
    runs: &Runs,
    parts: &Parts,
    rows: &[usize],
    whole: usize,
    overviews: &[RunOverview],
) -> io::Result<String> {
    let mut replies = Map::new();
    for (number, row) in rows.iter().enumerate().take(whole) {
        let Some((run, folder, at)) = runs.located(*row) else { continue };
        let case = Case::open(folder, at);
        replies.insert(format!("/api/case?row={number}"), case.json(number, run));
        if let Some(attention) = &case.attention {
            replies.insert(format!("/api/layers?row={number}"), maps::layers_in_bytes(attention));
        }
    }
    // Nothing changes in a file: without stamps, the same runs make the same file.
    let table = Table { stamp: String::new(), ..Table::of(runs).select(rows) };
    replies.insert("/api/runs".to_owned(), runs_json(runs, None).with("stamp", Some("")));
    replies.insert("/api/table".to_owned(), serde_json::to_value(table).unwrap_or_default());
    let query =
        |pairs: &[(&str, &str)]| form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
    for (at, RunOverview { run, wide, phone }) in overviews.iter().enumerate() {
        // The first wide one is part of the page.
        if at > 0 {
            replies.insert(format!("/api/overview?{}", query(&[("run", run)])), json!({"html": wide}));
        }
        // Without pictures both are the same.
        if phone != wide {
            let query = query(&[("run", run), ("screen", Screen::PHONE)]);
            replies.insert(format!("/api/overview?{query}"), json!({"html": phone}));
        }
    }
    let embedded = json!({"replies": replies}).to_string();
    let first = overviews.first().map(|one| one.wide.as_str()).unwrap_or_default();
    Ok(parts.page(Some((&embedded, first)))?.html)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
