//! `palimpsest table`: results of several runs, and the difference of two.

use crate::evict;
use crate::losses;
use crate::results::table::{TableArgs, text};

const EXAMPLES: &str = "\
Examples:
  palimpsest table runs/*
  palimpsest table runs/qwen runs/gpt --compare
  palimpsest table runs/qwen --condition plain,knockout-query-old --compare
  palimpsest table runs/five --repeats --format latex
  palimpsest table runs/mem0 --memory
  palimpsest table runs/evicted --evict
  palimpsest table runs/stale-9b runs/knowme-9b runs/subtle-9b";

/// Print the results of any number of runs side by side: table 2 of the STALE paper, and with --repeats table 6.
///
/// One row per run, condition and judging (a judge by a rubric, asked in one way); one column per cell of the benchmark. Below each accuracy
/// are its counts and its 95% interval. Runs of several benchmarks get one row per model, with its overall numbers. Reads run folders only:
/// local models, endpoints and imported answers share a table. Denominators are the plan's: a question without an answer or a verdict
/// counts as wrong, and one not asked yet is also counted as missing. Percentages are rounded half up.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    table: TableArgs,
    /// Print the losses of memory systems instead: facts written, kept, retrieved, shown, attended and used, one row per system, type and
    /// question form
    #[arg(long, conflicts_with_all = ["condition", "repeats", "compare", "intervals"])]
    memory: bool,
    /// Print what evictions from the cache change instead: accuracy, update effect, contrast and kept keys, one row per policy and budget,
    /// beside the same questions with nothing evicted
    #[arg(long, conflicts_with_all = ["condition", "repeats", "compare", "intervals", "memory"])]
    evict: bool,
}

pub fn run(Args { table, memory, evict }: Args) -> anyhow::Result<()> {
    let text = match (memory, evict) {
        (true, _) => losses::tables::text(&table.dirs, table.choice(), table.format)?,
        (_, true) => evict::tables::text(&table.dirs, table.choice(), table.format)?,
        _ => text(&table)?,
    };
    super::write_out(text.as_bytes())
}
