//! `palimpsest merge`: the shards of a run become one run folder.

use std::path::PathBuf;

use crate::run::merge::merge;

const EXAMPLES: &str = "\
Examples:
  palimpsest merge runs/whole runs/0 runs/1";

/// Put the shards of a run together into one run folder.
///
/// All shards must be there and finished; gaps, doubles and shards of different runs are refused. Verdicts, causes and words on labels come
/// along. The shards stay.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
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
    if merged.causes > 0 {
        super::say(format_args!("{} rows of causes", merged.causes))?;
    }
    if !merged.uneven.is_empty() {
        let dirs: Vec<String> = merged.uneven.iter().map(|dir| dir.display().to_string()).collect();
        super::say(format_args!(
            "without all causes that other shards have: {}; the same `palimpsest causes` commands on {} measure what is missing",
            dirs.join(", "),
            out.display()
        ))?;
    }
    if merged.errors > 0 {
        super::say(format_args!(
            "start the run again with --out {} and without --shard to retry the errors",
            out.display()
        ))?;
    }
    Ok(())
}
