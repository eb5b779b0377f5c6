//! `palimpsest import`: answers from a benchmark's exchange format.

use std::path::PathBuf;

use anyhow::Context;

use crate::benchmarks::SampleSpec;
use crate::benchmarks::dataset::Dataset;
use crate::benchmarks::stale::exchange::parse;
use crate::case::Case;
use crate::ground::text_file;
use crate::runs::exchange::{Import, Imported, import};
use crate::runs::header::NameAndDigest;
use crate::runs::setup::cases;

const EXAMPLES: &str = "\
Examples:
  palimpsest import --stale answers.json --data stale.json --model-name mine --out runs/mine";

/// Make a run from answers in the exchange format of a benchmark's authors, to judge them here.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The answers, in STALE's format: the list, or an object whose `data` is the list.
    #[arg(long, value_name = "FILE")]
    stale: PathBuf,
    /// The benchmark file that was answered, or `sample`.
    #[arg(long, value_name = "FILE|sample")]
    data: String,
    /// Type of the benchmark's rows that do not state theirs (the construction's *_MAIN.json): T1 or T2.
    #[arg(long = "type", value_name = "TYPE")]
    split: Option<String>,
    /// The run folder to make.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Name of the model that gave the answers.
    #[arg(long, value_name = "NAME")]
    model_name: String,
    /// Import missing answers as errors instead of refusing the file.
    #[arg(long)]
    partial: bool,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let Args { stale, data, split, out, model_name, partial } = args;
    let text = std::fs::read(&stale).with_context(|| format!("cannot read {}", stale.display()))?;
    let opened = Dataset::open(&data, SampleSpec::default(), |_| ())?.with_split(split.as_deref())?;
    let dataset = NameAndDigest { name: opened.name().to_owned(), digest: opened.digest().to_owned() };
    let cases: Vec<Case> = cases(&opened)?.collect::<Result<_, _>>()?;
    let job = Import { benchmark: opened.benchmark(), dataset, cases: &cases, model: model_name, partial };
    let importing = || format!("importing {}", stale.display());
    let mut answers = text.as_slice();
    text_file::skip_mark(&mut answers).with_context(importing)?;
    let entries = parse(answers).with_context(importing)?;
    let Imported { answers, thoughts, cut } = import(&out, &text, &entries, &job).with_context(importing)?;
    let mut said = format!("{answers} answers");
    if thoughts > 0 {
        said += &format!(", {thoughts} of them behind a thought, which is kept apart");
    }
    if cut > 0 {
        said += &format!("; {cut} texts end inside a thought and count as errors");
    }
    let failed: usize = entries.iter().map(|entry| entry.errors.len()).sum();
    if failed > 0 {
        said += &format!("; {failed} failed calls, which count as errors");
    }
    let out = out.display();
    super::say(format_args!("{out}: {said}; judge them with `palimpsest judge {out} --judge JUDGE`"))
}
