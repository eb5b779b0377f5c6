//! `palimpsest import`: answers from the exchange format of a benchmark's authors.

use std::path::PathBuf;

use anyhow::Context;

use crate::data::Case;
use crate::data::dataset::Dataset;
use crate::data::sample::SampleSpec;
use crate::run::exchange::{Import, import_stale};
use crate::run::header::Named;

const EXAMPLES: &str = "\
Examples:
  palimpsest import --stale answers.json --data stale.json --model-name mine --out runs/mine";

/// Make a run of answers in the exchange format of a benchmark's authors, to judge them here.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The answers, in STALE's format.
    #[arg(long, value_name = "FILE")]
    stale: PathBuf,
    /// The benchmark file that was answered, or `sample`.
    #[arg(long, value_name = "FILE|sample")]
    data: String,
    /// The run folder to make.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// What to call the model that gave the answers.
    #[arg(long, value_name = "NAME")]
    model_name: String,
    /// Take missing answers over as errors instead of refusing.
    #[arg(long)]
    partial: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let Args { stale, data, out, model_name, partial } = args;
    let text = std::fs::read(&stale).with_context(|| format!("cannot read {}", stale.display()))?;
    let (dataset, cases) = open_dataset(&data)?;
    let import = Import { dataset, cases: &cases, model: model_name, partial };
    let answers =
        import_stale(&out, &text, &import).with_context(|| format!("importing {}", stale.display()))?;
    super::say(format_args!(
        "{}: {answers} answers; judge them with `palimpsest judge {}`",
        out.display(),
        out.display()
    ))?;
    Ok(())
}

/// The benchmark file's name and digest, and its cases; the first row that is not sound is an error.
fn open_dataset(data: &str) -> anyhow::Result<(Named, Vec<Case>)> {
    let dataset = Dataset::open(data, SampleSpec::default(), |_| ())?;
    let named = Named { name: dataset.name().to_owned(), digest: dataset.digest().to_owned() };
    let cases = dataset
        .cases()?
        .collect::<Result<Vec<Case>, _>>()
        .with_context(|| format!("{data}; `palimpsest data check` lists all problems of a file"))?;
    Ok((named, cases))
}
