//! `palimpsest build dose`: histories that vary one factor at a time, in twins of equal length.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::ValueEnum;
use jiff::civil::DateTime;

use crate::benchmarks::stale::Pair;
use crate::benchmarks::stale::{WriteError, write_stale};
use crate::case::Case;
use crate::cli::{empty, say, write_out, wrong};
use crate::construct::factors::Order;
use crate::construct::spec::MOST_ITEMS;
use crate::construct::{Built, Counter, Format, GivenFillers, Lines, PRESETS, Spec, Summary, write_build};
use crate::ground::text_file;
use crate::models::TokenCounter;
use crate::progress::{grouped, note, texts};

/// Build updates by dose: a value is stated, replaced and asked for, at set depths, distances and levels of other factors.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Presets: slots (a day, a colour or a number), chains (up to 8 updates of a value), boxes (an object is moved), streams (logs of several
keys, up to 16 updates), implied (an update that does not name its value). docs/dose.md has the fields of a spec.

Writes dose.jsonl, provenance.jsonl and build.json. The same seed gives the same bytes.

Examples:
  palimpsest build dose slots --out slots
  palimpsest build dose mine.toml --out mine --tokenizer gemma3-270m
  palimpsest build dose slots --out pairs --as stale")]
pub(super) struct Dose {
    /// A preset, or a spec's file.
    #[arg(value_name = "PRESET|SPEC.toml")]
    spec: String,
    /// The folder to write: a new or an empty one.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Seed of all draws [default: the spec's].
    #[arg(long)]
    seed: Option<u64>,
    /// Tokenizer that lengths are counted with: a model's name, owner/name of the Hugging Face hub, a folder, a .gguf file, a tokenizer.json,
    /// or an encoding (o200k_base).
    #[arg(long, value_name = "MODEL", default_value = "smollm2-135m")]
    tokenizer: String,
    /// Number of items [default: the spec's]. A larger number keeps the items of a smaller one.
    #[arg(long, value_name = "N")]
    items: Option<usize>,
    /// File of filler sessions to use instead of the built-in ones, one JSON object per line: {"id", "licence", "turns": [{"role", "content"}]}.
    #[arg(long, value_name = "FILE")]
    distractors: Option<PathBuf>,
    /// Write rows with one update in order of date as another benchmark's file instead of dose.jsonl.
    #[arg(long = "as", value_name = "BENCHMARK")]
    form: Option<Form>,
}

/// Other forms of the data.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Form {
    /// stale.json: a yes-or-no question, one that presupposes the old value, and one for the value.
    Stale,
}

/// Writes a preset's spec to standard output.
pub(super) fn init(preset: Option<&str>) -> anyhow::Result<()> {
    let preset = preset.unwrap_or(PRESETS[0].0);
    match PRESETS.iter().find(|(name, _)| *name == preset) {
        Some((_, text)) => write_out(text.as_bytes()),
        None => unknown_preset(preset),
    }
}

fn unknown_preset<T>(name: &str) -> anyhow::Result<T> {
    let known = PRESETS.map(|(name, _)| name).join(", ");
    wrong(format!("{name:?} is no preset and no file; write one of {known}, or the path of a spec"))
}

fn spec_of(args: &Dose) -> anyhow::Result<Spec> {
    let mut spec = match Spec::preset(&args.spec) {
        Some(spec) => spec?,
        None => {
            let path = Path::new(&args.spec);
            if !path.is_file() {
                return unknown_preset(&args.spec);
            }
            let text = text_file::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            Spec::parse(&args.spec, &text)?
        }
    };
    if let Some(items) = args.items {
        if !(1..=MOST_ITEMS).contains(&items) {
            return wrong(format!("--items {items}: write a number from 1 to {MOST_ITEMS}"));
        }
        spec.items = items;
    }
    spec.seed = args.seed.unwrap_or(spec.seed);
    Ok(spec)
}

pub(super) fn run(args: &Dose) -> anyhow::Result<()> {
    let spec = spec_of(args)?;
    let dir = &args.out;
    empty(dir)?;
    let given = args.distractors.as_deref().map(GivenFillers::read).transpose()?;
    let tokenizer = TokenCounter::open(&args.tokenizer).with_context(|| {
        let name = &args.tokenizer;
        format!(
            "the tokenizer `{name}` cannot be opened; fetch the model with `palimpsest model pull {name}`, or name a folder, a \
             tokenizer.json or an encoding with --tokenizer"
        )
    })?;
    let mut pairs = Pairs::default();
    let format: &mut dyn Format = match args.form {
        None => &mut Lines,
        Some(Form::Stale) => &mut pairs,
    };
    let bar = texts(spec.items as u64, "building items");
    let counter =
        Counter { name: &tokenizer.name, digest: &tokenizer.digest, tokens: tokenizer.tokens.as_ref() };
    let summary = write_build(dir, &spec, counter, given.as_ref(), format, || bar.inc(1))?;
    bar.finish_and_clear();
    let file = dir.join(format.file());
    tell(&spec, &summary, &file, &tokenizer.name)
}

fn tell(spec: &Spec, summary: &Summary, file: &Path, tokenizer: &str) -> anyhow::Result<()> {
    for (name, reason) in &summary.left_out {
        note(format_args!("note: the template {name} is left out: {reason}"));
    }
    for (reason, times) in &summary.dropped {
        note(format_args!("note: {times} dropped: {reason}"));
    }
    say(format_args!(
        "wrote {}: {} of {} items, {} rows, {} tokens of {tokenizer}, seed {}",
        file.display(),
        summary.kept,
        spec.items,
        summary.rows,
        grouped(summary.tokens as u64),
        spec.seed
    ))
}

#[derive(Default)]
struct Pairs(Vec<Case>);

impl Format for Pairs {
    fn file(&self) -> &str {
        "stale.json"
    }

    fn row(&mut self, built: &Built, _: &mut dyn Write) -> std::io::Result<bool> {
        let case = pair(built);
        let is_pair = case.is_some();
        self.0.extend(case);
        Ok(is_pair)
    }

    fn end(&mut self, mut out: &mut dyn Write) -> std::io::Result<()> {
        write_stale(&mut out, &self.0).map_err(|error| match error {
            WriteError::Io(error) => error,
            other => std::io::Error::other(other),
        })
    }
}

/// The case of an update in date order; `None` for other rows.
fn pair(built: &Built) -> Option<Case> {
    let row = &built.row;
    let level = |name: &str| row.factors.get(name);
    let one = level("chain")?.as_u64() == Some(1) && level("order")? == &serde_json::json!(Order::Place);
    let told = row.probes.iter().all(|probe| probe.expects == "current");
    if !one || !told || !["ab", "ba"].contains(&row.twin.as_str()) {
        return None;
    }
    let time = |text: &str| DateTime::strptime("%Y-%m-%d %H:%M", text).ok();
    let pair = built.pair.clone()?;
    let probe = row.probes.first()?;
    let sessions = row.sessions.iter().map(|session| Some((time(&session.time)?, session.turns.clone())));
    let explanation =
        format!("The later session makes it{}; before it was{}.", probe.current, probe.stale.first()?);
    let pair = Pair {
        id: row.id.clone(),
        is_upstream: pair.is_implied,
        old: format!("{}.", pair.old),
        new: format!("{}.", pair.new),
        explanation,
        sessions: sessions.collect::<Option<_>>()?,
        places: pair.places,
        questions: [pair.yesno, pair.premise, pair.question],
        query_time: time(&row.query_time)?,
    };
    Some(pair.case())
}
