//! `trace --jobs`: many passes with one loaded model; one JSON row per job.
//!
//! Jobs are sorted by prompt and reuse the previous job's KV cache prefix: bit-equal to separate passes on the CPU in f32 or bf16. The file
//! has a row as soon as its job ends, and at the end all rows in the order of the jobs, as the printed table.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, ensure};
use palimpsest_core::engine::{Reuse, TextSide};
use palimpsest_core::files::write_atomically;
use palimpsest_core::model::{ModelFiles, OpenModel};
use palimpsest_core::timing::Recorder;
use serde_json::{Map, Value, json};

use super::arguments::check_context;
use super::output::{EndedWithErrors, say, writable};
use super::trace_load::{Loading, load};
use super::trace_passes::Passes;
use super::trace_words::{Words, parts, percent};
use crate::ground::table::aligned;
use crate::ground::text_file;
use crate::observe::{ObserveRequest, TraceJob, Traced};
use crate::progress::Steps;

/// Most spans that are columns of the printed table.
const COLUMNS: usize = 6;

/// Characters of an answer in the printed table.
const ANSWER: usize = 48;

struct Line {
    number: usize,
    id: Option<String>,
    out: Option<PathBuf>,
    job: anyhow::Result<TraceJob>,
}

/// Runs the jobs of a file and writes a row each to `out`. `generate` is the default of jobs.
pub(super) fn run(
    jobs: &Path,
    out: &Path,
    generate: usize,
    loading: &Loading<'_>,
    files: ModelFiles,
    recorder: Option<&Recorder>,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    let side = TextSide::open(&files)?;
    let limit = OpenModel::open(&files.paths())?.spec().max_positions;
    let mut lines = read(jobs, generate, &side, (limit, loading.allow_longer))?;
    let all = lines.len();
    // Sort by prompt for prefix reuse; unreadable jobs come first.
    lines.sort_by(|a, b| tokens(a).cmp(tokens(b)));
    let place = || format!("{}", out.display());
    let mut written = File::create(out).with_context(place)?;
    let mut rows: BTreeMap<usize, (String, TableRow)> = BTreeMap::new();
    let ready: Vec<&TraceJob> = lines.iter().filter_map(|line| line.job.as_ref().ok()).collect();
    let compares = ready.iter().any(|job| !job.request.knockouts.is_empty());
    ensure!(
        compares || ready.is_empty() || !loading.compare,
        "{}: no job has a knock-out, so that there is nothing to compare; give some of them `knockouts`, or leave --compare out",
        jobs.display()
    );
    let mut session = match ready.is_empty() {
        true => None,
        false => Some(load(loading, &ready, || Ok(files), recorder)?),
    };
    let (mut errors, mut read, mut reused) = (0, 0, 0);
    let mut steps = Steps::new("job", all, true).brief(true);
    for Line { number, id, out, job } in lines {
        let traced = job.and_then(|job| {
            let session = session.as_mut().context("This is a bug: a job without a model")?;
            let passes = Passes::read(&job, loading.compare, session, Reuse::Longest, &mut |_| true)?;
            if let Some(out) = &out {
                passes.write(&job, session, out)?;
            }
            for pass in passes.plain().into_iter().chain([passes.last()]) {
                read += job.tokens.len();
                reused += pass.measured.reused;
            }
            let words = Words { job: &job, tokenizer: Some(&side.tokenizer) };
            Ok((passes.fields(words), TableRow::new(words, &passes)))
        });
        let name = id.clone().unwrap_or_else(|| format!("line {number}"));
        let error = traced.as_ref().err().map(super::in_one_line);
        steps.step(&name, error.as_deref());
        errors += usize::from(error.is_some());
        let mut fields = Map::from_iter([("job".to_owned(), json!(number))]);
        fields.extend(id.map(|id| ("id".to_owned(), json!(id))));
        fields.extend(out.as_ref().map(|out| ("out".to_owned(), json!(out))));
        let row = match (traced, error) {
            (Ok((row, of_table)), _) => {
                fields.extend(row);
                of_table
            }
            (Err(_), error) => {
                fields.extend([("error".to_owned(), json!(error))]);
                TableRow { error, ..TableRow::default() }
            }
        };
        let out = out.map(|out| out.display().to_string());
        let row = TableRow { name, out, ..row };
        let line = format!("{}\n", Value::from(fields));
        written.write_all(line.as_bytes()).with_context(place)?;
        rows.insert(number, (line, row));
    }
    drop(steps);
    // Not a pipe or a device.
    if out.is_file() {
        let lines: String = rows.values().map(|(line, _)| line.as_str()).collect();
        write_atomically(out, lines.as_bytes()).with_context(place)?;
    }
    say(table(rows.iter().map(|(number, (_, row))| (*number, row)).collect()))?;
    say(format_args!(
        "{}: {} of {all} jobs in {:.1} s, {reused} of {read} tokens read by a job before",
        out.display(),
        all - errors,
        begun.elapsed().as_secs_f64()
    ))?;
    match errors {
        0 => Ok(()),
        left => {
            let file = out.display();
            Err(EndedWithErrors(format!("{left} of {all} jobs ended as errors; the reasons are in {file}"))
                .into())
        }
    }
}

/// A job in the printed table; a cell of `--compare` has the plain and the knocked-out value.
#[derive(Default)]
struct TableRow {
    name: String,
    knocked_out: String,
    tokens: String,
    next: String,
    kl: String,
    answer: String,
    /// The row whose masses are shown: the job's first one.
    row: Option<String>,
    masses: Vec<(String, String)>,
    out: Option<String>,
    error: Option<String>,
}

impl TableRow {
    fn new(words: Words<'_>, passes: &Passes) -> Self {
        let job = words.job;
        let each = |of: &dyn Fn(&Traced) -> String| {
            let texts: Vec<String> = passes.plain().into_iter().chain([passes.last()]).map(of).collect();
            texts.join(" -> ")
        };
        let knockouts = job.request.knockouts.iter().map(ToString::to_string);
        let row = passes.last().masses.rows.first().map(|row| row.label.clone());
        let mass = |k: usize| {
            each(&|traced| {
                let place = traced.masses.rows.iter().position(|other| Some(&other.label) == row.as_ref());
                let parts = place.map(|r| parts(job, &traced.masses, r));
                parts.and_then(|parts| Some(percent(parts.get(k)?.mean))).unwrap_or_else(|| "-".to_owned())
            })
        };
        let keys = job.observe.keys.iter().enumerate();
        TableRow {
            knocked_out: knockouts.collect::<Vec<_>>().join(", "),
            tokens: job.tokens.len().to_string(),
            next: each(&|traced| words.likeliest(traced)),
            kl: match passes {
                Passes::Both(found) => format!("{:.4}", found.kl),
                Passes::One(_) => String::new(),
            },
            answer: match job.generate {
                0 => String::new(),
                _ => each(&|traced| shortened(&words.answer(traced))),
            },
            masses: match &row {
                Some(_) => keys.map(|(k, span)| (span.label.clone(), mass(k))).collect(),
                None => Vec::new(),
            },
            row,
            ..TableRow::default()
        }
    }
}

fn shortened(answer: &str) -> String {
    let answer: String = answer.split_whitespace().collect::<Vec<_>>().join(" ");
    match answer.char_indices().nth(ANSWER) {
        Some((end, _)) => format!("{}...", &answer[..end]),
        None => answer,
    }
}

/// A line a job in the order of the input; columns without a value in any line are left out.
fn table(rows: Vec<(usize, &TableRow)>) -> String {
    let mut spans: Vec<&str> = Vec::new();
    for (label, _) in rows.iter().flat_map(|(_, row)| &row.masses) {
        if !spans.contains(&label.as_str()) {
            spans.push(label);
        }
    }
    let mut shown: Vec<&str> = rows.iter().filter_map(|(_, row)| row.row.as_deref()).collect();
    shown.dedup();
    let of = match *shown.as_slice() {
        _ if spans.len() > COLUMNS => String::new(),
        [] => String::new(),
        [row] => format!("; {}: attention of `{row}` in %", spans.join(", ")),
        _ => format!("; {}: attention of each job's first row in %", spans.join(", ")),
    };
    if of.is_empty() {
        spans.clear();
    }
    let first = ["job", "id", "knocked out", "tokens", "next token", "KL", "answer"];
    let head = first.into_iter().chain(spans.iter().copied()).chain(["file or error"]);
    let mut lines: Vec<Vec<String>> = vec![head.map(str::to_owned).collect()];
    for (number, row) in rows {
        let TableRow { name, knocked_out, tokens, next, kl, answer, .. } = row;
        let mut line = vec![number.to_string()];
        line.extend([name, knocked_out, tokens, next, kl, answer].map(Clone::clone));
        line.extend(spans.iter().map(|span| {
            let mass = row.masses.iter().find(|(label, _)| label == span);
            mass.map_or_else(String::new, |(_, mass)| mass.clone())
        }));
        let error = row.error.as_ref().map(|error| format!("error: {error}"));
        line.push(error.or_else(|| row.out.clone()).unwrap_or_default());
        lines.push(line);
    }
    let columns: Vec<usize> = (0..lines[0].len())
        .filter(|&column| lines[1..].iter().any(|line| !line[column].is_empty()))
        .collect();
    let kept: Vec<Vec<String>> =
        lines.iter().map(|line| columns.iter().map(|&column| line[column].clone()).collect()).collect();
    let right = |place: usize| {
        let column = columns[place];
        [0, 3, 5].contains(&column) || (first.len()..first.len() + spans.len()).contains(&column)
    };
    format!("jobs in the order of their file{of}\n{}", aligned(&kept, right))
}

fn tokens(line: &Line) -> &[u32] {
    line.job.as_ref().map_or(&[], |job| &job.tokens)
}

fn read(
    path: &Path,
    generate: usize,
    side: &TextSide,
    (limit, allow_longer): (usize, bool),
) -> anyhow::Result<Vec<Line>> {
    let place = path.display();
    let text = text_file::read(path).with_context(|| format!("{place}"))?;
    let mut outs = BTreeSet::new();
    let mut line = |(at, text): (usize, &str)| {
        let number = at + 1;
        let place = format!("{place} line {number}");
        let request =
            serde_json::from_str::<ObserveRequest>(text).with_context(|| format!("{place} is no job"));
        let named = request.as_ref().ok().map(|request| (request.id.clone(), request.out.clone()));
        let (id, out) = named.unwrap_or_default();
        let job = request.and_then(|request| {
            let request = ObserveRequest { generate: request.generate.or(Some(generate)), ..request };
            let (job, _) = request.checked(Vec::new(), side.into(), &place)?;
            check_context(job.room(), limit, allow_longer).with_context(|| place.clone())?;
            if let Some(out) = &job.request.out {
                writable(out)?;
                let path = out.display();
                ensure!(
                    outs.insert(out.clone()),
                    "{place}: another job writes {path}, too; give each its own"
                );
            }
            Ok(job)
        });
        Line { number, id, out, job }
    };
    let lines: Vec<Line> =
        text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()).map(&mut line).collect();
    ensure!(!lines.is_empty(), "{place} has no job; a job is a line of JSON with a text or messages");
    Ok(lines)
}
