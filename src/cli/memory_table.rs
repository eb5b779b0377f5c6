//! `palimpsest table --memory`: where the memory systems of runs lost facts.

use std::path::PathBuf;

use anyhow::bail;

use crate::benchmarks::Table;
use crate::ground::sheet::Format;
use crate::losses::Losses;
use crate::losses::records::{blocks, json, pairs, sheet};
use crate::losses::tables::tables;
use crate::losses::words::in_words;
use crate::run::judge_name::JudgeChoice;
use crate::run::store::RunFolder;

/// The losses of the memory systems of a run folder; `None` where it has none.
pub(super) fn losses(dir: &std::path::Path, choice: JudgeChoice<'_>) -> anyhow::Result<Option<Losses>> {
    let folder = RunFolder::read(dir)?;
    let benchmark = folder.benchmark()?;
    Ok(Losses::open(&folder, benchmark, choice)?)
}

/// Writes the tables of some runs.
pub(super) fn run(dirs: &[PathBuf], choice: JudgeChoice<'_>, format: Format) -> anyhow::Result<()> {
    let mut runs = Vec::new();
    for dir in dirs {
        let Some(found) = losses(dir, choice)? else {
            bail!(
                "{} has no memory system; make a run with --memory NAME=COMMAND, or leave --memory out",
                dir.display()
            );
        };
        runs.push(found);
    }
    if let [first, others @ ..] = &runs[..]
        && let Some(other) = others.iter().find(|other| other.benchmark.name != first.benchmark.name)
    {
        bail!(
            "{} is a run of {} and {} of {}; give runs of one benchmark",
            first.run,
            first.benchmark.title,
            other.run,
            other.benchmark.title
        );
    }
    let pairs = pairs(&runs);
    let text = match format {
        Format::Json => format!("{:#}\n", json(&runs, &blocks(&runs), &pairs, &in_words(&runs))),
        Format::Csv => sheet(&blocks(&runs)).csv()?,
        format => {
            let mut texts: Vec<String> = in_words(&runs).iter().map(|words| format.remark(words)).collect();
            for Table { title, sheet, .. } in tables(&runs, &pairs) {
                texts.push(format!("{}\n{}", format.title(&title), format.of(&sheet)?));
            }
            texts.join("\n")
        }
    };
    super::write_out(text.as_bytes())
}
