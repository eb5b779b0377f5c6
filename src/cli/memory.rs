//! `palimpsest memory`: memory systems by themselves.

use clap::Subcommand;

use super::memory_check;

/// Check memory systems.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Check(memory_check::Args),
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    match &args.action {
        Action::Check(args) => memory_check::run(args),
    }
}
