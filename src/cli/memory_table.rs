//! `palimpsest table --memory`: where the memory systems of runs lost facts.

use std::path::PathBuf;

use anyhow::bail;

use crate::ground::sheet::Format;
use crate::losses::Losses;
use crate::losses::tables::written;
use crate::run::judge_name::JudgeChoice;
use crate::run::store::RunFolder;

/// Writes the tables of some runs.
pub(super) fn run(dirs: &[PathBuf], choice: JudgeChoice<'_>, format: Format) -> anyhow::Result<()> {
    let mut runs = Vec::new();
    for dir in dirs {
        let folder = RunFolder::read(dir)?;
        let Some(found) = Losses::open(&folder, folder.benchmark()?, choice)? else {
            bail!(
                "{} has no memory system; make a run with --memory NAME=COMMAND, or leave --memory out",
                dir.display()
            );
        };
        runs.push(found);
    }
    super::write_out(written(&runs, format)?.as_bytes())
}
