//! `trace --jobs`: many passes with one loaded model; one JSON row per job.
//!
//! Jobs are sorted by prompt and reuse the previous job's KV cache prefix: bit-equal to separate passes on the CPU in f32 or bf16.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, ensure};
use palimpsest_core::engine::{Backend, Reuse, TextSide};
use palimpsest_core::model::{ModelFiles, OpenModel};
use palimpsest_core::timing::Recorder;
use serde_json::{Map, Value, json};

use super::arguments::check_context;
use super::output::{EndedWithErrors, say, writable};
use super::trace_load::{Loading, load};
use super::trace_words::row;
use crate::ground::text_file;
use crate::observe::{ObserveRequest, TraceJob};
use crate::progress::Steps;

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
    let mut rows = File::create(out).with_context(|| format!("{}", out.display()))?;
    let mut put = |row: Map<String, Value>| -> anyhow::Result<()> {
        writeln!(rows, "{}", Value::from(row)).with_context(|| format!("{}", out.display()))
    };
    let ready: Vec<&TraceJob> = lines.iter().filter_map(|line| line.job.as_ref().ok()).collect();
    let mut session = match ready.is_empty() {
        true => None,
        false => Some(load(loading, &ready, || Ok(files), recorder)?),
    };
    let (mut errors, mut read, mut reused) = (0, 0, 0);
    let mut steps = Steps::new("job", all, true).brief(true);
    for Line { number, id, out, job } in lines {
        let traced = job.and_then(|job| {
            let session = session.as_mut().context("This is a bug: a job without a model")?;
            let traced = job.read(session, Reuse::Longest, job.greedily(), &mut |_| true)?;
            if let Some(out) = &out {
                traced.tensors(&job, session.dtype()).write(out)?;
            }
            read += job.tokens.len();
            reused += traced.measured.reused;
            Ok(row(&job, &traced, &side.tokenizer))
        });
        let name = id.clone().unwrap_or_else(|| format!("line {number}"));
        let error = traced.as_ref().err().map(super::in_one_line);
        steps.step(&name, error.as_deref());
        errors += usize::from(error.is_some());
        let mut fields = Map::from_iter([("job".to_owned(), json!(number))]);
        fields.extend(id.map(|id| ("id".to_owned(), json!(id))));
        fields.extend(out.map(|out| ("out".to_owned(), json!(out))));
        match (traced, error) {
            (Ok(row), _) => fields.extend(row),
            (Err(_), error) => fields.extend([("error".to_owned(), json!(error))]),
        }
        put(fields)?;
    }
    drop(steps);
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
