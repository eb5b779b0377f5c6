//! `palimpsest memory`: memory systems by themselves.

use clap::Subcommand;

use super::{memory_check, memory_show};

/// Check memory systems, and show what they made of a history.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Check(memory_check::Args),
    Show(memory_show::Args),
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<()> {
    match &args.action {
        Action::Check(args) => memory_check::run(args),
        Action::Show(args) => memory_show::run(args),
    }
}
