//! Counts and tables of runs, for the commands and the report; [`table`] is the entry point for run folders.

pub mod compare;
mod intervals;
pub mod labels;
pub mod metrics;
pub mod outcomes;
pub mod overview;
pub mod own;
pub mod sheets;
pub mod table;

use std::path::PathBuf;

use palimpsest_data::ground::sheet::Format;
use palimpsest_data::statistics::bounded::Intervals;
use palimpsest_run::runs::judge_name::JudgeChoice;

/// The runs of a table, and the table.
#[derive(Debug, Default, clap::Args)]
pub struct TableArgs {
    /// The run folders, judged with `palimpsest judge`
    #[arg(required = true, num_args = 1.., value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
    /// Format; csv has one line per number, with --compare only the differences
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// Only verdicts of this judge, with or without its address, and its rubric in brackets [default: a row per judge]
    #[arg(long, value_name = "NAME")]
    pub judge: Option<String>,
    /// Only verdicts by this rubric [default: a row per rubric]
    #[arg(long, value_name = "NAME")]
    pub rubric: Option<String>,
    /// Only answers under these conditions, for example plain,repeat-2 [default: a row per condition]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub condition: Vec<String>,
    /// Mean and standard deviation (n - 1) over the repetitions of `run --repeat` instead of a row per repetition
    #[arg(long, conflicts_with_all = ["condition", "compare"])]
    pub repeats: bool,
    /// Method of the 95% intervals; paper: that of the benchmark's paper (SubtleMemory's table 11)
    #[arg(long, value_enum, default_value_t, conflicts_with = "repeats")]
    pub intervals: Intervals,
    /// Also print the difference of the two rows: exact McNemar test, Holm's correction over the cells, interval
    #[arg(long)]
    pub compare: bool,
    /// Compare only the questions that both runs have
    #[arg(long, requires = "compare")]
    pub common: bool,
}

impl TableArgs {
    pub fn choice(&self) -> JudgeChoice<'_> {
        JudgeChoice { judge: self.judge.as_deref(), rubric: self.rubric.as_deref() }
    }
}
