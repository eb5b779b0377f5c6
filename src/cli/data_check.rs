//! `palimpsest data check`: what is wrong with a data set, and what is odd about it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::bail;
use indicatif::ProgressBar;
use serde_json::json;

use super::data_stats::reading_bar;
use crate::benchmarks::dataset::Dataset;
use crate::benchmarks::reading::{Problem, Report};
use crate::benchmarks::{Benchmark, Dimension, SampleSpec};
use crate::data::finding::{Finding, by_check};
use crate::models::ModelStore;
use crate::prompt::contents;
use crate::run::setup::sound_cases;
use palimpsest_core::engine::TextSide;
use palimpsest_core::text::known_special_tokens;

/// Check a benchmark's data: problems, which refuse rows, and findings, which do not.
///
/// Every problem is a line on standard output, and the exit code is 1 if there is one. Findings (a text repeated, a gold that the
/// evidence does not hold, a weekday that does not fit its date, ...) are counted by check with the first few of each; they refuse
/// nothing and do not change the exit code. docs/data-check.md says what each check looks at.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  palimpsest data check T1_T2_400_FULL.json
  palimpsest data check broken.json --limit 20
  palimpsest data check dataset1 --json > findings.jsonl
  palimpsest data check sample:knowme")]
pub struct Args {
    /// The file or the folder; which benchmark's it is shows in its content. `sample` or `sample:NAME` for a built-in one.
    #[arg(value_name = "FILE_OR_FOLDER")]
    file: PathBuf,
    /// List at most N problems; the rest are counted.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Findings to show of each check; the rest are counted, and with 0 all of them.
    #[arg(long, default_value_t = 3, value_name = "N")]
    examples: usize,
    /// The type of rows that do not say theirs, as those of STALE's construction (*_MAIN.json): T1 or T2.
    #[arg(long = "type", value_name = "TYPE")]
    split: Option<String>,
    /// Also note the special tokens of this model that the text spells, beside those of known formats.
    #[arg(long)]
    model: Option<String>,
    /// Print one JSON object a line: every problem, cases that spell special tokens, every finding, then a summary.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let bar = reading_bar(&args.file);
    let dataset = Dataset::open(&args.file, SampleSpec::default(), |_| {})?;
    let dataset = dataset.with_split(args.split.as_deref())?;
    let mut listing = Listing { args, bar: &bar, listed: 0, said: Ok(()) };
    let report = dataset.check(|piece| bar.inc(piece.len() as u64), &mut |problem| listing.add(problem));
    let Listing { listed, said, .. } = listing;
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
    let of_rows =
        format!("{} problems in {} of {} rows", report.problem_count, report.rows - sound, report.rows);
    match report.broken {
        _ if report.is_sound() => Ok(()),
        None => bail!("{file} is not a sound {title} file: {of_rows}; `run` counts such rows as errors"),
        Some(broken) => bail!(
            "{file} is not a sound {title} file: {:#}\n  nothing behind this place was checked ({sound} sound rows before it; {of_rows} \
             so far)",
            anyhow::Error::from(broken)
        ),
    }
}

/// Tells problems as they are found: a file may have more of them than memory holds.
struct Listing<'a> {
    args: &'a Args,
    bar: &'a ProgressBar,
    listed: usize,
    said: anyhow::Result<()>,
}

impl Listing<'_> {
    fn add(&mut self, problem: &Problem) {
        if self.listed >= self.args.limit.unwrap_or(usize::MAX) || self.said.is_err() {
            return;
        }
        self.listed += 1;
        self.said = self
            .bar
            .suspend(|| if self.args.json { super::say(problem_line(problem)) } else { super::say(problem) });
    }
}

fn problem_line(problem: &Problem) -> serde_json::Value {
    let Problem { file, row, uid, field, found, remedy } = problem;
    json!({
        "kind": "problem", "file": file, "row": row, "uid": uid, "field": field, "found": found, "remedy": remedy,
    })
}

/// A line a finding, one a case with special tokens, and the summary.
fn say_json(dataset: &Dataset, report: &Report, model: Option<&str>) -> anyhow::Result<()> {
    if report.broken.is_none() {
        for (case, tokens) in special_tokens(dataset, model)? {
            super::say(json!({ "kind": "special-tokens", "case": case, "tokens": tokens }))?;
        }
    }
    for finding in &report.findings {
        let mut line = json!({ "kind": "finding", "severity": finding.check.severity });
        if let (Some(line), serde_json::Value::Object(fields)) =
            (line.as_object_mut(), serde_json::to_value(finding)?)
        {
            line.extend(fields);
        }
        super::say(line)?;
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
            "{}: {}, no problems, SHA-256 {}{published}",
            args.file.display(),
            counts(benchmark, report),
            dataset.digest()
        ))?;
    } else if report.problem_count > listed {
        super::say(format_args!("and {} more", report.problem_count - listed))?;
    }
    say_findings(&report.findings, args.examples)?;
    if report.broken.is_none() {
        note_special_tokens(dataset, args.model.as_deref())?;
    }
    Ok(())
}

fn say_findings(findings: &[Finding], examples: usize) -> anyhow::Result<()> {
    for (check, of, probes) in by_check(findings) {
        let questions = if probes > of.len() { format!(" ({probes} questions)") } else { String::new() };
        super::say(format_args!(
            "{}: {}: {} {}{questions}",
            check.severity.name(),
            check.name,
            of.len(),
            check.about
        ))?;
        for finding in of.iter().take(examples) {
            super::say(format_args!("  {finding}"))?;
        }
        if examples > 0 && of.len() > examples {
            super::say(format_args!("  and {} more", of.len() - examples))?;
        }
    }
    Ok(())
}

const NAMED: usize = 20;

/// The cases that hold text that spells a special token, each with those tokens. They are sound: it is read as that token unless a run
/// is told otherwise.
fn special_tokens(dataset: &Dataset, model: Option<&str>) -> anyhow::Result<Vec<(String, BTreeSet<String>)>> {
    let tokenizer = match model {
        Some(model) => Some(TextSide::open(&ModelStore::open()?.resolve(model)?)?.tokenizer),
        None => None,
    };
    let mut cases = Vec::new();
    for case in sound_cases(dataset)? {
        let case = case?;
        let mut found: BTreeSet<String> = BTreeSet::new();
        for text in contents(&case) {
            found.extend(known_special_tokens(text).into_iter().map(str::to_owned));
            found.extend(tokenizer.iter().flat_map(|tokenizer| tokenizer.special_tokens_in(text)));
        }
        if !found.is_empty() {
            cases.push((case.id, found));
        }
    }
    Ok(cases)
}

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

/// `400 rows (T1 200, T2 200)`, with the questions where cases have different ones.
fn counts(benchmark: &Benchmark, report: &Report) -> String {
    let by = |counts: &BTreeMap<String, usize>| {
        counts.iter().map(|(of, n)| format!("{of} {n}")).collect::<Vec<_>>().join(", ")
    };
    let rows = match report.splits.keys().any(|split| !split.is_empty()) {
        true => format!("{} rows ({})", report.rows, by(&report.splits)),
        // No label parts its cases.
        false => format!("{} rows", report.rows),
    };
    if !benchmark.probes.is_empty() || benchmark.dimension == Dimension::Probe {
        return rows;
    }
    let questions: usize = report.probes.values().sum();
    format!("{rows}, {questions} questions ({})", by(&report.probes))
}
