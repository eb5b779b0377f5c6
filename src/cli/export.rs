//! `palimpsest export`: answers in the exchange format of a benchmark's authors.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;

use crate::eval::exchange::export_stale;
use crate::eval::store::RunFolder;
use crate::eval::write_atomically;

/// Answers in the exchange format of a benchmark's authors.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run folder, to be written in STALE's format.
    #[arg(long, value_name = "DIR")]
    stale: PathBuf,
    /// The file to write; standard output without it.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write missing answers as empty strings instead of refusing.
    #[arg(long)]
    partial: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let Args { stale, out, partial } = args;
    let folder = RunFolder::read(&stale)?;
    let answers = export_stale(&folder, partial)?;
    let text = serde_json::to_string_pretty(&answers)? + "\n";
    match out {
        Some(path) => {
            write_atomically(&path, text.as_bytes())
                .with_context(|| format!("cannot write {}", path.display()))?;
            println!("{}: answers to {} cases", path.display(), answers.len());
        }
        None => {
            std::io::stdout().lock().write_all(text.as_bytes()).context("cannot write to standard output")?;
        }
    }
    Ok(())
}
