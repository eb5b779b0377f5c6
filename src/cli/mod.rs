//! One file a command: the clap struct (what was typed), its validated form, and the call into the library.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::benchmarks::dataset::Dataset;
use crate::benchmarks::reading::ReadError;
use crate::benchmarks::{self, Benchmark};
use crate::data::Case;
use crate::model::Kept;
use crate::progress::note;
use crate::run::header::RunHeader;
use crate::run::runner::Summary;
use crate::stats::Recorder;
use anyhow::Context;
use clap::{Parser, Subcommand};
use interrupt::INTERRUPTED;
use serde_json::json;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

mod agree;
mod data;
mod data_stats;
mod driver;
mod estimate;
mod export;
mod figures;
mod import;
mod interrupt;
mod judge;
mod lens;
mod memory_plan;
mod merge;
mod model;
mod quickstart;
mod report;
mod run;
mod selftest;
mod table;
mod thinking;
mod trace;
mod trial;

/// Which writing does a language model read after a later session has overwritten an earlier one?
#[derive(Debug, Parser)]
#[command(
    name = "palimpsest",
    version,
    about,
    propagate_version = true,
    after_help = "\
Examples:
  palimpsest quickstart
  palimpsest run --data sample --limit 4 --context 4096 --out runs/first
  palimpsest judge runs/first --judge local:smollm2-135m
  palimpsest report runs/first

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 stopped by Ctrl-C (the same command goes on)."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Each command's help is the doc comment of its `Args`.
#[derive(Debug, Subcommand)]
enum Command {
    Quickstart(quickstart::Args),
    // Boxed: it has the most flags by far.
    Run(Box<run::Args>),
    Judge(judge::Args),
    Lens(lens::Args),
    Figures(figures::Args),
    Table(table::Args),
    Report(report::Args),
    Agree(agree::Args),
    Trace(trace::Args),
    Export(export::Args),
    Import(import::Args),
    Merge(merge::Args),
    Data(data::Args),
    Model(model::Args),
    Selftest(selftest::Args),
}

impl Command {
    /// Whether it is to say where its time went.
    fn wants_stats(&self) -> bool {
        match self {
            Command::Run(args) => args.stats.is_some(),
            Command::Trace(args) => args.stats.is_some(),
            _ => false,
        }
    }
}

/// Parses the command line, runs the command and prints its error once. Exit codes: 0 done, 1 failed, 2 wrong usage, 130
/// stopped by Ctrl-C.
pub fn main() -> ExitCode {
    let command = Cli::parse().command;
    let stats = command.wants_stats().then(Recorder::new);
    show_warnings(stats.as_ref());
    let done = driver::guarded(|| match command {
        Command::Quickstart(args) => quickstart::run(args),
        Command::Run(args) if args.wants_estimate() => estimate::run(*args),
        Command::Run(args) => run::run(*args, stats.as_ref()),
        Command::Judge(args) => judge::run(args),
        Command::Lens(args) => lens::run(args),
        Command::Figures(args) => figures::run(args),
        Command::Table(args) => table::run(args),
        Command::Report(args) => report::run(args),
        Command::Agree(args) => agree::run(args),
        Command::Trace(args) => trace::run(args, stats.as_ref()),
        Command::Export(args) => export::run(args),
        Command::Import(args) => import::run(args),
        Command::Merge(args) => merge::run(args),
        Command::Data(args) => data::run(args),
        Command::Model(args) => model::run(args),
        Command::Selftest(args) => selftest::run(args),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note(format_args!("error: {}", in_one_line(&error)));
            if error.is::<WrongUsage>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

/// Warnings of the library (a retry, a row that was cut off) on stderr; RUST_LOG asks for more or less. The times of
/// `--stats` pass beside them.
fn show_warnings(stats: Option<&Recorder>) {
    let wanted = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("palimpsest=warn"));
    let log = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .without_time()
        .with_filter(wanted);
    tracing_subscriber::registry().with(log).with(stats.map(Recorder::layer)).init();
}

/// An error and its causes. A cause that the message before it already tells is left out.
fn in_one_line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Flags that make no sense, alone or together: exit code 2, as for those that clap refuses.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct WrongUsage(String);

/// Writes a line to standard output. A reader that left early, such as `head`, is no error.
fn say(line: impl Display) -> anyhow::Result<()> {
    write_out(format!("{line}\n").as_bytes())
}

/// Writes to standard output, as [`say`] does.
fn write_out(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write to standard output"),
    }
}

/// What is kept in memory of quantised weights on the CPU in f32. Answers are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Weights {
    /// `dense` where memory allows, else `quantised`
    #[default]
    Auto,
    /// The quantised weights and the dequantised ones in f32: the fastest
    Dense,
    /// The quantised bits alone: the least memory
    Quantised,
}

impl From<Weights> for Option<Kept> {
    fn from(weights: Weights) -> Self {
        match weights {
            Weights::Auto => None,
            Weights::Dense => Some(Kept::Dense),
            Weights::Quantised => Some(Kept::Quantised),
        }
    }
}

/// Parses a whole number above 0.
fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err("give a whole number above 0".to_owned()),
    }
}

/// Refuses, before any work, an output file whose folder is missing or cannot be written to.
fn writable(path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::tempfile_in(folder)
        .map(drop)
        .with_context(|| format!("{} cannot be written: its folder {}", path.display(), folder.display()))
}

/// Writes what `--stats` asks for to its file, and as a table to stderr.
fn write_stats(path: &Path, stats: &Recorder) -> anyhow::Result<()> {
    let report = stats.report();
    let mut json = report.json();
    json.insert("peak_resident_bytes".to_owned(), json!(crate::engine::peak_resident_bytes()));
    note(report.table());
    let text = format!("{:#}\n", serde_json::Value::from(json));
    crate::ground::files::write_atomically(path, text.as_bytes())
        .with_context(|| format!("{}", path.display()))
}

/// Refuses a context longer than the model was made for, unless told to go on.
fn check_context(tokens: usize, model_limit: usize, allow_longer: bool) -> anyhow::Result<()> {
    anyhow::ensure!(
        tokens <= model_limit || allow_longer,
        "{tokens} tokens are more than the model's context length of {model_limit}; cut the input, use a model with a longer context, or pass --allow-longer to see what it does beyond"
    );
    Ok(())
}

/// The model files behind a name or path.
fn model_paths(name: &str) -> anyhow::Result<Vec<PathBuf>> {
    Ok(crate::engine::resolve_to_run(&crate::model::fetch::ModelStore::open()?, name)?.paths())
}

/// The cases of a data set, one in memory at a time, with what helps where one is not sound.
fn cases(dataset: &Dataset) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Case>>> {
    let name = dataset.name().to_owned();
    Ok(dataset.cases()?.map(move |case| {
        case.with_context(|| format!("{name} cannot be used; `palimpsest data check` lists all its problems"))
    }))
}

/// [`cases`] without the rows that are broken.
fn sound_cases(dataset: &Dataset) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Case>>> {
    let is_broken = |case: &anyhow::Error| matches!(case.downcast_ref(), Some(ReadError::Row(_)));
    Ok(cases(dataset)?.filter(move |case| !case.as_ref().is_err_and(is_broken)))
}

/// What a run is of.
fn benchmark_of(dir: &Path, header: &RunHeader) -> anyhow::Result<&'static dyn Benchmark> {
    let name = &header.identity.benchmark;
    benchmarks::named(name).with_context(|| {
        let known: Vec<&str> = benchmarks::ALL.iter().map(|benchmark| benchmark.name()).collect();
        let (dir, known) = (dir.display(), known.join(", "));
        format!(
            "{dir} is a run of the benchmark `{name}`, which this version does not know; it knows {known}"
        )
    })
}

/// Says what a job that can be resumed came to. Ends the process with the interrupt's exit code where it was stopped, and
/// is an error where nothing came of it at all.
fn conclude(dir: &Path, what: &str, file: &str, summary: &Summary) -> anyhow::Result<()> {
    let Summary { planned, skipped, done, errors, stopped, cut } = *summary;
    let (dir, there) = (dir.display(), skipped + done);
    say(format_args!(
        "{dir}: {there} of {planned} {what} ({skipped} from before, {done} new, {errors} errors)"
    ))?;
    if cut > 0 {
        say(format_args!(
            "{cut} more ended inside a thought before and are left as errors, since the same would come again; --retry-cut tries \
             them again"
        ))?;
    }
    if stopped {
        say("stopped; the same command goes on from here")?;
        std::process::exit(INTERRUPTED);
    }
    if errors > 0 {
        say(format_args!("the reasons are in {file}; the same command tries the errors again"))?;
        anyhow::ensure!(there > 0, "{dir}: all {errors} {what} failed");
    }
    Ok(())
}
