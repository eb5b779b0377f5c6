//! `palimpsest trace`: the raw instrument: tokens in, logits and masses out.

/// The raw instrument: tokens in, logits and masses out.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("`palimpsest trace` is being built")
}
