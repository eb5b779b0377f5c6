//! `palimpsest trace`: the raw instrument: tokens in, logits and masses out.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, ensure};
use ndarray::Axis;
use serde::Deserialize;
use serde_json::json;

use crate::models::{ModelArgs, ModelStore};
use palimpsest_core::attention::{
    AttentionKernel, EachMasses, Knockout, LargestKeys, LayerHoles, Masses, Target, Values, write_tensors,
};
use palimpsest_core::engine::memory_plan::{self, Branches, MemoryRequest, ObservedSpans};
use palimpsest_core::engine::thread::Limits;
use palimpsest_core::engine::{
    self, Branch, DeviceName, Engine, Event, Generate, Observe, Request, Rows, Sampling, Session, Task,
    TopRequest,
};
use palimpsest_core::model::OpenModel;
use palimpsest_core::span::Span;
use palimpsest_core::timing::{self, Recorder};

const EXAMPLES: &str = "\
Examples:
  palimpsest trace --model smollm2-135m --tokens tokens.json --out trace.safetensors
  palimpsest trace --model ./qwen3-8b --tokens t.json --out trace.safetensors --generate 32 --stats stats.json";

/// Tokens in, logits and attention masses out, without any tokeniser: to compare with other implementations.
///
/// TOKENS is a JSON file: {"tokens": [1, 2, ...], "spans": {"old": [4, 9], ...}, "rows": ["new", "query"], "logits": 16}.
/// It may hold more: "knockouts": [{"rows": "query", "keys": "old", "layers": [8, 16]}] keeps the rows of one span from seeing the keys
/// of another at those layers, all where `layers` is absent: what is written is then of that pass, but for `share`. `rows` may also be
/// `last`, and with `--generate` `answer` or `each`. Rows that reach the prompt's end cover the generated tokens too; "only": true keeps
/// to the rows named. One that blocks nothing is refused. "top_keys": k asks for the k largest weights of each row.
/// "measures": ["mass", "share", "value_norm", "output_norm", "density"] says which are written; without it mass and share. "targets": [{"position": p,
/// "token": a, "against": b}] takes the logit of token a at a position apart, or where `against` is there its difference to that of b;
/// spans must then have no common tokens.
/// Spans are half-open token ranges; they may leave gaps and may overlap. `rows` names the spans whose tokens attend,
/// `logits` says for how many last positions logits are written. A row sees the causal part of a key span only. Three rows are no
/// spans, and no span may have their names: `last` is the last position; with `--generate`, `each` is every generated token,
/// whose row is the position that predicted it, and `answer` is the mean over them.
///
/// OUT is a safetensors file: `logits` f32 [positions, vocab] and `mass` f32 [layers, heads, rows, spans], with metadata
/// `layers`, `rows`, `spans` as JSON arrays in the order of the axes. `share` f32 [layers, rows, spans] is what uniform attention
/// would pay within each layer's window, which metadata `windows` has (null: a row sees all before it). A model with Gated DeltaNet layers adds their implicit
/// attention, `delta_signed` and `delta_share` f32 [linear layers, value heads, rows, spans], with metadata `delta_layers`.
/// `top_keys` u32 and `top_weights` f32 [layers, heads, row positions, k] are what each row pays most to, largest first, the spans of
/// `rows` one after the other (metadata `top_positions`); where a row sees fewer than k keys, 4294967295 and 0.
/// `density` f32 [layers, heads, rows, spans] is mass over share, NaN where a row sees nothing of a span.
/// `value_norm` and `output_norm` f32 [layers, heads, rows, spans]: what heads read and write weighed by its length (docs/measures.md).
/// `attribution` f32 [targets, layers, heads, spans + 1], the last for keys in no span (metadata `attribution_spans`), and
/// `attribution_other` f32 [targets, parts] (metadata `parts`): all of both sum to the target's logit, or difference.
/// `--generate` adds `generated` u32 [N]; with `each` among the rows also `mass_each` f32 [layers, heads, N, spans] and, where the
/// model has such, `sink_each` f32 [layers, heads, N], `delta_signed_each` and `delta_share_each` f32 [linear layers, value
/// heads, N, spans]. What generated tokens pay to each other is in no span.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A manifest's name, a model folder, or a .gguf file
    #[arg(long)]
    model: String,
    /// JSON file with tokens, spans and rows
    #[arg(long)]
    tokens: PathBuf,
    /// Safetensors file to write
    #[arg(long)]
    out: PathBuf,
    #[command(flatten)]
    loaded: ModelArgs,
    /// Tokens that the prefill reads at a time
    #[arg(long, default_value_t = engine::DEFAULT_CHUNK, value_parser = super::positive)]
    chunk: usize,
    /// Then generate N tokens greedily, whatever they are, and read each of them, so that --stats times N forward passes
    #[arg(long, value_name = "N", default_value_t = 0)]
    generate: usize,
    /// Also write a JSON file that says where the time went, and print it as a table: tokens, seconds and tokens per second
    /// of prefill and decode, observer seconds, peak memory, and the seconds of each part (loading, linear maps, attention,
    /// its observer, all else of the model, sampling, files), which with `unaccounted` add up to `wall`
    #[arg(long, value_name = "FILE")]
    pub(super) stats: Option<PathBuf>,
    /// Allow more tokens than the model's context length
    #[arg(long)]
    allow_longer: bool,
}

/// The tokens file. Spans keep their order.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokensFile {
    tokens: Vec<u32>,
    spans: serde_json::Map<String, serde_json::Value>,
    rows: Vec<String>,
    #[serde(default)]
    logits: usize,
    #[serde(default)]
    knockouts: Vec<Blocked>,
    #[serde(default)]
    top_keys: usize,
    #[serde(default)]
    measures: Option<Vec<String>>,
    #[serde(default)]
    targets: Vec<AskedTarget>,
}

/// Label in the metadata of the keys that are in no span.
const NO_SPAN: &str = "(none)";

const MEASURES: [&str; 5] = ["mass", "share", "value_norm", "output_norm", "density"];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AskedTarget {
    position: usize,
    token: u32,
    #[serde(default)]
    against: Option<u32>,
}

/// A path to block: the rows of one span, with those that reach the prompt's end the generated tokens too unless `only`, and the keys of
/// another.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Blocked {
    rows: String,
    keys: String,
    #[serde(default)]
    layers: Option<[usize; 2]>,
    #[serde(default)]
    only: bool,
}

impl Blocked {
    fn knockout(&self) -> Knockout {
        let layers = self.layers.map(|[start, end]| start..end);
        Knockout { rows: self.rows.clone(), keys: self.keys.clone(), layers, only: self.only }
    }
}

/// Runs the command. `recorder` is there where `--stats` is.
pub fn run(args: Args, recorder: Option<&Recorder>) -> anyhow::Result<()> {
    // 1. Everything that can be refused before work begins.
    let reading = timing::io();
    let place = args.tokens.display();
    let text = std::fs::read(&args.tokens).with_context(|| format!("{place}"))?;
    let file: TokensFile =
        serde_json::from_slice(&text).with_context(|| format!("{place} is not a tokens file"))?;
    drop(reading);
    ensure!(!file.tokens.is_empty(), "{place}: `tokens` is empty; give at least one token");
    let keys = spans(&file.spans).with_context(|| format!("{place}"))?;
    let n = file.tokens.len();
    let rows = Rows::named(&file.rows, &keys, n).with_context(|| format!("{place}"))?;
    let asked = file.rows.iter().chain(file.knockouts.iter().map(|knockout| &knockout.rows));
    if let Some(row) = asked.into_iter().find(|row| ["answer", "each"].contains(&row.as_str())) {
        ensure!(
            args.generate > 0,
            "{place}: row `{row}` is of generated tokens, and none are asked for; add --generate N, or leave the row out"
        );
    }
    ensure!(file.logits <= n, "{place}: `logits` asks for {} positions of {n} tokens", file.logits);
    let each = if rows.answer.each { args.generate } else { 0 };
    let observed = ObservedSpans {
        rows: file.rows.len().saturating_add(each),
        keys: keys.len(),
        generated: args.generate,
    };
    let named = file.measures.as_deref();
    if let Some(unknown) =
        named.and_then(|named| named.iter().find(|name| !MEASURES.contains(&name.as_str())))
    {
        anyhow::bail!("{place}: `measures` names `{unknown}`, and knows {}", MEASURES.join(", "));
    }
    let wants = |name: &str| match named {
        Some(named) => named.iter().any(|other| other == name),
        None => ["mass", "share"].contains(&name),
    };
    let wants_lengths = wants("value_norm") || wants("output_norm");
    ensure!(
        !(wants_lengths && rows.answer.any()),
        "{place}: value_norm and output_norm are of the prompt's rows; leave the rows `answer` and `each` out"
    );
    ensure!(file.top_keys <= n, "{place}: `top_keys` asks for {} keys of {n}", file.top_keys);
    let knockouts: Vec<Knockout> = file.knockouts.iter().map(Blocked::knockout).collect();
    let target =
        |&AskedTarget { position, token, against }: &AskedTarget| Target { position, token, against };
    let targets: Vec<Target> = file.targets.iter().map(target).collect();
    let observe = Observe {
        rows,
        keys: keys.clone(),
        top_keys: (file.top_keys > 0).then_some(TopRequest { k: file.top_keys, mean: false }),
        norms: wants_lengths,
        targets,
        logits: file.logits,
        ..Observe::default()
    };
    super::writable(&args.out)?;
    args.stats.as_deref().map_or(Ok(()), super::writable)?;
    let devices = args.loaded.on.open()?;
    recorder.inspect(|recorder| recorder.wait_for(&devices));
    let dtype = args.loaded.dtype()?.unwrap_or_else(|| engine::default_dtype(&devices));

    // 2. Load. There must be room for what is generated, too.
    let loading = timing::load();
    let room = n.saturating_add(args.generate);
    let model = OpenModel::open(&ModelStore::open()?.resolve_to_run(&args.model)?.paths())?;
    super::check_context(room, model.spec().max_positions, args.allow_longer)?;
    let holes = LayerHoles::exact(&knockouts, &keys, n, &model.spec().layer_kinds())
        .with_context(|| format!("{place}"))?;
    // One token more is chosen than is asked for.
    let room = room.saturating_add(usize::from(args.generate > 0));
    let names = devices.iter().map(DeviceName::of).collect();
    let request = MemoryRequest {
        context: room,
        chunk: args.chunk,
        logits: file.logits,
        dtype,
        kernel: if knockouts.is_empty() {
            args.loaded.on.attention_kernel
        } else {
            AttentionKernel::Products
        },
        devices: names,
        branches: Branches::default(),
        observed,
        kept: args.loaded.weights.into(),
        beside: 0,
    };
    let placed = memory_plan::place(&args.model, &model.description(), &request, &devices)?;
    let model = model.keeping(placed.kept).attending_by(args.loaded.on.attention_kernel);
    let engine = Engine::new(model.load_split(placed.devices, dtype)?, args.chunk);
    let cache = engine.decoder().cache(room)?;
    let mut session = Session::new(engine, cache, Limits::of_branches(room, Branches::default()));
    drop(loading);

    // 3. Read, and generate. The last token chosen is one too many: it is chosen for the sake of the step before it, which reads
    // the last one asked for.
    let vocabulary = session.engine().decoder().spec().vocab;
    let tokens_of = |target: &AskedTarget| [Some(target.token), target.against].into_iter().flatten();
    if let Some(token) = file.targets.iter().flat_map(tokens_of).find(|&token| token as usize >= vocabulary) {
        anyhow::bail!("{place}: a target names token {token}, and the model's vocabulary has {vocabulary}");
    }
    let bar = crate::progress::tokens(n as u64, "prefill");
    let (start, mut seconds) = (Instant::now(), None);
    let task = match args.generate {
        0 => Task::Read,
        tokens => Task::Generate(Box::new(Generate::new(Sampling::greedy(tokens + 1), Vec::new()))),
    };
    let branch = Branch { tokens: file.tokens.clone(), knockouts: holes, observe, tasks: vec![task] };
    let request = Request { branches: vec![branch], ..Request::default() };
    let device = session.engine().device().clone();
    let mut waited = Ok(());
    let measured = session.answer(request, &mut |event| {
        match event {
            Event::Prefilled(done) => bar.inc(*done as u64),
            Event::Prompt => {
                waited = device.synchronize();
                seconds = Some(start.elapsed().as_secs_f64());
            }
            _ => {}
        }
        true
    });
    bar.finish_and_clear();
    waited?;
    let measured = measured.with_context(|| format!("{place}"))?;
    let seconds = seconds.unwrap_or_default();
    let mut generated = measured.generated.tokens;
    generated.truncate(args.generate);

    // 5. Write.
    let Masses { layers, rows, mass, uniform, sink, delta, each } =
        measured.measurement.finish(generated.len())?;
    let names = |spans: &[Span]| json!(spans.iter().map(|s| &s.label).collect::<Vec<_>>()).to_string();
    let mut metadata = vec![
        ("format", "palimpsest trace 1".to_owned()),
        ("layers", json!(layers).to_string()),
        ("rows", names(&rows)),
        ("spans", names(measured.measurement.keys())),
        ("dtype", format!("{dtype:?}").to_lowercase()),
    ];
    let logits_shape = vec![file.logits, measured.logits.dim().1];
    let logits: Vec<f32> = measured.logits.iter().take(logits_shape.iter().product()).copied().collect();
    let mut tensors = vec![("logits", Values::F32(logits), logits_shape)];
    if wants("mass") {
        tensors.push(("mass", Values::F32(mass.iter().copied().collect()), mass.shape().to_vec()));
    }
    if wants("density") {
        let share = uniform.share.view().insert_axis(Axis(1));
        let density = share.broadcast(mass.dim()).map(|share| &mass / &share).unwrap_or_default();
        tensors.push(("density", Values::F32(density.iter().copied().collect()), mass.shape().to_vec()));
    }
    if let Some(norms) = &measured.norms {
        for (name, values) in [("value_norm", &norms.value_norm), ("output_norm", &norms.output_norm)] {
            if wants(name) {
                tensors.push((name, Values::F32(values.iter().copied().collect()), values.shape().to_vec()));
            }
        }
    }
    if let Some(found) = measured.attributions {
        for (name, values, shape) in [
            ("attribution", found.heads.iter().copied().collect(), found.heads.shape().to_vec()),
            ("attribution_other", found.other.iter().copied().collect(), found.other.shape().to_vec()),
        ] {
            tensors.push((name, Values::F32(values), shape));
        }
        let mut labels: Vec<&str> = keys.iter().map(|span| &*span.label).collect();
        labels.push(NO_SPAN);
        metadata.push(("attribution_spans", json!(labels).to_string()));
        metadata.push(("parts", json!(found.parts).to_string()));
    }
    if let Some(sink) = sink {
        tensors.push(("sink", Values::F32(sink.iter().copied().collect()), sink.shape().to_vec()));
    }
    if wants("share") {
        tensors.push(uniform.tensor());
    }
    metadata.push(uniform.metadata());
    if let Some(delta) = &delta {
        tensors.extend(delta.tensors());
        metadata.push(delta.metadata());
    }
    if let Some(each) = &each {
        tensors.extend(each_tensors(each));
    }
    // Of the prompt's rows alone.
    if let Some(LargestKeys { rows, shape, keys, weights, .. }) = measured.measurement.finish_top_keys(0)? {
        metadata.push(("top_positions", json!(rows).to_string()));
        tensors.push(("top_keys", Values::U32(keys), shape.to_vec()));
        tensors.push(("top_weights", Values::F32(weights), shape.to_vec()));
    }
    if !knockouts.is_empty() {
        let knockouts = knockouts.iter().map(ToString::to_string).collect::<Vec<_>>();
        metadata.push(("knockouts", json!(knockouts).to_string()));
    }
    if args.generate > 0 {
        tensors.push(("generated", Values::U32(generated), vec![args.generate]));
    }
    let writing = timing::io();
    write_tensors(&args.out, &tensors, &metadata)?;
    drop(writing);
    super::say(format_args!(
        "{}: {n} tokens in {seconds:.1} s ({:.0} tok/s), {} layers traced",
        args.out.display(),
        n as f64 / seconds,
        layers.len() + delta.map_or(0, |delta| delta.layers.len())
    ))?;
    if let (Some(path), Some(recorder)) = (&args.stats, recorder) {
        super::write_stats(path, recorder)?;
    }
    Ok(())
}

fn each_tensors(each: &EachMasses) -> Vec<(&'static str, Values, Vec<usize>)> {
    let mut tensors =
        vec![("mass_each", Values::F32(each.mass.iter().copied().collect()), each.mass.shape().to_vec())];
    if let Some(sink) = &each.sink {
        tensors.push(("sink_each", Values::F32(sink.iter().copied().collect()), sink.shape().to_vec()));
    }
    if let Some(delta) = &each.delta {
        for (name, values) in [("delta_signed_each", &delta.signed), ("delta_share_each", &delta.share)] {
            tensors.push((name, Values::F32(values.iter().copied().collect()), values.shape().to_vec()));
        }
    }
    tensors
}

/// Spans in file order from `{"name": [start, end], ...}`.
fn spans(map: &serde_json::Map<String, serde_json::Value>) -> anyhow::Result<Vec<Span>> {
    map.iter()
        .map(|(name, value)| {
            let range: [usize; 2] = serde_json::from_value(value.clone())
                .with_context(|| format!("span `{name}` is {value}, not [start, end)"))?;
            Ok(Span::new(name.clone(), range[0]..range[1]))
        })
        .collect()
}
