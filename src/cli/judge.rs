//! `palimpsest judge`: verdicts on the answers of a run.

/// Verdicts on the answers of a run.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("`palimpsest judge` is being built")
}
