//! `palimpsest build stale` and its like: the stages of a spec.

use std::path::{Path, PathBuf};

use palimpsest_core::digest::sha256;
use serde_json::{Map, Value};

use super::preset;
use crate::build::pool::Pool;
use crate::build::{BuildError, Spec};
use crate::builds::engine::{self, Ended, Options};
use crate::builds::estimate::{Estimate, estimate};
use crate::builds::folder::{BuildFolder, HEADER, Identity, YIELD, position};
use crate::builds::models::{LazyTokens, Models, TOKENIZER};
use crate::builds::rows::{self, Part};
use crate::builds::yields::Yield;
use crate::cli::interrupt::{end_resumable, flag};
use crate::cli::{WrongUsage, positive, say, wrong};
use crate::ground::{folder, text_file};
use crate::progress::grouped;
use crate::runs::plan::Shard;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The folder gets build.json, stages/ (every attempt at every row), yield.csv, costs.jsonl, data/ in the benchmark's format and
provenance.jsonl. The same command resumes. `palimpsest build init` writes specs; docs/build.md has their fields.

Examples:
  palimpsest build stale mine.toml --out built --model local:qwen3-8b --checker http://127.0.0.1:8000/v1#judge
  palimpsest build stale mine.toml --out try --limit 3 --model qwen3-8b --one-model
  palimpsest build stale mine.toml --out built --estimate
  palimpsest build stale haystack --out far --distractors chats.jsonl --distance 40 --tail 5
  palimpsest build stale mine.toml --out built --from probes --model qwen3-8b --one-model")]
pub(super) struct Pipeline {
    /// A preset, or a spec's file.
    #[arg(value_name = "PRESET|SPEC.toml")]
    spec: String,
    /// The folder of the build: a new one, or one to resume.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    #[command(flatten)]
    models: Models,
    /// Files of filler sessions, one JSON object per line: {"id", "licence", "topic", "turns": [{"role", "content"}]}, or files of
    /// benchmarks. May be repeated.
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    distractors: Vec<PathBuf>,
    /// Places of facts in the history, from 0, its beginning, to 1, its end: old=.1,new=.5.
    #[arg(long, value_name = "FACT=PLACE,...", value_parser = places, conflicts_with_all = ["distance", "tail"], help_heading = "Data")]
    positions: Option<Map<String, Value>>,
    /// Sessions between the old and the new fact.
    #[arg(long, value_name = "N", help_heading = "Data")]
    distance: Option<usize>,
    /// Sessions after the new fact.
    #[arg(long, value_name = "N", help_heading = "Data")]
    tail: Option<usize>,
    /// Sessions of a history.
    #[arg(long, value_name = "N", value_parser = positive, conflicts_with = "tokens", help_heading = "Data")]
    sessions: Option<usize>,
    /// Tokens of a history, by --tokenizer.
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Data")]
    tokens: Option<usize>,
    /// Tokenizer that lengths are counted with, opened if they are: a model's name, owner/name of the Hugging Face hub, a folder, a .gguf
    /// file, a tokenizer.json, or an encoding (o200k_base).
    #[arg(long, value_name = "MODEL", default_value = "smollm2-135m", help_heading = "Data")]
    tokenizer: String,
    /// Seed of all draws [default: the spec's].
    #[arg(long, help_heading = "Data")]
    seed: Option<u64>,
    /// Build of the first N rows of the first stage's tables only.
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Data")]
    limit: Option<usize>,
    /// Part i of n of the first stage's rows, for several machines: row p is built where p mod n = i.
    #[arg(long, value_name = "I/N", help_heading = "Data")]
    shard: Option<Shard>,
    /// Discard this stage's rows and all later ones, and build them again.
    #[arg(long, value_name = "STAGE", help_heading = "Stages")]
    from: Option<String>,
    /// Stop after this stage.
    #[arg(long, value_name = "STAGE", help_heading = "Stages")]
    until: Option<String>,
    /// Print how much each stage will ask, and build nothing.
    #[arg(long, help_heading = "Stages")]
    estimate: bool,
}

fn places(text: &str) -> Result<Map<String, Value>, String> {
    let place = |part: &str| {
        let (name, place) = part.split_once('=')?;
        let place: f64 = place.trim().parse().ok()?;
        (0.0..=1.0).contains(&place).then(|| (name.trim().to_owned(), place.into()))
    };
    text.split(',')
        .map(place)
        .collect::<Option<_>>()
        .ok_or_else(|| format!("{text:?}: give a place from 0 to 1 for each fact, for example old=.1,new=.5"))
}

impl Pipeline {
    /// The spec with the flags that change it, and the folder that its paths are relative to.
    fn spec(&self, kind: &str) -> anyhow::Result<(Spec, &Path)> {
        let path = Path::new(&self.spec);
        let text = match path.is_file() {
            true => text_file::read(path).map_err(BuildError::io("read", path))?,
            false => preset::text(kind, Some(&self.spec))?.to_owned(),
        };
        let mut spec = Spec::parse(&self.spec, &text)?;
        if spec.kind != kind {
            let (name, of) = (&self.spec, &spec.kind);
            return wrong(format!("{name} is a spec of {of}; give it to `palimpsest build {of}`"));
        }
        spec.seed = self.seed.unwrap_or(spec.seed);
        let set = [
            ("positions", self.positions.clone().map(Value::Object)),
            ("distance", self.distance.map(Value::from)),
            ("tail", self.tail.map(Value::from)),
            ("sessions", self.sessions.map(Value::from)),
            ("tokens", self.tokens.map(Value::from)),
        ];
        for (name, value) in set {
            spec.settings.extend(value.map(|value| (name.to_owned(), value)));
        }
        spec.check(&self.spec)?;
        for stage in self.from.iter().chain(&self.until) {
            position(&spec, stage).map_err(|error| WrongUsage(error.to_string()))?;
        }
        Ok((spec, path.parent().unwrap_or(Path::new(""))))
    }
}

pub(super) fn run(kind: &str, args: &Pipeline) -> anyhow::Result<()> {
    let (spec, base) = args.spec(kind)?;
    args.models.check()?;
    let shard = args.shard.map(|shard| (shard.index, shard.count));
    if shard.is_some_and(|(_, count)| count > 1) {
        rows::check_shard(&spec, args.until.as_deref())?;
    }
    let (known, sources) = rows::read(&spec, base)?;
    if args.estimate {
        return tell_estimate(&estimate(&spec, &known, Part { limit: args.limit, shard }, &seen(&args.out)?));
    }
    let pool = Pool::read(&args.distractors)?;
    let digest = |path: &PathBuf| Ok(sha256(std::fs::read(path).map_err(BuildError::io("read", path))?));
    let pools = args.distractors.iter().map(digest).collect::<anyhow::Result<_>>()?;
    let identity = Identity { sources, pools, limit: args.limit, shard, ..Identity::new(spec) };
    let mut folder = BuildFolder::open_or_create(&args.out, identity)?;
    let stop = flag("stopping after the rows under way")?;
    let tokens = LazyTokens::new(&args.tokenizer).as_in(&args.out, folder.header.models.get(TOKENIZER));
    let (from, until) = (args.from.as_deref(), args.until.as_deref());
    let options = Options { from, until, pool: &pool, tokens: &tokens, models: &args.models, stop: &stop };
    let (ended, yields) = engine::run(&mut folder, known, &options)?;
    tell(&args.out, ended, &yields)
}

/// Counts of the folder's stages, if there is a build.
fn seen(dir: &Path) -> anyhow::Result<Vec<Yield>> {
    if !folder::is_file(dir, HEADER) {
        return Ok(Vec::new());
    }
    let folder = BuildFolder::read(dir)?;
    let stages = folder.spec().stages.iter().enumerate();
    stages.map(|(nth, stage)| Ok(Yield::of(&stage.name, &folder.lines(nth)?))).collect()
}

fn tell_estimate(all: &[Estimate]) -> anyhow::Result<()> {
    let number = |number: f64| grouped(number.round() as u64);
    for Estimate { stage, rows, is_counted, unknown, most_asks, most_tokens, asks } in all {
        let about = if *is_counted { "" } else { "about " };
        let seen = asks.map(|asks| format!(", {} as in the folder", number(asks))).unwrap_or_default();
        let [rows, asks, tokens] = [rows, most_asks, most_tokens].map(|most| number(*most));
        let least = |list| format!("; a lower bound: `{list}` has an unknown length and counts as one");
        let least = unknown.as_ref().map(least).unwrap_or_default();
        say(format_args!(
            "{stage}: {about}{rows} rows, {asks} asks at most{seen}, {tokens} tokens at most{least}"
        ))?;
    }
    let sum = |of: fn(&Estimate) -> f64| number(all.iter().map(of).sum());
    say(format_args!("in all: {} asks, {} tokens at most", sum(|of| of.most_asks), sum(|of| of.most_tokens)))
}

fn tell(dir: &Path, ended: Ended, yields: &[Yield]) -> anyhow::Result<()> {
    for counts in yields {
        let Yield { stage, rows, attempts, made, .. } = counts;
        let reasons = counts.reasons();
        let rejected = if reasons.is_empty() { String::new() } else { format!("; rejected: {reasons}") };
        say(format_args!("{stage}: {rows} rows, {attempts} attempts, {made} made{rejected}"))?;
    }
    match ended {
        Ended::Stopped => end_resumable(),
        Ended::AtStage => say("the same command without --until goes on"),
        Ended::Published(0) => {
            anyhow::bail!("no row was accepted; {} counts the reasons", dir.join(YIELD).display())
        }
        Ended::Published(rows) => say(format_args!("wrote {}: {rows} rows", dir.join("data").display())),
    }
}
