//! Table 5 of the STALE paper as text, one row per tokeniser and group, followed by the paper's rows.

use serde::Serialize;

use super::lengths::{GroupBy, PrintedLengths, SplitLengths, TokenCounts};
use crate::ground::table::aligned;

#[derive(Debug, Serialize)]
pub struct LengthRow {
    pub tokenizer: String,
    #[serde(flatten)]
    pub measured: SplitLengths,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paper: Option<PrintedLengths>,
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
    let mut lines = vec![head];
    let shown = |name: &str, split: &str, n: usize, [sessions, turns]: [f64; 2], of: &TokenCounts| {
        [
            name.to_owned(),
            split.to_owned(),
            n.to_string(),
            format!("{sessions:.2}"),
            format!("{turns:.2}"),
            format!("{:.0}", of.mean),
            format!("{:.0}", of.median),
            format!("{:.0}", of.p95),
            of.max.to_string(),
        ]
    };
    let with = |cells: [String; 9], content: String, raw: String| {
        let [a, b, c, d, e, f, g, h, i] = cells;
        [a, b, c, d, e, f, g, h, i, content, raw]
    };
    for LengthRow { tokenizer, measured: row, paper } in rows {
        let cells =
            shown(tokenizer, &row.split, row.instances, [row.sessions_mean, row.turns_mean], &row.formatted);
        lines.push(with(cells, format!("{:.0}", row.content.mean), format!("{:.0}", row.raw.mean)));
        if let Some(p) = paper {
            let cells = shown("  paper", p.split, p.instances, [p.sessions_mean, p.turns_mean], &p.formatted);
            lines.push(with(cells, format!("{:.0}", p.content_mean), String::new()));
        }
    }
    aligned(&lines, |column| column > 1)
        + "\nSessions and turns: means. Mean, median, P95 and max: tokens of the formatted context (history and first probe).\n\
           Content and JSON: mean tokens of what the turns say alone, and of history and query as JSON."
}
