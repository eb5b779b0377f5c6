//! `palimpsest table`: results of several runs, and the difference of two.

use crate::losses;
use crate::results::table::{TableArgs, text};

const EXAMPLES: &str = "\
Examples:
  palimpsest table runs/*
  palimpsest table runs/qwen runs/gpt --compare
  palimpsest table runs/qwen --condition plain,knockout-query-old --compare
  palimpsest table runs/five --repeats --format latex
  palimpsest table runs/mem0 --memory
  palimpsest table runs/stale-9b runs/knowme-9b runs/subtle-9b";

/// Results of any number of runs side by side: table 2 of the STALE paper, and with --repeats table 6.
///
/// Runs of several benchmarks have one table: a row a model, its overall numbers beside each other.
///
/// A row a run, condition and judging: a judge by a rubric, asked in one way. A column a cell of the benchmark. Each accuracy stands above
/// its counts and its 95% interval. Reads run folders only: local models, endpoints and imported answers stand in one table.
/// Denominators are the plan's; what has no answer or no verdict counts as wrong, and what was not asked yet is counted as missing.
/// Percentages are rounded half up.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    table: TableArgs,
    /// The losses of memory systems instead: facts written, kept, retrieved, shown, attended and used, a row a system, type and probe
    #[arg(long, conflicts_with_all = ["condition", "repeats", "compare", "intervals"])]
    memory: bool,
}

pub fn run(Args { table, memory }: Args) -> anyhow::Result<()> {
    let text = match memory {
        true => losses::tables::text(&table.dirs, table.choice(), table.format)?,
        false => text(&table)?,
    };
    super::write_out(text.as_bytes())
}
