//! `palimpsest import`: answers from the exchange format of a benchmark's authors.

/// Answers from the exchange format of a benchmark's authors.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("`palimpsest import` is being built")
}
