//! Estimates hours, tokens, bytes and memory of a run on this machine from about a minute of measurement.
//!
//! Times the prefill of the sample's longest prompt chunk by chunk with attention recorded, and decode steps at two context lengths, then
//! extrapolates.

use std::time::Instant;

use anyhow::Context;

use super::args::EstimateArgs;
use super::sample::{
    Sampled, SampledContext, Sizes, asked_of, at_least_plain, contexts_of, each_sampled, has_own_prompts,
};
use crate::cards::duration;
use crate::models::{ModelStore, description};
use crate::progress::{grouped, note};
use crate::runs::context_budget::{Cut, cut_to_budget};
use crate::runs::forecast::{PrefillFit, rising};
use crate::runs::model_subject::row_spans;
use crate::runs::setup::{OpenedModel, RunSpec};
use palimpsest_core::engine::memory_plan::{MemoryPlan, MemoryRequest, gigabytes};
use palimpsest_core::engine::{
    self, Branch, DeviceName, EngineError, Event, Generate, LocalModel, Observe, Request, RequestError,
    Reuse, Rows, Sampling, Task,
};
use palimpsest_core::span::Span;
use palimpsest_core::text::{CountTokens, TokenizedPrompt};
use palimpsest_data::benchmarks::row_roles;

const STEPS: usize = 9;
/// Timed prefill chunk, tokens; the engine's default, since shorter chunks are slower.
const CHUNK: usize = engine::DEFAULT_CHUNK;
/// Minimum relative error stated: day-to-day variation of a machine.
const LEAST_ERROR: f64 = 0.1;

struct Measured {
    fit: PrefillFit,
    /// (context in tokens, seconds per decode step), short and long.
    steps: [(usize, f64); 2],
    /// (tokens, seconds) of the measured prefill.
    prefill: (usize, f64),
    seconds: f64,
}

pub(super) fn text(args: &EstimateArgs, job: &RunSpec) -> anyhow::Result<String> {
    if ModelStore::open()?.locate(&job.model)?.is_none() {
        anyhow::bail!(
            "{0} is not here, and an estimate fetches nothing; fetch it with `palimpsest model pull {0}`, or name a card: --card a100-80 \
             reckons from the model's config and the card's published rates",
            job.model
        );
    }
    let OpenedModel { data: opened, templates, options, mut model, .. } = job.open_local(None)?;
    let (dataset, asked) = (&opened.dataset, opened.limits);
    let roles = row_roles(dataset.benchmark());
    let plan = job.plan(dataset, opened.all)?;
    let builder = job.builder(templates, model.template().clone());
    // Thinking has its own budget and is decoded like the answer.
    let most_new = asked.max_new_tokens.saturating_add(model.max_thinking());
    let cut = Cut::of_model(asked.truncation, job.seed, model.text(), asked.max_new_tokens);
    let counted = (model.tokenizer().as_ref() as &dyn CountTokens, cut.budget);
    let conditions = at_least_plain(job.choose(dataset, &builder, Some(counted))?);
    let spec = model.engine().decoder().spec();
    let (mut contexts, mut longest): (Vec<SampledContext>, Option<TokenizedPrompt>) = (Vec::new(), None);
    let cases = each_sampled(job, dataset, &plan, (&conditions, has_own_prompts), |case, asked| {
        let parts = cut_to_budget(&builder, model.tokenizer(), case, cut)?;
        contexts.extend(contexts_of(case, &parts, (asked, &roles), Sizes { spec, most_new }));
        for prompt in parts.iter().flat_map(|part| asked_of(case, part, asked)) {
            if longest.as_ref().is_none_or(|other| other.tokens.len() < prompt.tokens.len()) {
                longest = Some(prompt.clone());
            }
        }
        Ok(())
    })?;
    let prompt = longest.context("no question is planned; loosen --only")?;
    let sampled = Sampled::of(job, &plan, &conditions, cases);
    let Sampled { repeat, batch, .. } = sampled;
    note(format_args!("measuring on this machine, about {:.0} s", args.estimate_seconds));
    let rows = if job.no_attention { Vec::new() } else { row_spans(&prompt, &roles) };
    let measured = measure(&mut model, &prompt, &rows, batch, args.estimate_seconds)?;

    let (mut prefill, mut error, mut decode) = (0.0, 0.0, 0.0);
    for case in &contexts {
        let n = case.own.len() * repeat;
        prefill += measured.fit.seconds(0, case.shared);
        error += measured.fit.error(0, case.shared);
        for &own in case.own.iter().cycle().take(n) {
            prefill += measured.fit.seconds(case.shared, own);
        }
        let [short, long] = measured.steps;
        let step = rising(short, long, case.longest() + most_new / 2);
        decode += n.div_ceil(batch) as f64 * most_new as f64 * step;
    }
    let hours = |seconds: f64| duration(seconds * sampled.scale);
    // Two standard errors of the fit, or the machine's variation.
    let off = (2.0 * error / prefill.max(f64::MIN_POSITIVE)).max(LEAST_ERROR);
    let time = format!(
        "time        {} ({} with answers of one token, {} if all goes slowly): prefill {}, decoding {} at most\n",
        hours(prefill + decode),
        hours(prefill * (1.0 - off).max(0.0) + decode / most_new as f64 * (1.0 - LEAST_ERROR)),
        hours(prefill * (1.0 + off) + decode * (1.0 + LEAST_ERROR)),
        hours(prefill),
        hours(decode),
    );
    let mut text = format!(
        "{} by {} ({}, {}): an estimate, nothing was run\n{}",
        sampled.asked(),
        model.model_name(),
        job.loaded.on.device,
        model.engine().decoder().formats(),
        sampled.text(&contexts, most_new, "", &time),
    );
    if let Some(peak) = peak(job, &options, &model)? {
        text += &format!("memory      {} at the peak\n", gigabytes(peak));
    }
    let longest = contexts.iter().map(SampledContext::longest).max().unwrap_or(0);
    let (tokens, seconds) = measured.prefill;
    text += &format!(
        "measured    {:.0} s: prefill of {} tokens at {:.0} tokens/s, a decode step of {batch} after {} tokens {:.1} ms; {} tokens \
         by the fit {}",
        measured.seconds,
        grouped(tokens as u64),
        tokens as f64 / seconds.max(f64::MIN_POSITIVE),
        grouped(measured.steps[1].0 as u64),
        measured.steps[1].1 * 1e3,
        grouped(longest as u64),
        duration(measured.fit.seconds(0, longest)),
    );
    Ok(text)
}

/// Planned peak memory, bytes; `None` without a description of the model.
fn peak(job: &RunSpec, options: &engine::LocalOptions, model: &LocalModel) -> anyhow::Result<Option<u64>> {
    let Ok((_, description, _)) = description(&job.model) else { return Ok(None) };
    let usual = engine::default_dtype(&options.devices);
    let devices = options.devices.iter().map(DeviceName::of).collect();
    let request = MemoryRequest {
        kernel: options.planned_kernel(),
        // Includes thinking, which the options lack.
        branches: model.branches(),
        observed: model.observed(),
        keeps: options.keeps.clone(),
        ..job.loaded.request(model.context(), usual, devices)?
    };
    let free: Vec<Option<u64>> = options.devices.iter().map(|_| None).collect();
    Ok(Some(MemoryPlan::new(&description, &request, &free).peak_resident()))
}

/// Prefills for `seconds`, then decodes a batch after the first chunk and at the end.
fn measure(
    model: &mut LocalModel,
    prompt: &TokenizedPrompt,
    rows: &[Span],
    batch: usize,
    seconds: f64,
) -> anyhow::Result<Measured> {
    let begun = Instant::now();
    let tokens = &prompt.tokens;
    // Leave own tokens for each branch and room for decoding.
    let end = tokens.len().saturating_sub(OWN).min(model.context().saturating_sub(OWN + STEPS)).max(1);
    let chunk = CHUNK.min(end.div_ceil(4));
    // Warm-up: maps pages, starts threads.
    read(model, &tokens[..end.min(CHUNK)], (&[], &[]), Reuse::Prefix, &mut |_, _| true)?;
    let keys: Vec<Span> = prompt.spans.iter().chain(&prompt.overlays).cloned().collect();
    let (mut chunks, mut took): (Vec<(usize, usize, f64)>, f64) = (Vec::new(), 0.0);
    let mut done = 0;
    read(model, &tokens[..end], (rows, &keys), Reuse::Prefix, &mut |read, now| {
        let (from, last) = chunks.last().map_or((0, 0.0), |&(_, to, _)| (to, took));
        if done + read - from >= chunk || done + read == end {
            chunks.push((from, done + read, now - last));
            took = now;
        }
        done += read;
        chunks.len() < 3 || took < seconds
    })?;
    let long = (done, step(model, tokens, done, batch)?);
    let short = match chunks.first() {
        Some(&(_, first, _)) if first < done => (first, step(model, tokens, first, batch)?),
        _ => long,
    };
    let fit = PrefillFit::of(&chunks).context("the prompt has no tokens")?;
    Ok(Measured { fit, steps: [short, long], prefill: (done, took), seconds: begun.elapsed().as_secs_f64() })
}

/// Prefills a prompt; `go_on` receives tokens and seconds so far and returns whether to continue.
fn read(
    model: &mut LocalModel,
    tokens: &[u32],
    (rows, keys): (&[Span], &[Span]),
    reuse: Reuse,
    go_on: &mut dyn FnMut(usize, f64) -> bool,
) -> anyhow::Result<()> {
    let inside = |span: &&Span| span.end <= tokens.len();
    let observe = Observe {
        rows: Rows { spans: rows.iter().filter(inside).cloned().collect(), ..Rows::default() },
        keys: keys.iter().filter(inside).cloned().collect(),
        ..Observe::default()
    };
    let device = model.engine().device().clone();
    let request = Request { reuse, ..Request::of(tokens.to_vec(), observe, Task::Read) };
    let clock = Instant::now();
    let mut failed = None;
    let read = model.session().answer(request, &mut |event| match event {
        Event::Prefilled(read) if *read > 0 => {
            // CUDA calls return before the work is done.
            failed = device.synchronize().err();
            failed.is_none() && go_on(*read, clock.elapsed().as_secs_f64())
        }
        _ => true,
    });
    failed.map_or(Ok(()), Err)?;
    match read {
        Ok(_) | Err(RequestError::Engine(EngineError::Interrupted)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

const OWN: usize = 8;

/// Seconds per decode step of `batch` answers after `context` tokens.
fn step(model: &mut LocalModel, tokens: &[u32], context: usize, batch: usize) -> anyhow::Result<f64> {
    let own = &tokens[context.min(tokens.len() - 1)..(context + OWN).min(tokens.len())];
    let branch = |_| Branch {
        tokens: own.to_vec(),
        tasks: vec![Task::Generate(Box::new(Generate::new(Sampling::greedy(STEPS), Vec::new())))],
        ..Branch::default()
    };
    let request = Request {
        prefix: tokens[..context].into(),
        reuse: Reuse::Longest,
        branches: (0..batch).map(branch).collect(),
    };
    let (mut first, mut last) = (None, Instant::now());
    let answered = model.session().answers(request, &mut |_, _, event| {
        if let Event::Token(_) = event {
            last = Instant::now();
            first.get_or_insert(last);
        }
        true
    });
    answered.into_iter().flatten().collect::<Result<Vec<_>, _>>()?;
    let seconds = first.map_or(0.0, |first| (last - first).as_secs_f64());
    Ok(seconds / (STEPS - 1) as f64)
}
