//! `palimpsest lens`: curves and ratios of a run, as CSV.

/// Curves and ratios of a run, as CSV.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("`palimpsest lens` is being built")
}
