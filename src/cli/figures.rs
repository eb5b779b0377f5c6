//! `palimpsest figures`: the figures of a run, as SVG and PNG.

/// The figures of a run, as SVG and PNG.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("`palimpsest figures` is being built")
}
