//! Context length and session statistics of a data set (STALE, appendix D.4, table 5).
//!
//! Called by `palimpsest data stats`. Knows neither tokenisers nor prompts: the caller hands in how a case is formatted
//! and how tokens are counted. Holds a few numbers a case, never the cases.

use serde::Serialize;

use super::Case;
use crate::ground::numbers::quantile;

/// One row of table 5.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SplitStats {
    /// The label's value, or `all`.
    pub split: String,
    /// Number of cases.
    pub instances: usize,
    /// Mean number of sessions.
    pub sessions_mean: f64,
    /// Mean number of turns, a turn being one message of either side.
    pub turns_mean: f64,
    /// Tokens of the formatted context.
    pub formatted: TokenStats,
    /// Mean tokens of the content alone: what the turns say, one under another, without roles, dates or numbers.
    pub content_mean: f64,
}

/// The distribution of a token count.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TokenStats {
    /// Arithmetic mean.
    pub mean: f64,
    /// 50th percentile, see [`quantile`].
    pub median: f64,
    /// 95th percentile, see [`quantile`].
    pub p95: f64,
    /// Largest.
    pub max: usize,
}

/// What is kept of one case.
struct Measured {
    split: String,
    sessions: usize,
    turns: usize,
    formatted: usize,
    content: usize,
}

/// Table 5 of `cases`: a row a value of the label `split` in alphabetical order, then `all`; empty where there are no cases.
///
/// `format` gives the text that the model would be shown, `count` its number of tokens. The first error of a case, of
/// `format` or of `count` ends the measurement.
pub fn measure<E>(
    cases: impl IntoIterator<Item = Result<Case, E>>,
    split: &str,
    mut format: impl FnMut(&Case) -> Result<String, E>,
    mut count: impl FnMut(&str) -> Result<usize, E>,
) -> Result<Vec<SplitStats>, E> {
    let mut measured = Vec::new();
    for case in cases {
        let case = case?;
        measured.push(Measured {
            split: case.labels.get(split).cloned().unwrap_or_default(),
            sessions: case.history.segments.len(),
            turns: case.history.segments.iter().map(|segment| segment.turns.len()).sum(),
            formatted: count(&format(&case)?)?,
            content: count(&content(&case))?,
        });
    }
    let mut splits: Vec<&str> = measured.iter().map(|case| case.split.as_str()).collect();
    splits.sort_unstable();
    splits.dedup();
    let mut rows: Vec<SplitStats> = splits
        .into_iter()
        .filter_map(|split| {
            let members: Vec<&Measured> = measured.iter().filter(|case| case.split == split).collect();
            summarise(split, &members)
        })
        .collect();
    rows.extend(summarise("all", &measured.iter().collect::<Vec<_>>()));
    Ok(rows)
}

/// What the turns of a case say, one under another.
fn content(case: &Case) -> String {
    let turns = case.history.segments.iter().flat_map(|segment| &segment.turns);
    turns.map(|turn| turn.content.as_str()).collect::<Vec<_>>().join("\n")
}

/// One row of the table; `None` without members.
fn summarise(split: &str, members: &[&Measured]) -> Option<SplitStats> {
    let n = members.len() as f64;
    let mean = |of: fn(&Measured) -> usize| members.iter().map(|case| of(case) as f64).sum::<f64>() / n;
    let mut formatted: Vec<f64> = members.iter().map(|case| case.formatted as f64).collect();
    formatted.sort_by(f64::total_cmp);
    Some(SplitStats {
        split: split.to_owned(),
        instances: members.len(),
        sessions_mean: mean(|case| case.sessions),
        turns_mean: mean(|case| case.turns),
        formatted: TokenStats {
            mean: mean(|case| case.formatted),
            median: quantile(&formatted, 0.5),
            p95: quantile(&formatted, 0.95),
            max: members.iter().map(|case| case.formatted).max()?,
        },
        content_mean: mean(|case| case.content),
    })
}
