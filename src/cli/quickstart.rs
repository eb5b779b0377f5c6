//! `palimpsest quickstart`: the main job end to end on a small real model.

/// The main job end to end on a small real model.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("`palimpsest quickstart` is being built")
}
