//! `palimpsest model`: list, fetch and describe models.

/// List, fetch and describe models.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("`palimpsest model` is being built")
}
