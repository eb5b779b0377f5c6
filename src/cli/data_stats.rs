//! `palimpsest data stats`: table 5 of the STALE paper for any file, any encoding and any model's tokeniser.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Context;
use indicatif::ProgressBar;
use serde::Serialize;

use super::WrongUsage;
use crate::benchmarks::dataset::Dataset;
use crate::benchmarks::reading::ReadError;
use crate::benchmarks::{Benchmark, PAPER_ENCODING, SampleSpec};
use crate::data::Case;
use crate::data::lengths::{GroupBy, PrintedLengths, SplitLengths, TokenCounts, measure};
use crate::ground::table::aligned;
use crate::models::ModelStore;
use crate::progress;
use crate::prompt::{BytePairEncoding, PromptBuilder, Templates};
use crate::run::setup::sound_cases;
use palimpsest_core::engine::TextSide;
use palimpsest_core::text::{ChatTemplate, CountTokens};

/// Count sessions, turns and tokens by a label (table 5 of the STALE paper).
///
/// Three forms of each case are counted: the raw JSON of its history and first query; the formatted context, which is its first
/// prompt by the model's chat template (of an encoding, which has none: by the plain layout); and the content alone, which is
/// what the turns say, one under another.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  palimpsest data stats T1_T2_400_FULL.json
  palimpsest data stats T1_T2_400_FULL.json --model smollm2-135m --tokenizer o200k_base
  palimpsest data stats sample --by type --json")]
pub struct Args {
    /// A benchmark file, or the word `sample` for the built-in sample.
    data: PathBuf,
    /// A model whose tokeniser and chat template to use: a name of `model list`, a folder, or a .gguf file; several times for several.
    #[arg(long, value_name = "NAME")]
    model: Vec<String>,
    /// An encoding that needs no model, o200k_base or cl100k_base; several times for both [default: o200k_base, without --model].
    #[arg(long, value_name = "ENCODING")]
    tokenizer: Vec<String>,
    /// The type of rows that do not say theirs, as those of STALE's construction (*_MAIN.json): T1 or T2.
    #[arg(long = "type", value_name = "TYPE")]
    row_type: Option<String>,
    /// The label to split by, or `case` for a row a history [default: the label of the benchmark's tables; none where cases have none].
    #[arg(long, value_name = "LABEL")]
    by: Option<String>,
    /// Draw how many cases have each value of that label (figure 5 of the STALE paper) into this folder, as SVG, PNG and CSV.
    #[arg(long, value_name = "DIR", requires = "by")]
    figure: Option<PathBuf>,
    /// Put the paper's numbers beside the measured ones [default: where the file is the published one].
    #[arg(long)]
    paper: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Line<'a> {
    tokenizer: &'a str,
    #[serde(flatten)]
    measured: SplitLengths,
    #[serde(skip_serializing_if = "Option::is_none")]
    paper: Option<PrintedLengths>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let Args { data, model, tokenizer, row_type, by, figure, paper, json } = args;
    let bar = reading_bar(data);
    let dataset = Dataset::open(data, SampleSpec::default(), |piece| bar.inc(piece.len() as u64))?;
    let dataset = dataset.with_split(row_type.as_deref())?;
    bar.finish_and_clear();
    let benchmark = dataset.benchmark();
    let printed = benchmark.printed_lengths;
    if *paper && printed.is_empty() {
        return Err(WrongUsage(format!("--paper: no paper prints the lengths of {}", benchmark.title)).into());
    }
    let beside = *paper || benchmark.published(dataset.digest()).is_some();
    let split = rows_of(&dataset, by.as_deref())?;
    match (figure, split) {
        (Some(folder), GroupBy::Label(label)) => super::distribution::draw(&dataset, label, folder)?,
        (Some(_), _) => return Err(WrongUsage("--figure: --by names no label; give one".to_owned()).into()),
        (None, _) => {}
    }
    let default = [PAPER_ENCODING.to_owned()];
    let encodings = if model.is_empty() && tokenizer.is_empty() { &default[..] } else { tokenizer };
    let opened = encodings.iter().map(|name| Counter::of_encoding(name, benchmark));
    let opened = opened.chain(model.iter().map(|name| Counter::of_model(name, benchmark)));
    let mut lines = Vec::new();
    for counter in opened.collect::<anyhow::Result<Vec<_>>>()? {
        let bar = bar_of(dataset.bytes());
        let cases = dataset.cases_observed(|piece| bar.inc(piece.len() as u64))?;
        let mut broken = 0;
        let cases = cases.filter(|case| {
            let is_broken = matches!(case, Err(ReadError::Row(_)));
            broken += usize::from(is_broken);
            !is_broken
        });
        let cases = cases.map(|case| case.map_err(anyhow::Error::from));
        let rows = measure(cases, split, |case| counter.format(case), |text| counter.count(text));
        let rows = rows.with_context(|| {
            format!("{}; `palimpsest data check` lists all problems of a file", data.display())
        })?;
        bar.finish_and_clear();
        if broken > 0 {
            progress::note(format_args!(
                "note: {broken} rows of {} are broken and not counted; `palimpsest data check` lists them",
                dataset.name()
            ));
        }
        // The paper's rows are of its own label and its own encoding.
        let comparable = beside && counter.name == PAPER_ENCODING && split == GroupBy::Label(benchmark.split);
        for measured in rows {
            let paper = printed.iter().find(|row| comparable && row.split == measured.split).copied();
            lines.push((counter.name.clone(), measured, paper));
        }
    }
    if *json {
        let line = |(tokenizer, measured, paper): &(String, SplitLengths, _)| {
            serde_json::to_value(Line { tokenizer, measured: measured.clone(), paper: *paper })
        };
        return super::say(serde_json::to_string_pretty(
            &lines.iter().map(line).collect::<Result<Vec<_>, _>>()?,
        )?);
    }
    let title = format!("{} (SHA-256 {})", dataset.name(), dataset.digest());
    let head = match split {
        GroupBy::Label(label) => label,
        GroupBy::Case => BY_CASE,
        GroupBy::All => "cases of",
    };
    super::say(format_args!("{title}\n\n{}", table(head, &lines)))
}

const BY_CASE: &str = "case";

/// The rows that are asked for. A label that no case has is refused, and those that there are are named; without `--by`, data without
/// the benchmark's own label has the row of all cases alone.
fn rows_of<'a>(dataset: &Dataset, by: Option<&'a str>) -> anyhow::Result<GroupBy<'a>> {
    if by == Some(BY_CASE) {
        return Ok(GroupBy::Case);
    }
    let label = by.unwrap_or_else(|| dataset.benchmark().split);
    let mut known = BTreeSet::new();
    for case in sound_cases(dataset)? {
        known.extend(case?.labels.into_keys());
        if known.contains(label) {
            return Ok(GroupBy::Label(label));
        }
    }
    if by.is_none() {
        return Ok(GroupBy::All);
    }
    let known: Vec<String> = std::iter::once(BY_CASE.to_owned()).chain(known).collect();
    let known = known.join(", ");
    Err(WrongUsage(format!("--by {label}: cases have no such label; there are {known}")).into())
}

struct Counter {
    name: String,
    builder: PromptBuilder,
    tokens: Box<dyn CountTokens + Send + Sync>,
}

impl Counter {
    /// An encoding: the plain layout, without a beginning-of-sequence token.
    fn of_encoding(name: &str, benchmark: &Benchmark) -> anyhow::Result<Self> {
        let tokens = BytePairEncoding::named(name).map_err(|error| WrongUsage(error.to_string()))?;
        let builder = PromptBuilder::new(Templates::load(benchmark, None)?, ChatTemplate::plain(None)?);
        Ok(Counter { name: tokens.name().to_owned(), builder, tokens: Box::new(tokens) })
    }

    fn of_model(name: &str, benchmark: &Benchmark) -> anyhow::Result<Self> {
        let files = ModelStore::open()?.resolve(name)?;
        let TextSide { tokenizer, template, .. } = TextSide::open(&files)?;
        let builder = PromptBuilder::new(Templates::load(benchmark, None)?, template);
        Ok(Counter { name: name.to_owned(), builder, tokens: Box::new(tokenizer) })
    }

    fn format(&self, case: &Case) -> anyhow::Result<String> {
        let probe = case.probes.first().with_context(|| format!("case `{}` has no probe", case.id))?;
        Ok(self.builder.build(&case.history, &case.evidence, probe)?.text)
    }

    fn count(&self, text: &str) -> anyhow::Result<usize> {
        Ok(self.tokens.count(text)?)
    }
}

fn table(split: &str, lines: &[(String, SplitLengths, Option<PrintedLengths>)]) -> String {
    let head =
        ["tokens of", split, "cases", "sessions", "turns", "mean", "median", "P95", "max", "content", "JSON"]
            .map(String::from);
    let mut rows = vec![head];
    let shown = |name: &str, split: &str, n: usize, [sessions, turns]: [f64; 2], of: &TokenCounts| {
        [
            name.to_owned(),
            split.to_owned(),
            n.to_string(),
            format!("{sessions:.2}"),
            format!("{turns:.2}"),
            format!("{:.0}", of.mean),
            format!("{:.0}", of.median),
            format!("{:.0}", of.p95),
            of.max.to_string(),
        ]
    };
    let with = |cells: [String; 9], content: String, raw: String| {
        let [a, b, c, d, e, f, g, h, i] = cells;
        [a, b, c, d, e, f, g, h, i, content, raw]
    };
    for (name, row, paper) in lines {
        let cells =
            shown(name, &row.split, row.instances, [row.sessions_mean, row.turns_mean], &row.formatted);
        rows.push(with(cells, format!("{:.0}", row.content.mean), format!("{:.0}", row.raw.mean)));
        if let Some(p) = paper {
            let cells = shown("  paper", p.split, p.instances, [p.sessions_mean, p.turns_mean], &p.formatted);
            rows.push(with(cells, format!("{:.0}", p.content_mean), String::new()));
        }
    }
    aligned(&rows, |column| column > 1)
        + "\nSessions and turns: means. Mean, median, P95 and max: tokens of the formatted context (history and first probe).\n\
           Content and JSON: mean tokens of what the turns say alone, and of history and query as JSON."
}

/// A bar over the bytes of a file; nothing where the file is small or cannot be seen.
pub(super) fn reading_bar(file: &Path) -> ProgressBar {
    bar_of(file.metadata().map_or(0, |metadata| metadata.len()))
}

/// A bar over `bytes`, on standard error. Indicatif shows none where that is no terminal; small files need none.
fn bar_of(bytes: u64) -> ProgressBar {
    const SMALL: u64 = 8 << 20;
    if bytes < SMALL {
        return ProgressBar::hidden();
    }
    progress::bytes(bytes, "reading")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_aligned_rounds_tokens_to_whole_ones_and_puts_the_paper_below() {
        let formatted = TokenCounts { mean: 151_784.4, median: 151_829.0, p95: 158_656.5, max: 164_919 };
        let content = TokenCounts { mean: 149_562.0, ..formatted };
        let row = |split: &str, instances| SplitLengths {
            split: split.to_owned(),
            instances,
            sessions_mean: 50.0,
            turns_mean: 593.3975,
            formatted,
            content_mean: content.mean,
            raw: TokenCounts { mean: 160_001.0, ..formatted },
            content,
        };
        let paper = PrintedLengths {
            split: "all",
            instances: 400,
            sessions_mean: 50.0,
            turns_mean: 593.4,
            formatted,
            content_mean: 149_562.0,
        };
        let name = || "o200k_base".to_owned();
        let text = table("type", &[(name(), row("T1", 200), None), (name(), row("all", 400), Some(paper))]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "tokens of   type  cases  sessions   turns    mean  median     P95     max  content    JSON"
        );
        assert_eq!(
            lines[2],
            "o200k_base  all     400     50.00  593.40  151784  151829  158656  164919   149562  160001"
        );
        assert_eq!(
            lines[3],
            "  paper     all     400     50.00  593.40  151784  151829  158657  164919   149562"
                .replace("158657", "158656")
        );
        assert!(lines[..3].iter().all(|line| line.len() == lines[0].len()), "{text}");
    }
}
