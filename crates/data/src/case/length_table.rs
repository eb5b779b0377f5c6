//! Table 5 of the STALE paper as text, one row per tokeniser and group, followed by the paper's rows.

use std::fmt;

use serde::Serialize;

use super::lengths::{GroupBy, PrintedLengths, SplitLengths, TokenCounts};
use crate::ground::numbers::quantile;
use crate::ground::table::aligned;

#[derive(Debug, Serialize)]
pub struct LengthRow {
    pub tokenizer: String,
    #[serde(flatten)]
    pub measured: SplitLengths,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paper: Option<PrintedLengths>,
    /// Of the whole file, in its last row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub siblings: Option<Siblings>,
}

/// Distances between sessions of one set of memories, in places of the history.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Siblings {
    pub median: f64,
    pub min: usize,
    pub max: usize,
}

impl Siblings {
    /// `None` without distances.
    pub fn of(mut distances: Vec<usize>) -> Option<Self> {
        distances.sort_unstable();
        let (min, max) = (*distances.first()?, *distances.last()?);
        let distances: Vec<f64> = distances.into_iter().map(|distance| distance as f64).collect();
        Some(Siblings { median: quantile(&distances, 0.5), min, max })
    }
}

impl fmt::Display for Siblings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Siblings { median, min, max } = self;
        let about = "From a session of a set to the set's next one, in sessions (1: side by side)";
        write!(f, "{about}: median {median}, min {min}, max {max}.")
    }
}

pub const BY_CASE: &str = "case";

pub fn table(by: GroupBy<'_>, rows: &[LengthRow]) -> String {
    let split = match by {
        GroupBy::Label(label) => label,
        GroupBy::Case => BY_CASE,
        GroupBy::All => "cases of",
    };
    let head =
        ["tokens of", split, "cases", "sessions", "turns", "mean", "median", "P95", "max", "content", "JSON"]
            .map(String::from);
    let mut lines: Vec<Vec<String>> = vec![head.into()];
    let line =
        |[name, split]: [&str; 2], n: usize, [sessions, turns, content]: [f64; 3], of: &TokenCounts, raw| {
            let means = [sessions, turns].map(|mean| format!("{mean:.2}"));
            let tokens = [of.mean, of.median, of.p95].map(|tokens| format!("{tokens:.0}"));
            let cells =
                [name.to_owned(), split.to_owned(), n.to_string()].into_iter().chain(means).chain(tokens);
            cells.chain([of.max.to_string(), format!("{content:.0}"), raw]).collect()
        };
    for LengthRow { tokenizer, measured: row, paper, .. } in rows {
        let means = [row.sessions_mean, row.turns_mean, row.content.mean];
        let raw = format!("{:.0}", row.raw.mean);
        lines.push(line([tokenizer, &row.split], row.instances, means, &row.formatted, raw));
        if let Some(p) = paper {
            let means = [p.sessions_mean, p.turns_mean, p.content_mean];
            lines.push(line(["  paper", p.split], p.instances, means, &p.formatted, String::new()));
        }
    }
    aligned(&lines, |column| column > 1)
        + "\nSessions and turns: means. Mean, median, P95 and max: tokens of the formatted context (history and first probe).\n\
           Content and JSON: mean tokens of what the turns say alone, and of history and query as JSON."
        + &placements(split, rows)
}

/// Places of the old and the new session, below the table; empty for benchmarks without them.
fn placements(split: &str, rows: &[LengthRow]) -> String {
    let head =
        ["tokens of", split, "old at", "new at", "distance", "tail", "before new", "between", "after new"];
    let mut lines: Vec<Vec<String>> = vec![head.map(String::from).into()];
    for LengthRow { tokenizer, measured, .. } in rows {
        let Some(of) = measured.placement else { continue };
        let sessions = [of.old_at, of.new_at, of.distance, of.tail].map(|mean| format!("{mean:.2}"));
        let tokens = [of.new_at_tokens, of.distance_tokens, of.tail_tokens].map(|mean| format!("{mean:.0}"));
        let cells = [tokenizer.clone(), measured.split.clone()].into_iter().chain(sessions).chain(tokens);
        lines.push(cells.collect());
    }
    if lines.len() == 1 {
        return String::new();
    }
    let table = aligned(&lines, |column| column > 1);
    format!(
        "\n\n{table}\nPlaces of the old and the new session: sessions before each, from old to new, and after new; and mean tokens of what the\n\
         turns before new, between both and after new say."
    )
}
