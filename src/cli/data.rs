//! `palimpsest data`: check, measure and write benchmark files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Subcommand;

use super::data_stats::{self, reading_bar};
use crate::benchmarks::dataset::{Checked, Dataset, benchmark_named, cases_in_memory, check_file};
use crate::benchmarks::reading::{Problem, Report};
use crate::benchmarks::{ALL, Benchmark, Dimension, SampleSpec};
use crate::engine::TextSide;
use crate::ground::files::write_atomically;
use crate::model::fetch::ModelStore;
use crate::prompt::{contents, known_special_tokens};

const EXAMPLES: &str = "\
Examples:
  palimpsest data check T1_T2_400_FULL.json
  palimpsest data sample --sessions 50 --out sample.json
  palimpsest data stats T1_T2_400_FULL.json";

/// Check, measure and write benchmark files.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Check a benchmark's data: every problem is a line on standard output, and the exit code is 1 if there is one.
    #[command(
        after_help = "Examples:\n  palimpsest data check T1_T2_400_FULL.json\n  palimpsest data check broken.json --limit 20"
    )]
    Check {
        /// The file or the folder; which benchmark's it is shows in its content.
        #[arg(value_name = "FILE_OR_FOLDER")]
        file: PathBuf,
        /// List at most N problems; the rest are counted.
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
        /// Also note the special tokens of this model that the text spells, beside those of known formats.
        #[arg(long)]
        model: Option<String>,
    },
    /// Write a benchmark's built-in sample as the file or the folder that its data has.
    #[command(
        after_help = "Examples:\n  palimpsest data sample --sessions 50 --seed 1 --out sample.json\n  palimpsest data sample --benchmark subtlememory --out sample"
    )]
    Sample {
        /// Whose sample.
        #[arg(long, default_value_t = crate::benchmarks::default_name(), value_name = "NAME")]
        benchmark: String,
        /// Sessions of each case where the benchmark's sample can be made to measure (stale: 2 to 10,000) [default: stale's are 50].
        #[arg(long, value_name = "N")]
        sessions: Option<usize>,
        /// Seed of the assembly: positions, distractors and times follow from it.
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// Where to write; a single file goes to standard output if left out.
        #[arg(long, value_name = "FILE_OR_FOLDER")]
        out: Option<PathBuf>,
    },
    Stats(data_stats::Args),
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    match args.action {
        Action::Check { file, limit, model } => check(&file, limit.unwrap_or(usize::MAX), model.as_deref()),
        Action::Sample { benchmark, sessions, seed, out } => {
            write_sample(&benchmark, sessions, seed, out.as_deref())
        }
        Action::Stats(args) => data_stats::run(&args),
    }
}

fn check(file: &Path, limit: usize, model: Option<&str>) -> anyhow::Result<()> {
    let bar = reading_bar(file);
    let (mut listed, mut said) = (0, Ok(()));
    // Told as they are found: a file may have more of them than memory holds.
    let mut list = |problem: &Problem| {
        if listed < limit && said.is_ok() {
            said = bar.suspend(|| super::say(problem));
            listed += 1;
        }
    };
    let checked = check_file(file, |piece| bar.inc(piece.len() as u64), &mut list);
    bar.finish_and_clear();
    let Checked { benchmark, report, digest } = checked?;
    said?;
    if report.is_sound() {
        let published = benchmark.published(&digest);
        let published = published.map(|name| format!(" (the published {name})")).unwrap_or_default();
        super::say(format_args!(
            "{}: {}, no problems, SHA-256 {digest}{published}",
            file.display(),
            counts(benchmark, &report)
        ))?;
        list_flags(&report)?;
        return note_special_tokens(file, model);
    }
    if report.problem_count > listed {
        super::say(format_args!("and {} more", report.problem_count - listed))?;
    }
    let sound: usize = report.splits.values().sum();
    let of_rows =
        format!("{} problems in {} of {} rows", report.problem_count, report.rows - sound, report.rows);
    list_flags(&report)?;
    if report.broken.is_none() {
        note_special_tokens(file, model)?;
    }
    let (file, title) = (file.display(), benchmark.title());
    match report.broken {
        None => bail!("{file} is not a sound {title} file: {of_rows}; `run` counts such rows as errors"),
        Some(broken) => bail!(
            "{file} is not a sound {title} file: {:#}\n  nothing behind this place was checked ({sound} sound rows before it; {of_rows} \
             so far)",
            anyhow::Error::from(broken)
        ),
    }
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
    for case in super::sound_cases(&dataset)? {
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
        "note: {count} case{} hold{} text that spells a special token, which ends a turn in mid-history as it does in transformers; \
         `palimpsest run --special-tokens text` reads it as plain text\n{}",
        if count == 1 { "" } else { "s" },
        if count == 1 { "s" } else { "" },
        named.join("\n")
    ))
}

/// What is odd in sound data: a line each.
fn list_flags(report: &Report) -> anyhow::Result<()> {
    report.flags.iter().try_for_each(|(case, flag)| super::say(format_args!("flag: case `{case}`, {flag}")))
}

/// `400 rows (T1 200, T2 200)`, with the questions where cases have different ones.
fn counts(benchmark: &dyn Benchmark, report: &Report) -> String {
    let by = |counts: &BTreeMap<String, usize>| {
        counts.iter().map(|(of, n)| format!("{of} {n}")).collect::<Vec<_>>().join(", ")
    };
    let rows = match report.splits.keys().any(|split| !split.is_empty()) {
        true => format!("{} rows ({})", report.rows, by(&report.splits)),
        // No label parts its cases.
        false => format!("{} rows", report.rows),
    };
    if !benchmark.probes().is_empty() || benchmark.dimension() == Dimension::Probe {
        return rows;
    }
    let questions: usize = report.probes.values().sum();
    format!("{rows}, {questions} questions ({})", by(&report.probes))
}

/// Sessions of a case of the default benchmark's sample.
const DEFAULT_SESSIONS: usize = 50;

fn write_sample(name: &str, sessions: Option<usize>, seed: u64, out: Option<&Path>) -> anyhow::Result<()> {
    let benchmark: &dyn Benchmark =
        benchmark_named(&ALL, name).map_err(|error| super::WrongUsage(error.to_string()))?;
    let is_default = name == crate::benchmarks::default_name();
    let spec = SampleSpec { segments: sessions.or(is_default.then_some(DEFAULT_SESSIONS)), seed };
    let files = benchmark.sample(spec)?;
    let Some(path) = out else {
        let [(_, bytes)] = files.as_slice() else {
            let why = format!(
                "the sample of {} is a folder of {} files; name it with --out",
                benchmark.title(),
                files.len()
            );
            return Err(super::WrongUsage(why).into());
        };
        return super::write_out(bytes);
    };
    let cannot = |path: &Path| {
        format!("cannot write {}; name a place in a folder that exists and can be written to", path.display())
    };
    if let [(_, bytes)] = files.as_slice() {
        write_atomically(path, bytes).with_context(|| cannot(path))?;
    } else {
        // Other files there would be taken for data.
        let taken = path.exists() && path.read_dir().map_or(true, |mut entries| entries.next().is_some());
        anyhow::ensure!(
            !taken,
            "{} is not an empty folder; give one that does not exist yet",
            path.display()
        );
        for (name, bytes) in &files {
            let file = path.join(name);
            let folder = file.parent().unwrap_or(path);
            std::fs::create_dir_all(folder).with_context(|| cannot(folder))?;
            write_atomically(&file, bytes).with_context(|| cannot(&file))?;
        }
    }
    let cases: Vec<_> = cases_in_memory(benchmark, files).into_iter().collect::<Result<_, _>>()?;
    let questions: usize = cases.iter().map(|case| case.probes.len()).sum();
    let segments = spec.segments.map(|n| format!(" of {n} {}s", benchmark.segment())).unwrap_or_default();
    super::say(format_args!(
        "wrote {}: {} cases{segments}, {questions} questions, seed {seed}",
        path.display(),
        cases.len()
    ))
}
