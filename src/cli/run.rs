//! `palimpsest run`: answers and attention of a benchmark file, in one pass.

/// Answers and attention of a benchmark file, in one pass.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("`palimpsest run` is being built")
}
