//! Context length and session statistics of a data set (STALE, appendix D.4, table 5).
//!
//! Called by `palimpsest data stats`. Knows neither tokenisers nor prompts: the caller hands in how a case is formatted
//! and how tokens are counted. Holds a few numbers a case, never the cases.
//!
//! Three forms of a case are counted (appendix D.4), each with the same history: as JSON ([`raw`]), as the model is shown it, and
//! as the bare contents of its turns ([`content`]).

use rayon::prelude::*;
use serde::Serialize;

use super::{Case, Turn};
use crate::ground::numbers::quantile;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SplitLengths {
    pub split: String,
    pub instances: usize,
    pub sessions_mean: f64,
    /// Mean number of turns, a turn being one message of either side.
    pub turns_mean: f64,
    pub formatted: TokenCounts,
    /// Mean tokens of the content alone: what the turns say, one under another, without roles, dates or numbers.
    pub content_mean: f64,
    pub raw: TokenCounts,
    pub content: TokenCounts,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TokenCounts {
    pub mean: f64,
    pub median: f64,
    pub p95: f64,
    pub max: usize,
}

/// A row of table 5 as a paper prints it, tokens rounded to whole ones.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PrintedLengths {
    pub split: &'static str,
    pub instances: usize,
    pub sessions_mean: f64,
    pub turns_mean: f64,
    /// Mean, median, 95th percentile and largest of the formatted context's tokens.
    pub formatted: TokenCounts,
    pub content_mean: f64,
}

const ALL: &str = "all";

struct Measured {
    split: String,
    sessions: usize,
    turns: usize,
    raw: usize,
    formatted: usize,
    content: usize,
}

/// Grouping of the table's rows; the last row is of all cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupBy<'a> {
    /// A row a value of this label, in alphabetical order; a case without it is in the row of the empty value.
    Label(&'a str),
    Case,
    All,
}

/// Table 5 of `cases`: the rows that `by` says, then `all`; empty where there are no cases.
///
/// `format` gives the text that the model would be shown, `count` its number of tokens. As many cases as there are threads are
/// counted at once. The first error of a case, of `format` or of `count` ends the measurement.
pub fn measure<E: Send>(
    cases: impl IntoIterator<Item = Result<Case, E>>,
    by: GroupBy<'_>,
    format: impl Fn(&Case) -> Result<String, E> + Sync,
    count: impl Fn(&str) -> Result<usize, E> + Sync,
) -> Result<Vec<SplitLengths>, E> {
    let of = |case: Case| {
        Ok(Measured {
            split: match by {
                GroupBy::Label(label) => case.labels.get(label).cloned().unwrap_or_default(),
                GroupBy::Case => case.id.clone(),
                GroupBy::All => ALL.to_owned(),
            },
            sessions: case.history.segments.len(),
            turns: case.history.segments.iter().map(|segment| segment.turns.len()).sum(),
            raw: count(&raw(&case))?,
            formatted: count(&format(&case)?)?,
            content: count(&content(&case))?,
        })
    };
    let mut measured = Vec::new();
    let mut cases = cases.into_iter();
    loop {
        let some: Vec<Result<Case, E>> = cases.by_ref().take(rayon::current_num_threads()).collect();
        if some.is_empty() {
            break;
        }
        let some: Vec<Result<Measured, E>> = some.into_par_iter().map(|case| of(case?)).collect();
        for one in some {
            measured.push(one?);
        }
    }
    let mut splits: Vec<&str> = measured.iter().map(|case| case.split.as_str()).collect();
    match by {
        GroupBy::Label(_) => {
            splits.sort_unstable();
            splits.dedup();
        }
        GroupBy::Case => {}
        GroupBy::All => splits.clear(),
    }
    let mut rows: Vec<SplitLengths> = splits
        .into_iter()
        .filter_map(|split| {
            let members: Vec<&Measured> = measured.iter().filter(|case| case.split == split).collect();
            summarise(split, &members)
        })
        .collect();
    rows.extend(summarise(ALL, &measured.iter().collect::<Vec<_>>()));
    Ok(rows)
}

/// The raw JSON representation: `{"history": [{"time": ..., "turns": [{"role": ..., "content": ...}]}], "query": ...}`, the query
/// being that of the first probe, without white space between the parts and with letters beyond ASCII as they are.
pub fn raw(case: &Case) -> String {
    #[derive(Serialize)]
    struct Raw<'a> {
        history: Vec<RawSegment<'a>>,
        query: Option<&'a str>,
    }
    #[derive(Serialize)]
    struct RawSegment<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        time: Option<String>,
        turns: &'a [Turn],
    }
    let history = case.history.segments.iter().map(|segment| RawSegment {
        time: segment.time.map(|time| time.strftime("%Y-%m-%d %H:%M:%S").to_string()),
        turns: &segment.turns,
    });
    let query = case.probes.first().map(|probe| probe.query.as_str());
    // Texts and lists of them have no way to fail.
    serde_json::to_string(&Raw { history: history.collect(), query }).unwrap_or_default()
}

/// The content alone: what the turns of a case say, one under another.
pub fn content(case: &Case) -> String {
    let turns = case.history.segments.iter().flat_map(|segment| &segment.turns);
    turns.map(|turn| turn.content.as_str()).collect::<Vec<_>>().join("\n")
}

fn summarise(split: &str, members: &[&Measured]) -> Option<SplitLengths> {
    let n = members.len() as f64;
    let mean = |of: fn(&Measured) -> usize| members.iter().map(|case| of(case) as f64).sum::<f64>() / n;
    let tokens = |of: fn(&Measured) -> usize| {
        let mut counts: Vec<f64> = members.iter().map(|case| of(case) as f64).collect();
        counts.sort_by(f64::total_cmp);
        Some(TokenCounts {
            mean: mean(of),
            median: quantile(&counts, 0.5),
            p95: quantile(&counts, 0.95),
            max: members.iter().map(|case| of(case)).max()?,
        })
    };
    Some(SplitLengths {
        split: split.to_owned(),
        instances: members.len(),
        sessions_mean: mean(|case| case.sessions),
        turns_mean: mean(|case| case.turns),
        formatted: tokens(|case| case.formatted)?,
        content_mean: mean(|case| case.content),
        raw: tokens(|case| case.raw)?,
        content: tokens(|case| case.content)?,
    })
}
