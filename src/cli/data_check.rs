//! `palimpsest data check`: errors and oddities of a dataset.

use std::path::PathBuf;

use anyhow::bail;
use serde::Serialize;
use serde_json::{Value, json};

use super::data_stats::reading_bar;
use crate::benchmarks::SampleSpec;
use crate::benchmarks::dataset::Dataset;
use crate::benchmarks::reading::{Problem, Report};
use crate::case::finding::{by_check, listed_by_check};
use crate::ground::words::counted;
use crate::runs::setup::special_tokens;

/// Check a benchmark's data. Problems make rows unusable; findings do not.
///
/// Every problem is a line on standard output, and the exit code is 1 if there is one. Findings (a repeated text, an answer that the
/// evidence does not hold, a weekday that does not fit its date, ...) are counted by check, with the first few of each; they do not change
/// the exit code. docs/data.md describes each check.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  palimpsest data check T1_T2_400_FULL.json
  palimpsest data check broken.json --limit 20
  palimpsest data check dataset1 --json > findings.jsonl
  palimpsest data check sample:knowme")]
pub struct Args {
    /// The file or folder, of any benchmark (recognised by its content). `sample` or `sample:NAME` for a built-in one.
    #[arg(value_name = "FILE_OR_FOLDER")]
    file: PathBuf,
    /// The questions on a table of your own [default: my-questions.csv (.tsv, .jsonl) beside my.csv].
    #[arg(long, value_name = "FILE")]
    questions: Option<PathBuf>,
    /// List at most N problems; the rest are counted.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Findings to show of each check; the rest are counted; 0 shows none.
    #[arg(long, default_value_t = 3, value_name = "N")]
    examples: usize,
    /// Type of rows that do not state theirs, as in the files of STALE's construction (*_MAIN.json): T1 or T2.
    #[arg(long = "type", value_name = "TYPE")]
    split: Option<String>,
    /// Also look for text that spells a special token of this model, beside those of known formats.
    #[arg(long)]
    model: Option<String>,
    /// Print one JSON object a line: every problem, cases that spell special tokens, every finding, then a summary.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let bar = reading_bar(&args.file);
    let pair = (args.file.as_path(), args.questions.as_deref());
    let dataset = Dataset::open_pair(pair, SampleSpec::default(), |_| {})?;
    let dataset = dataset.with_split(args.split.as_deref())?;
    // Reported as found: they may exceed memory.
    let (mut listed, mut said) = (0, Ok(()));
    let mut tell = |problem: &Problem| {
        if listed < args.limit.unwrap_or(usize::MAX) && said.is_ok() {
            listed += 1;
            said = bar.suspend(|| match args.json {
                true => super::say(extended(json!({ "kind": "problem" }), problem)?),
                false => super::say(problem),
            });
        }
    };
    let report = dataset.check(|piece| bar.inc(piece.len() as u64), &mut tell);
    bar.finish_and_clear();
    let report = report?;
    said?;
    if args.json {
        say_json(&dataset, &report, args.model.as_deref())?;
    } else {
        say_text(&dataset, &report, args, listed)?;
    }
    let file = args.file.display();
    let title = dataset.benchmark().title;
    let sound: usize = report.splits.values().sum();
    let problems = counted(report.problem_count, "problem");
    let of_rows = format!("{problems} in {} of {}", report.rows - sound, counted(report.rows, "row"));
    let is_own = dataset.benchmark().companion.is_some();
    match report.broken {
        _ if report.is_sound() => Ok(()),
        None if is_own => {
            let of_broken = report.counts.broken_in_words();
            bail!("{file} has {problems}: {of_broken}; `run` counts such rows as errors")
        }
        None => bail!("{file} is not a sound {title} file: {of_rows}; `run` counts such rows as errors"),
        Some(broken) if is_own => bail!("{file} cannot be read: {:#}", anyhow::Error::from(broken)),
        Some(broken) => bail!(
            "{file} is not a sound {title} file: {:#}\n  nothing behind this place was checked ({} before it; {of_rows} so far)",
            anyhow::Error::from(broken),
            counted(sound, "sound row")
        ),
    }
}

fn extended(mut object: Value, of: &impl Serialize) -> anyhow::Result<Value> {
    if let (Some(object), Value::Object(fields)) = (object.as_object_mut(), serde_json::to_value(of)?) {
        object.extend(fields);
    }
    Ok(object)
}

/// One JSON line per finding, per case with special tokens, and for the summary.
fn say_json(dataset: &Dataset, report: &Report, model: Option<&str>) -> anyhow::Result<()> {
    if report.broken.is_none() {
        for (case, tokens) in special_tokens(dataset, model)? {
            super::say(json!({ "kind": "special-tokens", "case": case, "tokens": tokens }))?;
        }
    }
    for finding in &report.findings {
        let kind = json!({ "kind": "finding", "severity": finding.check.severity });
        super::say(extended(kind, finding)?)?;
    }
    let checks: Vec<_> = by_check(&report.findings)
        .into_iter()
        .map(|(check, of, probes)| {
            json!({
                "check": check.name, "severity": check.severity, "about": check.about, "findings": of.len(), "probes": probes,
            })
        })
        .collect();
    let benchmark = dataset.benchmark();
    super::say(json!({
        "kind": "summary",
        "data": dataset.name(),
        "benchmark": benchmark.name,
        "sha256": dataset.digest(),
        "published": benchmark.published(dataset.digest()),
        "rows": report.rows,
        "splits": report.splits,
        "probes": report.probes,
        "problems": report.problem_count,
        "sound": report.is_sound(),
        "checks": checks,
    }))
}

fn say_text(dataset: &Dataset, report: &Report, args: &Args, listed: usize) -> anyhow::Result<()> {
    let benchmark = dataset.benchmark();
    if report.is_sound() {
        let published = benchmark.published(dataset.digest());
        let published = published.map(|name| format!(" (the published {name})")).unwrap_or_default();
        super::say(format_args!(
            "{}: {}, no problems{}, SHA-256 {}{published}",
            args.file.display(),
            report.counts(benchmark),
            match report.findings.len() {
                0 => String::new(),
                some => format!(", {}", counted(some, "finding")),
            },
            dataset.digest()
        ))?;
    } else if report.problem_count > listed {
        super::say(format_args!("and {} more", report.problem_count - listed))?;
    }
    for line in listed_by_check(&report.findings, args.examples) {
        super::say(line)?;
    }
    if report.broken.is_none() {
        note_special_tokens(dataset, args.model.as_deref())?;
    }
    Ok(())
}

const NAMED: usize = 20;

fn note_special_tokens(dataset: &Dataset, model: Option<&str>) -> anyhow::Result<()> {
    let cases = special_tokens(dataset, model)?;
    let count = cases.len();
    if count == 0 {
        return Ok(());
    }
    let named = cases.iter().take(NAMED).map(|(case, tokens)| {
        let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
        format!("  case `{case}`: {}", tokens.join(" "))
    });
    let mut named: Vec<String> = named.collect();
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
