//! `palimpsest merge`: merges the shards of a run.

use std::path::PathBuf;

use crate::ground::words::counted;
use crate::runs::merge::merge;

const EXAMPLES: &str = "\
Examples:
  palimpsest merge runs/whole runs/0 runs/1";

/// Put the shards of a run together into one run folder.
///
/// All shards must be present and finished, under the same conditions; gaps, duplicates and shards of different runs are refused, with the
/// difference named. Errors are merged as they are, and the merged run, started again, retries them. Verdicts, causes and checked labels
/// are merged too. The shards stay.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The folder to make; it must not exist yet.
    out: PathBuf,
    /// The folders of all shards, in any order.
    #[arg(required = true, num_args = 1..)]
    shards: Vec<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let Args { out, shards } = args;
    let merged = merge(&out, &shards)?;
    let names =
        |dirs: &[PathBuf]| dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(", ");
    super::say(format_args!(
        "{}: {}, {} ({}), {} of {}",
        out.display(),
        counted(merged.cases, "case"),
        counted(merged.answers, "answer"),
        counted(merged.errors, "error"),
        counted(merged.verdicts, "verdict"),
        counted(shards.len(), "shard")
    ))?;
    if !merged.other_machines.is_empty() {
        super::say(format_args!(
            "run.json names the machine of {} alone; on others, or with another attention kernel, ran: {}",
            names(&shards[..1]),
            names(&merged.other_machines)
        ))?;
    }
    if merged.causes > 0 {
        super::say(format_args!("{} of causes", counted(merged.causes, "row")))?;
    }
    if !merged.uneven.is_empty() {
        super::say(format_args!(
            "some causes are missing in {}; the same `palimpsest causes` commands on {} measure them",
            names(&merged.uneven),
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
