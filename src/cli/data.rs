//! `palimpsest data`: check, measure and write benchmark files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Subcommand;
use indicatif::ProgressBar;

use crate::benchmarks::dataset::{Checked, Dataset, check_file};
use crate::benchmarks::reading::Report;
use crate::benchmarks::{ALL, Benchmark, SampleSpec};
use crate::data::Case;
use crate::data::stats::{SplitStats, measure};
use crate::engine::TextSide;
use crate::ground::files::write_atomically;
use crate::ground::table::aligned;
use crate::model::fetch::ModelStore;
use crate::progress;
use crate::prompt::{PromptBuilder, Templates, contents, known_special_tokens};

const EXAMPLES: &str = "\
Examples:
  palimpsest data check T1_T2_400_FULL.json
  palimpsest data sample --sessions 50 --out sample.json
  palimpsest data stats sample --model smollm2-135m";

/// Check, measure and write benchmark files.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Check a benchmark file: every problem is counted, the first 20 are listed, and the exit code is 1 if there is one.
    #[command(after_help = "Examples:\n  palimpsest data check T1_T2_400_FULL.json")]
    Check {
        /// The file; which benchmark's it is shows in its content.
        file: PathBuf,
        /// Also note the special tokens of this model that the text spells, beside those of known formats.
        #[arg(long)]
        model: Option<String>,
    },
    /// Write the built-in sample as a file.
    #[command(after_help = "Examples:\n  palimpsest data sample --sessions 50 --seed 1 --out sample.json")]
    Sample {
        /// Sessions of each case, 2 to 10,000.
        #[arg(long, default_value_t = 50)]
        sessions: usize,
        /// Seed of the assembly: positions, distractors and times follow from it.
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// Where to write; standard output if left out.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Count sessions, turns and tokens by split (table 5 of the STALE paper).
    #[command(after_help = "Examples:\n  palimpsest data stats T1_T2_400_FULL.json --model smollm2-135m")]
    Stats {
        /// A benchmark file, or the word `sample` for the built-in sample.
        data: PathBuf,
        /// The model whose tokeniser and chat template to use: a name of `model list`, a folder, or a .gguf file.
        #[arg(long)]
        model: String,
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    match args.action {
        Action::Check { file, model } => check(&file, model.as_deref()),
        Action::Sample { sessions, seed, out } => {
            write_sample(SampleSpec { segments: Some(sessions), seed }, out.as_deref())
        }
        Action::Stats { data, model, json } => stats(&data, &model, json),
    }
}

fn check(file: &Path, model: Option<&str>) -> anyhow::Result<()> {
    let bar = reading_bar(file);
    let Checked { benchmark, report, digest } = check_file(file, |piece| bar.inc(piece.len() as u64))?;
    bar.finish_and_clear();
    if report.is_sound() {
        let published = benchmark.published(&digest);
        let published = published.map(|name| format!(" (the published {name})")).unwrap_or_default();
        super::say(format_args!(
            "{}: {}, no problems, SHA-256 {digest}{published}",
            file.display(),
            counts(&report)
        ))?;
        return note_special_tokens(file, model);
    }
    let mut lines: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    if report.problem_count > report.problems.len() {
        lines.push(format!("and {} more", report.problem_count - report.problems.len()));
    }
    if let Some(broken) = report.broken {
        lines.push(format!("{:#}", anyhow::Error::from(broken)));
        let sound: usize = report.splits.values().sum();
        lines.push(format!("nothing behind this place was checked ({sound} sound rows before it)"));
    }
    let title = benchmark.title();
    bail!("{} is not a sound {title} file\n  {}", file.display(), lines.join("\n  "))
}

/// How many cases a note names.
const NAMED: usize = 20;

/// Says which cases hold text that spells a special token. They are sound: it is read as that token unless a run is told
/// otherwise.
fn note_special_tokens(file: &Path, model: Option<&str>) -> anyhow::Result<()> {
    let tokenizer = match model {
        Some(model) => Some(TextSide::open(&ModelStore::open()?.resolve(model)?)?.tokenizer),
        None => None,
    };
    let dataset = Dataset::open(file, SampleSpec::default(), |_| {})?;
    let (mut count, mut named) = (0, Vec::new());
    for case in super::cases(&dataset)? {
        let case = case?;
        let mut found: BTreeSet<String> = BTreeSet::new();
        for text in contents(&case) {
            found.extend(known_special_tokens(text).into_iter().map(str::to_owned));
            found.extend(tokenizer.iter().flat_map(|tokenizer| tokenizer.special_tokens_in(text)));
        }
        if found.is_empty() {
            continue;
        }
        count += 1;
        if named.len() < NAMED {
            let tokens: Vec<&str> = found.iter().map(String::as_str).collect();
            named.push(format!("  case `{}`: {}", case.id, tokens.join(" ")));
        }
    }
    if count == 0 {
        return Ok(());
    }
    if count > named.len() {
        named.push(format!("  and {} more", count - named.len()));
    }
    super::say(format_args!(
        "note: {count} cases hold text that spells a special token, which ends a turn in mid-history as it does in transformers; \
         `palimpsest run --special-tokens text` reads it as plain text\n{}",
        named.join("\n")
    ))
}

/// `400 rows (T1 200, T2 200)`.
fn counts(report: &Report) -> String {
    let splits: Vec<String> = report.splits.iter().map(|(split, n)| format!("{split} {n}")).collect();
    format!("{} rows ({})", report.rows, splits.join(", "))
}

fn write_sample(spec: SampleSpec, out: Option<&Path>) -> anyhow::Result<()> {
    let benchmark: &dyn Benchmark = ALL[0];
    let text = benchmark.sample(spec)?;
    let Some(path) = out else {
        return super::write_out(&text);
    };
    write_atomically(path, &text).with_context(|| {
        format!("cannot write {}; name a file in a folder that exists and can be written to", path.display())
    })?;
    let cases = benchmark.read(Box::new(text.as_slice())).count();
    let segments = spec.segments.map(|n| format!(" of {n} {}s", benchmark.segment())).unwrap_or_default();
    super::say(format_args!("wrote {}: {cases} cases{segments}, seed {}", path.display(), spec.seed))
}

fn stats(data: &Path, model: &str, json: bool) -> anyhow::Result<()> {
    let bar = reading_bar(data);
    let dataset = Dataset::open(data, SampleSpec::default(), |piece| bar.inc(piece.len() as u64))?;
    bar.finish_and_clear();
    let shown = shown_to(model, dataset.benchmark())?;
    let bar = bar_of(dataset.bytes());
    let cases = dataset.cases_observed(|piece| bar.inc(piece.len() as u64))?;
    let cases = cases.map(|case| case.map_err(anyhow::Error::from));
    let rows =
        measure(cases, dataset.benchmark().split(), &shown.format, &shown.count).with_context(|| {
            format!("{}; `palimpsest data check` lists all problems of a file", data.display())
        })?;
    bar.finish_and_clear();
    if json {
        return super::say(serde_json::to_string_pretty(&rows)?);
    }
    super::say(format_args!(
        "{} (SHA-256 {}), tokens of {model}\n\n{}",
        dataset.name(),
        dataset.digest(),
        table(&rows)
    ))
}

/// How a model sees a case and counts its tokens.
struct Shown {
    /// The formatted context of a case: history and its first probe.
    format: Box<Shows<Case, String>>,
    /// Tokens of a text.
    count: Box<Shows<str, usize>>,
}

type Shows<From, To> = dyn Fn(&From) -> anyhow::Result<To>;

/// The case's first prompt by the model's chat template, and the model's tokeniser.
fn shown_to(model: &str, benchmark: &dyn Benchmark) -> anyhow::Result<Shown> {
    let files = ModelStore::open()?.resolve(model)?;
    let TextSide { tokenizer, template, .. } = TextSide::open(&files)?;
    let builder = PromptBuilder::new(Templates::load(benchmark, None)?, template);
    Ok(Shown {
        format: Box::new(move |case| {
            let probe = case.probes.first().with_context(|| format!("case `{}` has no probe", case.id))?;
            Ok(builder.build(&case.history, &case.evidence, probe)?.text)
        }),
        count: Box::new(move |text| Ok(tokenizer.count(text)?)),
    })
}

/// Table 5 as aligned text.
fn table(rows: &[SplitStats]) -> String {
    let head = ["split", "cases", "sessions", "turns", "mean", "median", "P95", "max", "content mean"]
        .map(String::from);
    let lines: Vec<[String; 9]> = std::iter::once(head)
        .chain(rows.iter().map(|row| {
            [
                row.split.clone(),
                row.instances.to_string(),
                format!("{:.2}", row.sessions_mean),
                format!("{:.2}", row.turns_mean),
                format!("{:.0}", row.formatted.mean),
                format!("{:.0}", row.formatted.median),
                format!("{:.0}", row.formatted.p95),
                row.formatted.max.to_string(),
                format!("{:.0}", row.content_mean),
            ]
        }))
        .collect();
    aligned(&lines, |column| column > 0)
        + "\nSessions and turns: means. Mean, median, P95 and max: tokens of the formatted context (history and first probe)."
}

/// A bar over the bytes of a file; nothing where the file is small or cannot be seen.
fn reading_bar(file: &Path) -> ProgressBar {
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
    use crate::data::stats::TokenStats;

    #[test]
    fn the_table_is_aligned_and_rounds_tokens_to_whole_ones() {
        let formatted = TokenStats { mean: 151_784.4, median: 151_829.0, p95: 158_656.5, max: 164_919 };
        let row = |split: &str, instances| SplitStats {
            split: split.to_owned(),
            instances,
            sessions_mean: 50.0,
            turns_mean: 593.3975,
            formatted,
            content_mean: 149_562.0,
        };
        let text = table(&[row("T1", 200), row("all", 400)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "split  cases  sessions   turns    mean  median     P95     max  content mean");
        assert_eq!(lines[2], "all      400     50.00  593.40  151784  151829  158656  164919        149562");
        assert!(lines[..3].iter().all(|line| line.len() == lines[0].len()), "{text}");
    }
}
