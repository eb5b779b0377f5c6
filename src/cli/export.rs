//! `palimpsest export`: answers in the exchange format of a benchmark's authors.

/// Answers in the exchange format of a benchmark's authors.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("`palimpsest export` is being built")
}
