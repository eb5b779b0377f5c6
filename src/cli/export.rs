//! `palimpsest export`: answers in the exchange format of a benchmark's authors.

use std::path::PathBuf;

use anyhow::Context;

use crate::benchmarks::stale::exchange::format;
use crate::ground::files::write_atomically;
use crate::run::exchange::export;
use crate::run::store::RunFolder;

const EXAMPLES: &str = "\
Examples:
  palimpsest export --stale runs/first --out answers.json";

/// Write a run's answers in the exchange format of a benchmark's authors.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The run folder, to be written in STALE's format.
    #[arg(long, value_name = "DIR")]
    stale: PathBuf,
    /// The answers of this condition, for example repeat-2 [default: the plain one].
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    condition: String,
    /// The file to write; standard output without it.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write missing answers as empty strings instead of refusing.
    #[arg(long)]
    partial: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let Args { stale, condition, out, partial } = args;
    let folder = RunFolder::read(&stale)?.condition(&condition)?;
    let answers = format(export(&folder, partial)?);
    let text = serde_json::to_string_pretty(&answers)? + "\n";
    match out {
        Some(path) => {
            write_atomically(&path, text.as_bytes())
                .with_context(|| format!("cannot write {}", path.display()))?;
            super::say(format_args!("{}: answers to {} cases", path.display(), answers.len()))
        }
        None => super::write_out(text.as_bytes()),
    }
}
