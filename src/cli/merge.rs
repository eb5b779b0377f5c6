//! `palimpsest merge`: the shards of a run become one run folder.

use std::path::PathBuf;

use crate::eval::merge::merge;

/// The shards of a run as one run folder.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The folder to make; it must not exist yet.
    out: PathBuf,
    /// The folders of all shards, in any order.
    #[arg(required = true, num_args = 1..)]
    shards: Vec<PathBuf>,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let Args { out, shards } = args;
    let merged = merge(&out, &shards)?;
    super::say(format_args!(
        "{}: {} cases, {} answers ({} errors), {} verdicts of {} shards",
        out.display(),
        merged.cases,
        merged.answers,
        merged.errors,
        merged.verdicts,
        shards.len()
    ))?;
    if merged.errors > 0 {
        super::say(format_args!(
            "start the run again with --out {} and without --shard to retry the errors",
            out.display()
        ))?;
    }
    Ok(())
}
