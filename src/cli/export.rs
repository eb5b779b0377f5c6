//! `palimpsest export`: a run's answers and verdicts in the formats of other tools.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::benchmarks::stale::exchange::format;
use crate::export::{hypotheses, inspect, parquet};
use crate::ground::files::write_atomically_by;
use crate::progress::note;
use crate::run::exchange::export;
use crate::run::judge_name::JudgeChoice;
use crate::run::judged::Judged;
use crate::run::store::RunFolder;

const EXAMPLES: &str = "\
Examples:
  palimpsest export --format inspect runs/first --out first.json
  palimpsest export --format parquet runs/first --out first.parquet
  palimpsest export --stale runs/first --out answers.json";

/// Write a run's answers and verdicts in the format of another tool.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["dir", "stale"]))]
pub struct Args {
    /// The run folder.
    #[arg(requires = "format")]
    dir: Option<PathBuf>,
    /// What to write.
    #[arg(long, conflicts_with = "stale")]
    format: Option<Format>,
    /// The same as `--format stale DIR`.
    #[arg(long, value_name = "DIR")]
    stale: Option<PathBuf>,
    /// The answers of this condition, for example repeat-2 [default: the plain one; of Parquet all].
    #[arg(long, value_name = "NAME")]
    condition: Option<String>,
    /// Verdicts of this judge, with or without its rubric in brackets [default: Inspect all, Parquet the last].
    #[arg(long, value_name = "NAME")]
    judge: Option<String>,
    /// Verdicts by this rubric [default: Inspect all, Parquet the last].
    #[arg(long, value_name = "NAME")]
    rubric: Option<String>,
    /// Inspect: put the history before each question, as the model was shown it; long histories make a large file.
    #[arg(long)]
    with_history: bool,
    /// The file to write; standard output without it.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write what there is of an unfinished run; missing answers become empty strings in stale and longmemeval.
    #[arg(long)]
    partial: bool,
}

/// A format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Inspect's eval log, for `inspect view`
    Inspect,
    /// Parquet, one row an answer, for `datasets`
    Parquet,
    /// LongMemEval's hypotheses, JSON lines
    Longmemeval,
    /// The exchange format of STALE's authors
    Stale,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let Args { dir, format: asked, stale, condition, judge, rubric, with_history, out, partial } = args;
    let asked = asked.unwrap_or(Format::Stale);
    let Some(dir) = dir.or(stale) else { return Ok(()) };
    let wrong = |why: &str| Err(super::WrongUsage(why.to_owned()).into());
    if with_history && asked != Format::Inspect {
        return wrong("--with-history is for --format inspect; drop it");
    }
    let choice = JudgeChoice { judge: judge.as_deref(), rubric: rubric.as_deref() };
    if choice != JudgeChoice::default() && !matches!(asked, Format::Inspect | Format::Parquet) {
        return wrong(
            "--judge and --rubric are for --format inspect and parquet, as the others hold no verdicts; drop them",
        );
    }
    let mut folder = RunFolder::read(&dir)?;
    if asked != Format::Parquet || condition.is_some() {
        folder = folder.condition(condition.as_deref().unwrap_or_default())?;
    }
    let out = out.as_deref();
    match asked {
        Format::Stale => {
            let benchmark = &folder.header.identity.benchmark;
            anyhow::ensure!(
                benchmark == "stale",
                "{} is a run of the benchmark `{benchmark}`, whose answers STALE's format cannot hold; choose another --format",
                dir.display()
            );
            let answers = format(export(&folder, partial)?);
            let text = serde_json::to_string_pretty(&answers)? + "\n";
            put(out, |to| Ok(to.write_all(text.as_bytes())?))?;
            said(out, format_args!("answers to {} cases", answers.len()))
        }
        Format::Longmemeval => {
            let text = hypotheses::lines(&folder, partial)?;
            put(out, |to| Ok(to.write_all(text.as_bytes())?))?;
            said(out, format_args!("{} hypotheses", text.lines().count()))
        }
        Format::Parquet => {
            let judged = folder.judged_by(choice)?.pop();
            judged.iter().for_each(warn_of);
            let conditions = match &condition {
                Some(name) => vec![name.as_str()],
                None => folder.header.identity.condition_names(),
            };
            let rows =
                put(out, |to| Ok(parquet::write(to, &folder, &conditions, judged.as_ref(), partial)?))?;
            said(out, format_args!("{rows} rows"))
        }
        Format::Inspect => {
            let judges = folder.judged_by(choice)?;
            let benchmark = super::benchmark_of(&dir, &folder.header)?;
            let condition = condition.as_deref().unwrap_or_default();
            let log = inspect::Log { benchmark, condition, with_history, partial };
            judges.iter().for_each(warn_of);
            let samples = put(out, |to| Ok(inspect::write(to, &folder, &judges, log)?))?;
            said(out, format_args!("{samples} samples"))
        }
    }
}

/// Says what a reader of the export would not see in its verdicts.
fn warn_of(judged: &Judged<'_>) {
    if let Some(why) = judged.no_result() {
        note(format_args!("note: the verdicts of {} are no result: {why}", judged.name.label));
    } else if let Some(warning) = judged.warning() {
        note(format_args!("note: {warning}"));
    }
}

/// Hands `write` the file to write, which is put in its place when all of it is written, or standard output.
fn put<T>(
    out: Option<&Path>,
    write: impl FnOnce(&mut (dyn Write + Send)) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let Some(path) = out else {
        let mut bytes = Vec::new();
        let done = write(&mut bytes)?;
        super::write_out(&bytes)?;
        return Ok(done);
    };
    super::writable(path)?;
    write_atomically_by(path, write).with_context(|| format!("cannot write {}", path.display()))
}

/// Says where the export is and what is in it.
fn said(out: Option<&Path>, what: std::fmt::Arguments<'_>) -> anyhow::Result<()> {
    match out {
        Some(path) => super::say(format_args!("{}: {what}", path.display())),
        None => Ok(()),
    }
}
