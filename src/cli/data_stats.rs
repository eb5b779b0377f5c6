//! `palimpsest data stats`: table 5 of the STALE paper for any file, encoding and tokeniser.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Context;
use indicatif::ProgressBar;

use super::{EndedWithErrors, wrong};
use crate::benchmarks::dataset::Dataset;
use crate::benchmarks::reading::ReadError;
use crate::benchmarks::{PAPER_ENCODING, SampleSpec};
use crate::case::length_table::{LengthRow, Siblings, table};
use crate::case::lengths::{GroupBy, SplitLengths, distances, measure};
use crate::estimate::{LengthCounter, group_by};
use crate::progress;

/// Count sessions, turns and tokens by a label (table 5 of the STALE paper).
///
/// Three forms of each case are counted: the raw JSON of its history and first query; the formatted context, which is its first prompt by
/// the model's chat template (for an encoding, by the plain layout); and the content, which is the texts of the turns. Broken rows are not
/// counted; the exit code is then 3.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  palimpsest data stats T1_T2_400_FULL.json
  palimpsest data stats T1_T2_400_FULL.json --model smollm2-135m --tokenizer o200k_base
  palimpsest data stats stale.json --beside apart.json --placement figures
  palimpsest data stats sample --by type --json")]
pub struct Args {
    /// A benchmark file, or the word `sample` for the built-in sample.
    data: PathBuf,
    /// The questions on a table of your own [default: my-questions.csv (.tsv, .jsonl) beside my.csv].
    #[arg(long, value_name = "FILE")]
    questions: Option<PathBuf>,
    /// A model for its tokenizer and chat template (repeatable): a name of `model list`, owner/name of the Hugging Face hub, a folder, or a
    /// .gguf file.
    #[arg(long, value_name = "NAME")]
    model: Vec<String>,
    /// An encoding that needs no model, o200k_base or cl100k_base; repeatable [default: o200k_base, without --model].
    #[arg(long, value_name = "ENCODING")]
    tokenizer: Vec<String>,
    /// Type of rows that do not state theirs, as in the files of STALE's construction (*_MAIN.json): T1 or T2.
    #[arg(long = "type", value_name = "TYPE")]
    row_type: Option<String>,
    /// Label to split by, or `case` for a row per history [default: the label of the benchmark's tables, if cases have one].
    #[arg(long, value_name = "LABEL")]
    by: Option<String>,
    /// Folder for a figure of the cases per value of that label (figure 5 of the STALE paper), as SVG, PNG and CSV.
    #[arg(long, value_name = "DIR", requires = "by")]
    figure: Option<PathBuf>,
    /// Folder for a figure of where the old and the new session are, a point a case: depth of new against its distance from old.
    #[arg(long, value_name = "DIR")]
    placement: Option<PathBuf>,
    /// A further file in that figure (repeatable).
    #[arg(long, value_name = "FILE", requires = "placement")]
    beside: Vec<PathBuf>,
    /// Print the paper's numbers beside the measured ones [default: if the file is the published one].
    #[arg(long)]
    paper: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let Args { data, questions, model, tokenizer, row_type, by, figure, placement, beside, paper, json } =
        args;
    let bar = reading_bar(data);
    let dataset =
        Dataset::open_pair((data.as_path(), questions.as_deref()), SampleSpec::default(), |piece| {
            bar.inc(piece.len() as u64);
        })?;
    let dataset = dataset.with_split(row_type.as_deref())?;
    bar.finish_and_clear();
    let benchmark = dataset.benchmark();
    let printed = benchmark.printed_lengths;
    if *paper && printed.is_empty() {
        return wrong(format!("--paper: no paper prints the lengths of {}", benchmark.title));
    }
    let with_paper = *paper || benchmark.published(dataset.digest()).is_some();
    let split = group_by(&dataset, by.as_deref())?;
    match (figure, split) {
        (Some(folder), GroupBy::Label(label)) => super::figures::distribution(&dataset, label, folder)?,
        (Some(_), _) => return wrong("--figure: --by names no label; give one"),
        (None, _) => {}
    }
    if let Some(folder) = placement {
        let counter = match model.first() {
            Some(name) => LengthCounter::of_model(name, benchmark)?,
            None => {
                let name = tokenizer.first().map_or(PAPER_ENCODING, String::as_str);
                LengthCounter::of_encoding(name, benchmark)?
            }
        };
        let mut files = vec![(dataset.name().to_owned(), places(&dataset, &counter)?)];
        for file in beside {
            let other =
                Dataset::open(file, SampleSpec::default(), |_| {})?.with_split(row_type.as_deref())?;
            files.push((other.name().to_owned(), places(&other, &counter)?));
        }
        // Builds name their files alike.
        let names: BTreeSet<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        if names.len() < files.len() {
            for ((name, _), path) in files.iter_mut().zip(std::iter::once(data).chain(beside)) {
                *name = path.display().to_string();
            }
        }
        if files.iter().all(|(_, cases)| cases.iter().all(|case| case.placement.is_none())) {
            return wrong(
                "--placement: no case has an old and a new session; give files of STALE".to_owned(),
            );
        }
        super::figures::placement(&files, folder)?;
    }
    let default = [PAPER_ENCODING.to_owned()];
    let encodings = if model.is_empty() && tokenizer.is_empty() { &default[..] } else { tokenizer };
    let opened = encodings.iter().map(|name| LengthCounter::of_encoding(name, benchmark));
    let opened = opened.chain(model.iter().map(|name| LengthCounter::of_model(name, benchmark)));
    let (mut lines, mut left_out) = (Vec::new(), 0);
    for counter in opened.collect::<anyhow::Result<Vec<_>>>()? {
        let bar = bar_of(dataset.bytes());
        let cases = dataset.cases_observed(|piece| bar.inc(piece.len() as u64))?;
        let mut broken = 0;
        let cases = cases.filter(|case| {
            let is_broken = matches!(case, Err(ReadError::Row(_)));
            broken += usize::from(is_broken);
            !is_broken
        });
        let mut apart = Vec::new();
        let cases = cases.map(|case| {
            if let (Ok(case), Some(set)) = (&case, benchmark.sets) {
                apart.extend(distances(case, set));
            }
            case.map_err(anyhow::Error::from)
        });
        let rows = measure(cases, split, |case| counter.format(case), |text| counter.count(text));
        let rows = rows.with_context(|| {
            format!("{}; `palimpsest data check` lists all problems of a file", data.display())
        })?;
        bar.finish_and_clear();
        left_out = broken;
        // The paper's rows use its own label and encoding.
        let comparable =
            with_paper && counter.name == PAPER_ENCODING && split == GroupBy::Label(benchmark.split);
        for measured in rows {
            let paper = printed.iter().find(|row| comparable && row.split == measured.split).copied();
            lines.push(LengthRow { tokenizer: counter.name.clone(), measured, paper, siblings: None });
        }
        if let Some(last) = lines.last_mut() {
            last.siblings = Siblings::of(apart);
        }
    }
    if *json {
        super::say(serde_json::to_string_pretty(&lines)?)?;
    } else {
        let title = format!("{} (SHA-256 {})", dataset.name(), dataset.digest());
        let siblings = lines.last().and_then(|line| line.siblings);
        let siblings = siblings.map_or_else(String::new, |siblings| format!("\n{siblings}"));
        super::say(format_args!("{title}\n\n{}{siblings}", table(split, &lines)))?;
    }
    if left_out > 0 {
        let said = format!(
            "{left_out} rows of {} are broken and not counted; `palimpsest data check` lists them",
            dataset.name()
        );
        return Err(EndedWithErrors(said).into());
    }
    Ok(())
}

/// A row a case, with its placement; broken rows are left out.
fn places(dataset: &Dataset, counter: &LengthCounter) -> anyhow::Result<Vec<SplitLengths>> {
    let sound = dataset.cases()?.filter(|case| !matches!(case, Err(ReadError::Row(_))));
    let cases = sound.map(|case| case.map_err(anyhow::Error::from));
    let mut rows = measure(cases, GroupBy::Case, |_| Ok(String::new()), |text| counter.count(text))?;
    // The row of all cases.
    rows.pop();
    Ok(rows)
}

/// Progress over the bytes of a file; hidden for small or unreadable files.
pub(super) fn reading_bar(file: &Path) -> ProgressBar {
    bar_of(file.metadata().map_or(0, |metadata| metadata.len()))
}

/// Progress over `bytes` on stderr; small files need none.
fn bar_of(bytes: u64) -> ProgressBar {
    const SMALL: u64 = 8 << 20;
    if bytes < SMALL {
        return ProgressBar::hidden();
    }
    progress::bytes(bytes, "reading")
}
