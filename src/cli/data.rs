//! `palimpsest data`: check, measure and write benchmark files.

/// Check, measure and write benchmark files.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("`palimpsest data` is being built")
}
