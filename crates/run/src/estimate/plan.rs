//! `palimpsest model plan`: memory needs of a model before loading or fetching it, and hours of a run on a card that need not be present.

use candle_core::DType;
use serde_json::json;

use crate::cards::{CaseShape, Hours, NamedCard, Recording, fewest_cards};
use crate::models::manifest::DEFAULT_MODEL;
use crate::models::{ModelArgs, description};
use crate::progress::{grouped, note};
use crate::runs::setup::{WrongValue, positive};
use palimpsest_core::engine::memory_plan::{
    Branches, MemoryPlan, MemoryRequest, ObservedSpans, Share, available_bytes, gigabytes, in_words,
};
use palimpsest_core::engine::{self, DeviceName};
use palimpsest_core::model::{AttentionSpec, Kept, MixerSpec, ModelDescription};
use palimpsest_data::benchmarks;
use palimpsest_data::ground::table::columns;

const EXAMPLES: &str = "\
Examples:
  palimpsest model plan smollm2-135m --context 8192
  palimpsest model plan ./qwen3-8b/config.json --context 131072 --device cuda:0
  palimpsest model plan llama-3.1-8b-instruct --context 131072 --card a100-80
  palimpsest model plan llama-3.3-70b-instruct --context 131072 --device cuda:0,cuda:1,cuda:2,cuda:3 --memory 78";

/// Plan a model's memory at a context length, and say whether it fits. Fetches and loads nothing.
///
/// WEIGHTS are in the dtype of the device (experts in full; MXFP4 and FP8 checkpoints are widened to it while loading), and on the CPU in
/// f32 or bf16 also the packed form of a quantised file's weights, for decoding; if memory is short, only that form (--weights). CACHE is
/// every layer's cache of the context, at the size of its window or linear-attention state, and the caches of questions answered together.
/// OBSERVER is the scratch memory of recording attention. `run` and `trace` refuse to start by the same numbers.
///
/// --card plans for a card that need not be here: its memory, and by its published rates the hours of --cases histories of the context's
/// length, on one card and in parts (`run --shard`). The hours are an estimate; nothing is measured. Assumed are the shares of these rates
/// that this program reached on one H100, whatever the card; they are printed. `run --estimate --card` does the same for a data set's own
/// lengths.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct PlanArgs {
    /// A model's name (fetched or not), owner/name of the Hugging Face hub (its config.json is fetched), a config.json, a folder that has
    /// one (weights or not), or a .gguf file
    #[arg(default_value = DEFAULT_MODEL)]
    model: String,
    /// Tokens of prompt and answer together [default: the model's context length]
    #[arg(long, value_name = "TOKENS", value_parser = positive)]
    context: Option<usize>,
    #[command(flatten)]
    loaded: ModelArgs,
    /// A card that need not be here, or as many as hold the model, with the hours: a100-40, a100-80, h100, h200, l40s, rtx-4090
    #[arg(long, value_name = "NAME", conflicts_with_all = ["memory", "device"])]
    card: Option<NamedCard>,
    /// --card: histories of the context's length to estimate hours for, each with --batch-size questions
    #[arg(long, value_name = "N", default_value_t = 400, requires = "card", value_parser = positive)]
    cases: usize,
    /// Tokens per prefill step
    #[arg(long, default_value_t = engine::DEFAULT_CHUNK, value_parser = positive)]
    chunk: usize,
    /// Questions of a case that are decoded as one batch, as in `run`
    #[arg(long, default_value_t = Branches::USUAL.count, value_name = "N", value_parser = positive)]
    batch_size: usize,
    /// Usable memory of each device in GB [default: the memory now free]
    #[arg(long, value_name = "GB", value_parser = memory)]
    memory: Option<u64>,
    /// Print JSON, in bytes
    #[arg(long)]
    json: bool,
}

const QUESTION: usize = 64;
/// Recording in the hours of `--card`: rows of a session and a question, over twice the spans of STALE's histories.
const RECORDED: Recording = Recording { rows: 500, spans: 512 };

/// Maximum context; larger values would overflow the sums.
const MOST_CONTEXT: usize = 1 << 36;

pub fn plan_text(args: &PlanArgs) -> anyhow::Result<String> {
    let names = match args.card {
        Some(_) => vec![DeviceName::Cuda(0)],
        None => engine::parse_device_names(&args.loaded.on.device)?,
    };
    let usual = names.first().map_or(DType::F32, |name| name.default_dtype());
    let (name, description, source) = description(&args.model)?;
    let limit = description.spec.max_positions;
    let context = args.context.unwrap_or(limit);
    anyhow::ensure!(
        context <= MOST_CONTEXT,
        "a context of {context} tokens is more than {MOST_CONTEXT}, the most that is planned for; give a shorter one"
    );
    if context > limit {
        note(format_args!(
            "note: {} tokens are more than the {} that {name} was made for; `run` and `trace` take them with --allow-longer only, and \
             `palimpsest model extend` makes a folder with its makers' scaling",
            grouped(context as u64),
            grouped(limit as u64)
        ));
    }
    let answer = benchmarks::named(&benchmarks::default_name()).map_or(0, |usual| usual.max_new_tokens);
    let mut request = MemoryRequest {
        chunk: args.chunk,
        branches: Branches::for_answers(args.batch_size, answer),
        observed: ObservedSpans { generated: answer, ..ObservedSpans::default() },
        ..args.loaded.request(context, usual, names)?
    };
    request.check_formats()?;
    let (plan, free, hours) = match args.card {
        None => {
            let free = |&name: &DeviceName| args.memory.or_else(|| available_bytes(&name.open().ok()?));
            let free: Vec<Option<u64>> = request.devices.iter().map(free).collect();
            (MemoryPlan::new(&description, &request, &free), free, None)
        }
        Some(card) => {
            let (cards, plan) = fewest_cards(&description, &mut request, card.usable());
            let (own, shared) = (vec![QUESTION; args.batch_size], context.saturating_sub(answer + QUESTION));
            let case = CaseShape { shared, own, answer, recording: RECORDED };
            let hours = Hours::new(&description.spec, &request, card, &[(case, args.cases as f64)]);
            (plan, vec![Some(card.usable()); cards], Some(hours))
        }
    };
    if args.json {
        let mut json = json(&name, &description, &request, &plan, &free);
        if let Some(hours) = hours {
            json["estimate"] = hours.json(free.len());
        }
        return Ok(format!("{json:#}\n"));
    }
    let table = table((&name, source), &description, &request, &plan, &free);
    let Some(hours) = hours else { return Ok(table) };
    let questions = match args.batch_size {
        1 => "question".to_owned(),
        several => format!("{several} questions"),
    };
    let cases = if args.cases == 1 { "case" } else { "cases" };
    let asked = format!(
        "{} {cases} x {questions} at {} tokens, answers of {answer}",
        grouped(args.cases as u64),
        grouped(context as u64),
    );
    Ok(format!("{table}\n{}", hours.text(&asked, free.len())))
}

fn memory(text: &str) -> Result<u64, WrongValue> {
    match text.parse::<f64>() {
        Ok(gb) if gb.is_finite() && gb > 0.0 && gb < 1e9 => Ok((gb * 1e9) as u64),
        _ => Err(WrongValue("give gigabytes as a number above 0, such as 78".to_owned())),
    }
}

type ShareBytes = fn(&Share) -> u64;

/// Bytes of a device's share, by JSON key and column title.
const PARTS: [(&str, ShareBytes); 6] = [
    ("weights", |share| share.weights),
    ("cache", |share| share.cache),
    ("activations", |share| share.activations),
    ("observer", |share| share.observer),
    ("process", |share| share.process),
    ("total", Share::total),
];

fn json(
    name: &str,
    description: &ModelDescription,
    request: &MemoryRequest,
    plan: &MemoryPlan,
    free: &[Option<u64>],
) -> serde_json::Value {
    let device = |(share, free): (&Share, &Option<u64>)| {
        let mut device = json!({"device": share.device.to_string(), "layers": share.layers});
        for (part, bytes) in PARTS {
            device[part] = json!(bytes(share));
        }
        device["free"] = json!(free);
        device
    };
    let devices: Vec<_> = plan.shares.iter().zip(free).map(device).collect();
    json!({
        "model": name,
        "architecture": description.spec.architecture,
        "parameters": description.spec.parameters(),
        "model_context": description.spec.max_positions,
        "context": request.context,
        "chunk": request.chunk,
        "dtype": request.dtype.as_str(),
        "cache_dtype": request.formats().cache.as_str(),
        "kept": plan.kept.map(|kept| match kept {
            Kept::Dense => "dense",
            Kept::Quantised => "quantised",
        }),
        "weights": plan.weights(),
        "cache": plan.cache(),
        "activations": plan.activations(),
        "observer": plan.observer(),
        "total": plan.total(),
        "mapped_while_loading": plan.mapped,
        "peak_resident": plan.peak_resident(),
        "fits": plan.fits(free),
        "devices": devices,
    })
}

fn table(
    (name, source): (&str, &str),
    description: &ModelDescription,
    request: &MemoryRequest,
    plan: &MemoryPlan,
    free: &[Option<u64>],
) -> String {
    let spec = &description.spec;
    let linear = spec.layers.iter().filter(|l| l.linear().is_some()).count();
    let windowed = spec.layers.iter().filter(|l| l.attention().is_some_and(|a| a.window.is_some())).count();
    let mut layers = format!("{} layers", spec.layers.len());
    if windowed > 0 {
        layers += &format!(", {windowed} with a window");
    }
    let indexed = spec.layers.iter().filter(|l| l.attention().is_some_and(AttentionSpec::is_indexed)).count();
    if indexed > 0 {
        layers += &format!(", {indexed} with chosen keys");
    }
    if linear > 0 {
        layers += &format!(", {linear} with linear attention");
    }
    let short = spec.layers.iter().filter(|l| matches!(l.mixer, MixerSpec::ShortConv(_))).count();
    if short > 0 {
        layers += &format!(", {short} with a short convolution");
    }
    let mut text = format!(
        "{name} ({}, {:.2}B parameters, {layers}), from {source}\n{} tokens of context in {}, {} per prefill step\n\n",
        spec.architecture,
        spec.parameters() as f64 / 1e9,
        grouped(request.context as u64),
        request.formats(),
        grouped(request.chunk as u64),
    );
    let row = |device: &str, layers: usize, part: &dyn Fn(fn(&Share) -> u64) -> u64, free: String| {
        let bytes = PARTS.map(|(_, of)| gigabytes(part(of)));
        [&[device.to_owned(), layers.to_string()], &bytes[..], &[free]].concat()
    };
    let parts = PARTS.map(|(name, _)| name.to_uppercase());
    let mut rows =
        vec![[&["DEVICE", "LAYERS"].map(str::to_owned), &parts[..], &["FREE".to_owned()]].concat()];
    for (share, free) in plan.shares.iter().zip(free) {
        let free = free.map_or_else(|| "not known".to_owned(), gigabytes);
        rows.push(row(&share.device.to_string(), share.layers, &|of| of(share), free));
    }
    if plan.shares.len() > 1 {
        let all = |of: fn(&Share) -> u64| plan.shares.iter().map(of).sum();
        rows.push(row("all", spec.layers.len(), &all, String::new()));
    }
    text += &columns(&rows);
    if let Some(kept) = plan.kept {
        text += &format!("\nWeights: {}.\n", in_words(kept));
    }
    if plan.mapped > 0 {
        text += &format!(
            "\nWhile loading, {} of the file are mapped too, which the system reclaims when needed; the process shows {} at its peak.\n",
            gigabytes(plan.mapped),
            gigabytes(plan.peak_resident())
        );
    }
    text + match plan.fits(free) {
        Some(true) => "\nIt fits.\n",
        Some(false) => {
            "\nIt does not fit. Give a shorter --context, a smaller --chunk, --dtype bf16, on the CPU --cache-dtype bf16, more devices, or a smaller model.\n"
        }
        None => {
            "\nWhether it fits is not known: a device is not here or does not tell. Give its usable memory with --memory GB.\n"
        }
    }
}
