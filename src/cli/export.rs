//! `palimpsest export`: answers and verdicts in other tools' formats.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::wrong;
use crate::benchmarks::stale::exchange;
use crate::export::{ExportText, OneAnswer, inspect, not_asked, other_conditions, parquet, under};
use crate::progress::note;
use crate::runs::condition::label;
use crate::runs::judge_name::JudgeChoice;
use crate::runs::judged::Judged;
use crate::runs::store::RunFolder;
use palimpsest_core::files::write_atomically_by;

const EXAMPLES: &str = "\
Examples:
  palimpsest export --format inspect runs/first --out first.json
  palimpsest export --format parquet runs/first --out first.parquet
  palimpsest export --format longmemeval runs/first --condition plain --out hypotheses.jsonl
  palimpsest export --stale runs/first --out answers.json";

/// Write a run's answers and verdicts in the format of another tool.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["dir", "stale"]))]
pub struct Args {
    /// The run folder.
    #[arg(requires = "format")]
    dir: Option<PathBuf>,
    /// The format.
    #[arg(long, conflicts_with = "stale")]
    format: Option<Format>,
    /// The same as `--format stale DIR`.
    #[arg(long, value_name = "DIR")]
    stale: Option<PathBuf>,
    /// Only answers under these conditions, for example plain,repeat-2 [default: all].
    ///
    /// The formats stale and longmemeval hold one answer per question: each of several conditions gets a file CONDITION-FILE beside --out
    /// FILE.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    condition: Vec<String>,
    /// Verdicts of this judge, with or without its address, and its rubric in brackets [default: all in inspect, the last in parquet].
    #[arg(long, value_name = "NAME")]
    judge: Option<String>,
    /// Verdicts by this rubric [default: all in inspect, the last in parquet].
    #[arg(long, value_name = "NAME")]
    rubric: Option<String>,
    /// inspect: include the history before each question, as the model was shown it; long histories make a large file.
    #[arg(long)]
    with_history: bool,
    /// File to write [default: standard output].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write questions without an answer as empty strings in stale and longmemeval; without this flag they are refused.
    ///
    /// The formats inspect and parquet always hold the rows that exist; a note counts the missing ones.
    #[arg(long)]
    partial: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Inspect's eval log, for `inspect view`
    Inspect,
    /// Parquet, one row per answer, for `datasets`
    Parquet,
    /// LongMemEval's hypotheses, JSON lines
    Longmemeval,
    /// The exchange format of STALE's authors
    Stale,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let Args { dir, format: asked, stale, condition, judge, rubric, with_history, out, partial } = args;
    let asked = asked.unwrap_or(Format::Stale);
    let Some(dir) = dir.or(stale) else { return Ok(()) };
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
    let conditions = folder.chosen_conditions(&condition)?;
    if asked == Format::Stale {
        let benchmark = &folder.header.identity.benchmark;
        anyhow::ensure!(
            benchmark == "stale",
            "{} is a run of the benchmark `{benchmark}`, and STALE's format cannot hold its answers; choose another --format",
            dir.display()
        );
    }
    let out = out.as_deref();
    if matches!(asked, Format::Inspect | Format::Parquet) {
        not_asked(&folder, &conditions).into_iter().for_each(note);
        other_conditions(&folder, &conditions).into_iter().for_each(note);
        if let [only] = &conditions[..] {
            folder = folder.condition(only)?;
        }
    }
    let (rows, what) = match asked {
        Format::Stale => {
            let format = OneAnswer::Authors(|answers| {
                Ok(serde_json::to_string_pretty(&exchange::format(answers))? + "\n")
            });
            return by_condition(&folder, &conditions, format, out, partial);
        }
        Format::Longmemeval => {
            return by_condition(&folder, &conditions, OneAnswer::Longmemeval, out, partial);
        }
        Format::Parquet => {
            let (judged, others) = folder.judged_last(choice)?;
            judged.iter().for_each(warn_of);
            if let (Some(judged), false) = (&judged, others.is_empty()) {
                note(format_args!(
                    "note: the file holds the verdicts of {}; the run has those of {}, too: name one with --judge",
                    judged.name.label,
                    others.join(", ")
                ));
            }
            (put(out, |to| parquet::write(to, &folder, &conditions, judged.as_ref()))?, "rows")
        }
        Format::Inspect => {
            let judges = folder.judged_by(choice)?;
            let benchmark = folder.benchmark()?;
            let log = inspect::Log { benchmark, conditions: &conditions, with_history };
            judges.iter().for_each(warn_of);
            (put(out, |to| inspect::write(to, &folder, &judges, log))?, "samples")
        }
    };
    said(out, format_args!("{rows} {what}{}", under(&folder, &conditions)))
}

/// One file per condition, for formats with one answer per question.
fn by_condition(
    folder: &RunFolder,
    conditions: &[String],
    asked: OneAnswer,
    out: Option<&Path>,
    partial: bool,
) -> anyhow::Result<()> {
    let names: Vec<&str> = conditions.iter().map(|name| label(name)).collect();
    if conditions.len() > 1 && out.is_none() {
        let why = format!(
            "{} has answers under {}, and this format holds one answer per question; name one of them with --condition, or give --out \
             FILE for a file each",
            folder.dir.display(),
            names.join(", ")
        );
        return wrong(why);
    }
    // Render all before writing: a failure leaves no files.
    let texts = conditions.iter().map(|name| asked.text(&folder.clone().condition(name)?, name, partial));
    for (name, exported) in conditions.iter().zip(texts.collect::<Result<Vec<_>, _>>()?) {
        let ExportText { text, what, unanswered } = exported;
        let own = out.map(|out| if conditions.len() > 1 { beside(out, label(name)) } else { out.to_owned() });
        let under = under(folder, std::slice::from_ref(name));
        if let Some(unanswered) = unanswered {
            note(format_args!("note: {unanswered}{under}; they are empty strings in the file"));
        }
        put(own.as_deref(), |to| Ok(to.write_all(text.as_bytes())?))?;
        said(own.as_deref(), format_args!("{what}{under}"))?;
    }
    other_conditions(folder, conditions).into_iter().for_each(note);
    Ok(())
}

fn beside(out: &Path, label: &str) -> PathBuf {
    let name = out.file_name().unwrap_or_default().to_string_lossy();
    out.with_file_name(format!("{label}-{name}"))
}

fn warn_of(judged: &Judged<'_>) {
    if let Some(why) = judged.no_result() {
        note(format_args!("note: the verdicts of {} are no result: {why}", judged.name.label));
    } else if let Some(warning) = judged.warning() {
        note(format_args!("note: {warning}"));
    }
}

/// Lets `write` write a temporary file that replaces `out` when complete, or stdout.
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

fn said(out: Option<&Path>, what: std::fmt::Arguments<'_>) -> anyhow::Result<()> {
    match out {
        Some(path) => super::say(format_args!("{}: {what}", path.display())),
        None => Ok(()),
    }
}
