//! `palimpsest trace`: tokens in, logits and attention masses out.

use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::Context;
use palimpsest_core::attention::Knockout;
use palimpsest_core::engine::{self, Event, Reuse, TextSide};
use palimpsest_core::model::ModelFiles;
use palimpsest_core::span::Span;
use palimpsest_core::timing::{self, Recorder};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::trace_load::{Loading, load};
use super::trace_passes::Passes;
use super::trace_words::{Words, banner};
use crate::ground::text_file;
use crate::ground::words::counted;
use crate::models::{ModelArgs, ModelStore};
use crate::observe::{Measure, NamedSpan, ObserveRequest, TokenName, TokenTarget, TraceJob};

const EXAMPLES: &str = "\
Examples:
  palimpsest trace --model smollm2-135m --text letter.txt --spans 'old=on Thursday' --spans 'new=on Sunday' --out trace.safetensors
  palimpsest trace --model smollm2-135m --messages chat.json --spans spans.json --rows question,last --generate 20 --out trace.safetensors
  palimpsest trace --model smollm2-135m --text letter.txt --spans spans.json --knockout 'last->old@8..16' --out blocked.safetensors
  palimpsest trace --model smollm2-135m --text letter.txt --spans spans.json --knockout 'last->old' --compare --out both.safetensors
  palimpsest trace --model smollm2-135m --jobs jobs.jsonl --out rows.jsonl
  palimpsest trace --model smollm2-135m --tokens tokens.json --out trace.safetensors
  palimpsest trace --model ./qwen3-8b --tokens t.json --out trace.safetensors --generate 32 --stats stats.json";

/// A text, a conversation or tokens in, logits and attention masses of every layer and head out.
///
/// `--text` reads a file as it is (but for a line break at its end), `--messages` a JSON list of chat messages as the server takes them,
/// which the model's chat template makes a text of. `--spans` names parts of it: LABEL=TEXT, where the text must occur exactly once;
/// LABEL=START..END in characters from 0 (LABEL=MESSAGE:START..END where there are several messages); or a JSON file {"label": "text",
/// "other": [start, end]}. Parts of messages may have a "span" of their own. Without any name messages are the spans. A token across a
/// border belongs to the span of its first character that is no white space. Rows and knock-outs may also name `messages[0]`, ...
/// It prints the masses by span, in the order of the spans, then `(first token)`, the prompt's first token where no span holds it (it
/// gets attention whatever its text: an attention sink), `(learned sinks)` of models that have some, and `(elsewhere)`, the rest. They sum
/// to 100.
///
/// With knock-outs it says first what is hidden from what. `--compare` reads the prompt twice, plain and with the knock-outs, and prints
/// both side by side with their differences: masses, the next token (with KL(plain || knocked out)), and with `--generate` the answers and
/// the log-probability of the plain one in both.
///
/// `--jobs` has a job a line: {"id", "text" or "messages", "spans": {...}, "rows": [...], "knockouts": ["last->old"], "measures": [...],
/// "top_keys", "logits", "targets", "generate", "out"}, all but the text or the messages optional. One loaded model serves all of them,
/// and what prompts begin with in common is read once. OUT then is a file of JSON lines: a row a job, with the masses averaged over
/// layers and heads, or an error; the others go on. At the end a table has a line a job. File and table are in the order of the jobs.
///
/// `--tokens` has token ids, without any tokeniser: to compare with other implementations.
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
/// would give within each layer's window, which metadata `windows` has (null: a row sees all before it). `first_token` f32 [layers, heads,
/// rows] is the mass on the first token, which its spans' masses include. A model with Gated DeltaNet layers adds their implicit
/// attention, `delta_signed` and `delta_share` f32 [linear layers, value heads, rows, spans], with metadata `delta_layers`.
/// `--selected` adds `selected` and `forgone` f32 [layers, rows, spans] (docs/measures.md): the share of a span's tokens that the layer's
/// window or indexer left to the row, and the mass that the row would pay to the others over all keys. A job asks for it with "selected": true.
/// `top_keys` u32 and `top_weights` f32 [layers, heads, row positions, k] are what each row pays most to, largest first, the spans of
/// `rows` one after the other (metadata `top_positions`); where a row sees fewer than k keys, 4294967295 and 0.
/// `density` f32 [layers, heads, rows, spans] is mass over share, NaN where a row sees nothing of a span.
/// `value_norm` and `output_norm` f32 [layers, heads, rows, spans]: what heads read and write weighed by its length (docs/measures.md).
/// `attribution` f32 [targets, layers, heads, spans + 1], the last for keys in no span (metadata `attribution_spans`), and
/// `attribution_other` f32 [targets, parts] (metadata `parts`): all of both sum to the target's logit, or difference.
/// `--generate` adds `generated` u32 [N]; with `each` among the rows also `mass_each` f32 [layers, heads, N, spans] and, where the
/// model has such, `sink_each` f32 [layers, heads, N], `delta_signed_each` and `delta_share_each` f32 [linear layers, value
/// heads, N, spans]. Attention of generated tokens to each other is in no span. Metadata `knockouts` and `hidden` say what was hidden.
/// `--compare` writes the pass with knock-outs under these names, the plain one as `plain.mass` and so on (metadata `compare`).
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(group(clap::ArgGroup::new("source").required(true).args(["tokens", "text", "messages", "jobs"])))]
pub struct Args {
    /// A name of `palimpsest model list`, owner/name[@revision] of the Hugging Face hub, a model folder, or a .gguf file
    #[arg(long)]
    model: String,
    /// JSON file with tokens, spans and rows
    #[arg(long)]
    tokens: Option<PathBuf>,
    /// File with a text in UTF-8, read as it is; a line break at its end and a byte order mark are left out
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// JSON file with a list of chat messages
    #[arg(long, value_name = "FILE")]
    messages: Option<PathBuf>,
    /// JSON lines, a job each; OUT gets a row a job
    #[arg(long, value_name = "FILE")]
    jobs: Option<PathBuf>,
    /// Safetensors file to write; with --jobs JSON lines
    #[arg(long)]
    out: PathBuf,
    #[command(flatten)]
    named: NamedArgs,
    #[command(flatten)]
    loaded: ModelArgs,
    /// Tokens that the prefill reads at a time
    #[arg(long, default_value_t = engine::DEFAULT_CHUNK, value_parser = super::positive)]
    chunk: usize,
    /// Then generate N tokens greedily, whatever they are, and read each of them, so that --stats times N forward passes; after a text or
    /// messages a token that ends the answer ends it
    #[arg(long, value_name = "N", default_value_t = 0)]
    generate: usize,
    /// Also measure what windows and indexers left of each span, and the attention forgone on the rest; this keeps windowed layers' keys
    #[arg(long, conflicts_with = "jobs")]
    selected: bool,
    /// Read the prompt without the knock-outs, too, and print both side by side; with --jobs each job that has some
    #[arg(long)]
    compare: bool,
    /// Also write a JSON file that says where the time went, and print it as a table: tokens, seconds and tokens per second
    /// of prefill and decode, observer seconds, peak memory of the process and of cards, and the seconds of each part (loading,
    /// linear maps, attention, its observer, all else of the model, sampling, files), which with `unaccounted` add up to `wall`
    #[arg(long, value_name = "FILE")]
    pub(super) stats: Option<PathBuf>,
    /// Allow more tokens than the model's context length
    #[arg(long)]
    allow_longer: bool,
}

/// Measurements of a text or of messages.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "With --text or --messages")]
struct NamedArgs {
    /// LABEL=TEXT, LABEL=START..END, or a JSON file with several; may be repeated
    #[arg(long, value_name = "SPAN", conflicts_with_all = ["tokens", "jobs"])]
    spans: Vec<String>,
    /// Spans whose tokens attend, with commas; also `last`, and with --generate `answer`, `each`
    /// [default: last, and with --generate answer]
    #[arg(long, value_delimiter = ',', conflicts_with_all = ["tokens", "jobs"])]
    rows: Option<Vec<String>>,
    /// Path to block: ROWS->KEYS, for all rows from the first of ROWS on, generated ones too; @8..16 behind it for layers 8 to 15, `only `
    /// before it for those rows alone; may be repeated
    #[arg(long = "knockout", value_name = "PATH", conflicts_with_all = ["tokens", "jobs"])]
    knockouts: Vec<String>,
    /// mass, share, value_norm, output_norm, density, with commas: what OUT has [default: mass,share]
    #[arg(long, value_delimiter = ',', conflicts_with_all = ["tokens", "jobs"])]
    measures: Option<Vec<String>>,
    /// The K largest keys of each row position and head
    #[arg(long, value_name = "K", default_value_t = 0, conflicts_with_all = ["tokens", "jobs"])]
    top_keys: usize,
    /// Positions at the end whose logits OUT has
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with_all = ["tokens", "jobs"])]
    logits: usize,
    /// Take the logit of this token, a text or an id, at the last position apart
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["tokens", "jobs"])]
    target: Option<String>,
    /// In the place of the logit its difference to that of this token
    #[arg(long, value_name = "TOKEN", requires = "target")]
    against: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokensFile {
    tokens: Vec<u32>,
    spans: Map<String, Value>,
    rows: Vec<String>,
    #[serde(default)]
    logits: usize,
    #[serde(default)]
    knockouts: Vec<Blocked>,
    #[serde(default)]
    top_keys: usize,
    #[serde(default)]
    measures: Option<Vec<Measure>>,
    #[serde(default)]
    targets: Vec<TokenTarget>,
}

/// A knock-out: rows of one span, keys of another. Rows that reach the prompt's end include generated tokens, unless `only`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Blocked {
    rows: String,
    keys: String,
    #[serde(default)]
    layers: Option<LayerRange>,
    #[serde(default)]
    only: bool,
}

/// The first layer and one past the last.
#[derive(Debug, Deserialize)]
#[serde(try_from = "Vec<usize>")]
struct LayerRange(Range<usize>);

impl TryFrom<Vec<usize>> for LayerRange {
    type Error = String;

    fn try_from(given: Vec<usize>) -> Result<Self, String> {
        match *given.as_slice() {
            [start, end] => Ok(LayerRange(start..end)),
            _ => Err(format!(
                "`layers` is {given:?}; give the first layer and one past the last, such as [8, 16]"
            )),
        }
    }
}

impl From<Blocked> for Knockout {
    fn from(Blocked { rows, keys, layers, only }: Blocked) -> Self {
        Knockout { rows, keys, layers: layers.map(|LayerRange(layers)| layers), only }
    }
}

pub fn run(args: Args, recorder: Option<&Recorder>) -> anyhow::Result<()> {
    let Args { model: name, loaded, chunk, allow_longer, .. } = &args;
    let loading =
        Loading { name, args: loaded, chunk: *chunk, allow_longer: *allow_longer, compare: args.compare };
    let find = || ModelStore::open()?.resolve_to_run(name);
    args.stats.as_deref().map_or(Ok(()), super::writable)?;
    match (&args.tokens, &args.jobs) {
        (Some(tokens), _) => {
            let job = of_tokens(tokens, args.generate, args.selected)?;
            super::writable(&args.out)?;
            let passes = traced(&args.out, &loading, &job, find, recorder)?;
            if args.compare {
                let words = Words { job: &job, tokenizer: None };
                super::say(format_args!("\n{}", passes.told(words)?.trim_end()))?;
            }
        }
        (None, Some(jobs)) => {
            super::writable(&args.out)?;
            super::trace_jobs::run(jobs, &args.out, args.generate, &loading, find()?, recorder)?;
        }
        (None, None) => {
            let (request, more, place) = of_flags(&args)?;
            super::writable(&args.out)?;
            let files = find()?;
            let side = TextSide::open(&files)?;
            let (job, _) = request.checked(more, (&side).into(), &place)?;
            let passes = traced(&args.out, &loading, &job, || Ok(files), recorder)?;
            let words = Words { job: &job, tokenizer: Some(&side.tokenizer) };
            super::say(format_args!("\n{}", passes.told(words)?.trim_end()))?;
        }
    }
    if let (Some(path), Some(recorder)) = (&args.stats, recorder) {
        super::write_stats(path, recorder)?;
    }
    Ok(())
}

fn traced(
    out: &Path,
    loading: &Loading<'_>,
    job: &TraceJob,
    find: impl FnOnce() -> anyhow::Result<ModelFiles>,
    recorder: Option<&Recorder>,
) -> anyhow::Result<Passes> {
    if loading.compare {
        job.check_compare()?;
    }
    let mut session = load(loading, &[job], find, recorder)?;
    let n = job.tokens.len();
    let bar = crate::progress::tokens((n * if loading.compare { 2 } else { 1 }) as u64, "prefill");
    let passes = Passes::read(job, loading.compare, &mut session, Reuse::default(), &mut |event| {
        if let Event::Prefilled(done) = event {
            bar.inc(*done as u64);
        }
        true
    });
    bar.finish_and_clear();
    let passes = passes?;
    passes.write(job, &session, out)?;
    let (last, place) = (passes.last(), out.display());
    let layers = format!("{} traced", counted(last.layers(), "layer"));
    match passes.plain() {
        None => {
            let rate = n as f64 / last.seconds;
            super::say(format_args!(
                "{place}: {n} tokens in {:.1} s ({rate:.0} tok/s), {layers}",
                last.seconds
            ))?;
        }
        Some(plain) => super::say(format_args!(
            "{place}: {n} tokens plain in {:.1} s, knocked out in {:.1} s ({} reused), {layers}",
            plain.seconds, last.seconds, last.measured.reused
        ))?,
    }
    if !last.hidden.is_empty() {
        super::say(format_args!("\n{}", banner(&last.hidden).trim_end()))?;
    }
    Ok(passes)
}

fn of_tokens(path: &Path, generate: usize, selected: bool) -> anyhow::Result<TraceJob> {
    let reading = timing::io();
    let place = path.display().to_string();
    let text = text_file::read(path).with_context(|| place.clone())?;
    let file: TokensFile =
        serde_json::from_str(&text).with_context(|| format!("{place} is not a tokens file"))?;
    drop(reading);
    let keys = spans(&file.spans).with_context(|| place.clone())?;
    let request = ObserveRequest {
        rows: Some(file.rows),
        logits: file.logits,
        knockouts: file.knockouts.into_iter().map(Knockout::from).collect(),
        top_keys: file.top_keys,
        selected,
        measures: file.measures,
        targets: file.targets,
        generate: Some(generate),
        ..ObserveRequest::default()
    };
    TraceJob::new(request, file.tokens, keys.clone(), keys, None, &place)
}

/// The job of the flags over a text or messages: request, named spans, and the spans file's text.
fn of_flags(args: &Args) -> anyhow::Result<(ObserveRequest, Vec<NamedSpan>, String)> {
    let NamedArgs { spans, rows, knockouts, measures, top_keys, logits, target, against } = &args.named;
    let _reading = timing::io();
    let (mut in_files, mut inline) = (Map::new(), Vec::new());
    for span in spans {
        match span.contains('=') {
            true => inline.push(NamedSpan::parse(span)?),
            false => in_files.extend(spans_of_file(Path::new(span))?),
        }
    }
    let token = |text: &String| text.parse().map_or_else(|_| TokenName::Text(text.clone()), TokenName::Id);
    let target = target.as_ref().map(|text| TokenTarget {
        position: None,
        token: token(text),
        against: against.as_ref().map(token),
    });
    let path = args.text.as_ref().or(args.messages.as_ref()).context("This is a bug: nothing to read")?;
    let place = path.display().to_string();
    let file = text_file::read(path).with_context(|| place.clone())?;
    let (text, messages) = match args.text {
        Some(_) => {
            let text = file.strip_suffix('\n').map(|text| text.strip_suffix('\r').unwrap_or(text));
            (Some(text.unwrap_or(&file).to_owned()), None)
        }
        None => {
            let value = serde_json::from_str(&file).with_context(|| format!("{place} is no JSON"))?;
            (None, Some(value))
        }
    };
    let blocked = knockouts.iter().map(|path| path.parse());
    let measures = measures.as_ref().map(|names| names.iter().map(|name| name.parse()).collect()).transpose();
    let request = ObserveRequest {
        text,
        messages,
        spans: in_files,
        rows: rows.clone(),
        knockouts: blocked.collect::<Result<_, _>>().with_context(|| place.clone())?,
        measures: measures.map_err(anyhow::Error::msg)?,
        top_keys: *top_keys,
        selected: args.selected,
        logits: *logits,
        targets: target.into_iter().collect(),
        generate: Some(args.generate),
        ..ObserveRequest::default()
    };
    Ok((request, inline, place))
}

fn spans_of_file(path: &Path) -> anyhow::Result<Map<String, Value>> {
    let place = path.display();
    let text = text_file::read(path)
        .with_context(|| format!("--spans {place} is neither LABEL=TEXT, LABEL=START..END nor a file"))?;
    serde_json::from_str(&text).with_context(|| {
        format!("{place} is no file of spans, which is {{\"label\": \"text\", \"other\": [start, end]}}")
    })
}

/// Spans in file order from `{"name": [start, end], ...}`.
fn spans(map: &Map<String, Value>) -> anyhow::Result<Vec<Span>> {
    map.iter()
        .map(|(name, value)| {
            let range: [usize; 2] = serde_json::from_value(value.clone())
                .with_context(|| format!("span `{name}` is {value}, not [start, end)"))?;
            Ok(Span::new(name.clone(), range[0]..range[1]))
        })
        .collect()
}
