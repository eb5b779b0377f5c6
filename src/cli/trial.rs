//! `palimpsest model try`: a model's full shape with random weights, measured against its plan.

use std::sync::atomic::Ordering;

use serde_json::json;

use super::interrupt;
use crate::cards::Recording;
use crate::ground::table::columns;
use crate::models::manifest::DEFAULT_MODEL;
use crate::models::{DeviceArgs, DtypeArgs};
use crate::progress::{grouped, note};
use crate::selftest::is_interrupted;
use crate::selftest::trial::{Memory, Peak, Setting, Subject, Trial};
use palimpsest_core::engine::{self, memory_plan::gigabytes};
use palimpsest_core::model::Fill;

const EXAMPLES: &str = "\
Examples:
  palimpsest model try qwen3.5-9b --context 32768 --device cuda:0 --generate 64
  palimpsest model try llama-3.3-70b-instruct --context 131072 --device cuda:0,cuda:1 --zeros
  palimpsest model try ./config.json --context 4096";

/// Measure a model's memory and speed on these devices, before its weights are fetched.
///
/// Loads a decoder of the model's shape with random weights, dense in the dtype that it runs in (as checkpoints are, unlike quantised files
/// on the CPU), processes a prompt of random tokens with attention recorded, and generates. Prints the plan of `model plan` beside the
/// memory taken, and the seconds beside the operations counted. A model that does not fit is refused before it is loaded.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A model's name (fetched or not), owner/name of the Hugging Face hub (its config.json is fetched), a config.json, a folder that has
    /// one (weights or not), or a .gguf file
    #[arg(default_value = DEFAULT_MODEL)]
    model: String,
    /// Tokens of the prompt and the answer together
    #[arg(long, value_name = "TOKENS", default_value_t = 8192, value_parser = super::positive)]
    context: usize,
    #[command(flatten)]
    on: DeviceArgs,
    #[command(flatten)]
    in_dtype: DtypeArgs,
    /// Tokens per prefill step
    #[arg(long, default_value_t = engine::DEFAULT_CHUNK, value_parser = super::positive)]
    chunk: usize,
    /// Tokens to generate after the prompt
    #[arg(long, value_name = "N", default_value_t = 16)]
    generate: usize,
    /// Last tokens of the prompt whose attention is recorded, over as many spans
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = super::positive)]
    rows: usize,
    /// Zeros as weights instead of random numbers: quicker to make and as large, but routers then always choose the same experts
    #[arg(long)]
    zeros: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn text(args: &Args) -> anyhow::Result<String> {
    let devices = args.on.open()?;
    let dtype = args.in_dtype.dtype()?.unwrap_or_else(|| engine::default_dtype(&devices));
    let cache = args.in_dtype.cache()?;
    let (name, description, _) = crate::models::description(&args.model)?;
    anyhow::ensure!(
        args.generate < args.context,
        "--generate {} leaves no token of --context {} for the prompt; give a longer context",
        args.generate,
        args.context
    );
    let limit = description.spec.max_positions;
    if args.context > limit {
        note(format_args!(
            "note: {} tokens are more than the {} that {name} was made for",
            grouped(args.context as u64),
            grouped(limit as u64)
        ));
    }
    let stop = interrupt::flag("stopping after the step under way")?;
    let (on, tokens) = ((&devices[..], args.on.attention_kernel), args.context - args.generate);
    let usual = Setting::new(on, dtype, tokens);
    let setting = Setting {
        cache,
        chunk: args.chunk,
        generate: args.generate,
        recording: Recording { rows: args.rows, spans: args.rows },
        fill: if args.zeros { Fill::Zeros } else { usual.fill },
        ..usual
    };
    let measured = || -> anyhow::Result<(Trial, u128)> {
        let making = crate::progress::spinner("making weights");
        let subject = Subject::load(&name, description.spec.clone(), setting)?;
        making.finish_and_clear();
        let going = || !stop.load(Ordering::Relaxed);
        // Warm-up: loads kernels and maps memory before timing.
        subject.measure(&[tokens.min(args.chunk).min(64)], 1, &mut |_| going())?;
        let bar = crate::progress::tokens(tokens as u64, "prefill");
        let trial = subject.measure(&[tokens], 1, &mut |done| {
            bar.set_position(done as u64);
            going()
        });
        bar.finish_and_clear();
        Ok((trial?.trial, subject.spec().parameters()))
    };
    let (trial, parameters) = match measured() {
        Err(error) if is_interrupted(&error) => interrupt::end("stopped"),
        other => other?,
    };
    if args.json {
        let json = json!({
            "model": name,
            "parameters": parameters,
            "dtype": dtype.as_str(),
            "cache_dtype": cache.unwrap_or(dtype).as_str(),
            "weights": if args.zeros { "zeros" } else { "random" },
            "context": args.context,
            "trial": trial,
        });
        return Ok(format!("{json:#}\n"));
    }
    let header = format!(
        "{name} ({:.2}B parameters) of random weights in {}, {} tokens of context, {} per prefill step\n\n",
        parameters as f64 / 1e9,
        dtype.as_str(),
        grouped(args.context as u64),
        grouped(args.chunk as u64)
    );
    Ok(header + &in_words(&trial))
}

fn in_words(trial: &Trial) -> String {
    let mut rows = vec![["DEVICE", "PLANNED", "TAKEN", "OF PLAN", "MEASURED"].map(str::to_owned)];
    for Memory { device, planned, peak } in &trial.memory {
        let [taken, part, how] = match peak {
            Some(Peak { bytes, how, .. }) => {
                let part = *bytes as f64 / (*planned).max(1) as f64;
                [gigabytes(*bytes), format!("{part:.2}"), how.in_words().to_owned()]
            }
            None => ["not known".to_owned(), String::new(), String::new()],
        };
        rows.push([device.clone(), gigabytes(*planned), taken, part, how]);
    }
    let mut text = columns(&rows);
    let (seconds, teraflop) = (trial.prefill_seconds, trial.prefill.operations() / 1e12);
    text += &format!(
        "\nweights made in {:.1} s\n\
         prefill of {} tokens: {seconds:.2} s, {:.0} tokens/s, {:.2} TFLOP/s of {teraflop:.1} TFLOP counted\n\
         recording of the last {} rows over {} spans: {:.2} s beside that\n",
        trial.loading_seconds,
        grouped(trial.tokens as u64),
        trial.tokens as f64 / seconds,
        teraflop / seconds,
        trial.rows,
        trial.spans,
        trial.recording_seconds
    );
    if trial.generated > 0 {
        text += &format!(
            "a generated token: {:.2} ms, {:.1} tokens/s, {:.1} GB/s of {:.2} GB counted\n",
            trial.token_seconds * 1e3,
            1.0 / trial.token_seconds,
            trial.token.bytes / trial.token_seconds / 1e9,
            trial.token.bytes / 1e9
        );
    }
    text
}
