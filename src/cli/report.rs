//! `palimpsest report`: the one-page report of a run.

/// The one-page report of a run.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("`palimpsest report` is being built")
}
