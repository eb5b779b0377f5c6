//! `palimpsest build stale` and its like: the stages of a spec.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use palimpsest_core::digest::sha256;
use serde_json::{Map, Value};

use super::preset;
use crate::build::pool::Pool;
use crate::build::{Role, Spec};
use crate::builds::engine::{self, Ended, Options};
use crate::builds::estimate::{Estimate, estimate};
use crate::builds::folder::{BuildFolder, HEADER, Identity, position};
use crate::builds::models::{LazyTokens, ModelOptions, Models};
use crate::builds::rows::{self, Part};
use crate::builds::yields::Yield;
use crate::chat::endpoint::{KeyArgs, Patience, is_address};
use crate::cli::interrupt::{end_resumable, flag};
use crate::cli::{WrongUsage, positive, say, wrong};
use crate::ground::{folder, text_file};
use crate::models::{DeviceArgs, DtypeArgs};
use crate::progress::grouped;
use crate::runs::plan::Shard;
use crate::runs::setup::Thinking;

/// Default parallel endpoint calls, as of judging.
const JOBS: usize = 4;

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
    /// The generator, which writes: `local:NAME` or NAME (whatever --model of `run` takes), or `http://host[:port]/v1#model`.
    #[arg(long, value_name = "MODEL", help_heading = "Model")]
    model: Option<String>,
    /// The checker, which judges what the generator wrote; best of another family of models.
    #[arg(long, value_name = "MODEL", help_heading = "Model")]
    checker: Option<String>,
    /// Let one model write and check: --checker may be left out, or be the same model.
    #[arg(long, help_heading = "Model")]
    one_model: bool,
    #[command(flatten)]
    on: DeviceArgs,
    #[command(flatten)]
    in_dtype: DtypeArgs,
    /// Local models: most tokens of prompt and reply.
    #[arg(long, default_value_t = 16_384, value_name = "TOKENS", value_parser = positive, help_heading = "Model")]
    context: usize,
    #[command(flatten)]
    thinking: Thinking,
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
    /// Endpoints: rows at once [default: 4]. What is built is the same.
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Endpoint")]
    jobs: Option<usize>,
    /// Endpoint: most seconds to wait for one reply.
    #[arg(long, default_value_t = 600, value_name = "SECONDS", help_heading = "Endpoint")]
    timeout: u64,
    /// Endpoint: attempts after a failed first one.
    #[arg(long, default_value_t = 5, help_heading = "Endpoint")]
    retries: usize,
    #[command(flatten)]
    keys: KeyArgs,
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
    fn spec(&self, kind: &str) -> anyhow::Result<(Spec, PathBuf)> {
        let path = Path::new(&self.spec);
        let (text, base) = match path.is_file() {
            true => {
                let text =
                    text_file::read(path).with_context(|| format!("cannot read {}", path.display()))?;
                (text, path.parent().unwrap_or(Path::new("")).to_owned())
            }
            false => (preset::text(kind, Some(&self.spec))?.to_owned(), PathBuf::new()),
        };
        let mut spec = Spec::parse(&self.spec, &text)?;
        if spec.kind != kind {
            return wrong(format!(
                "{} is a spec of {}; give it to `palimpsest build {}`",
                self.spec, spec.kind, spec.kind
            ));
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
        for stage in self.from.iter().chain(&self.until) {
            position(&spec, stage).map_err(|error| WrongUsage(error.to_string()))?;
        }
        Ok((spec, base))
    }

    fn models(&self) -> anyhow::Result<Models> {
        let names = || self.model.iter().chain(&self.checker).map(String::as_str);
        self.thinking.check(names().any(is_address)).map_err(|error| WrongUsage(error.to_string()))?;
        let timeout = Duration::from_secs(self.timeout.max(1));
        Ok(Models {
            generator: self.model.clone(),
            checker: self.checker.clone(),
            one_model: self.one_model,
            options: ModelOptions {
                on: self.on.clone(),
                in_dtype: self.in_dtype.clone(),
                context: self.context,
                thinking: self.thinking.local(),
                endpoint_thinking: self.thinking.endpoint(),
                patience: Patience { timeout, retries: self.retries, ..Patience::default() },
                keys: self.keys.of(names())?,
                jobs: self.jobs.unwrap_or(JOBS),
            },
        })
    }

    /// Refuses what is missing before anything is begun.
    fn check_models(&self, roles: &BTreeSet<Role>) -> anyhow::Result<()> {
        if roles.contains(&Role::Generator) && self.model.is_none() {
            return wrong(
                "--model is missing: the spec's stages ask a generator; give local:NAME or http://host[:port]/v1#model",
            );
        }
        let checks = roles.contains(&Role::Checker);
        if checks && self.checker.is_none() && (!self.one_model || self.model.is_none()) {
            return wrong(
                "--checker is missing: the spec's stages ask a checker; give local:NAME or http://host[:port]/v1#model, or --model and \
                 --one-model",
            );
        }
        Ok(())
    }
}

pub(super) fn run(kind: &str, args: &Pipeline) -> anyhow::Result<()> {
    let (spec, base) = args.spec(kind)?;
    let models = args.models()?;
    let shard = args.shard.map(|shard| (shard.index, shard.count));
    let (known, sources) = rows::read(&spec, &base)?;
    if args.estimate {
        return tell_estimate(&estimate(&spec, &known, Part { limit: args.limit, shard }, &seen(&args.out)?));
    }
    let pool = Pool::read(&args.distractors)?;
    let digest = |path: &PathBuf| {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(sha256(bytes))
    };
    let pools = args.distractors.iter().map(digest).collect::<anyhow::Result<_>>()?;
    let identity = Identity { sources, pools, limit: args.limit, shard, ..Identity::new(spec) };
    let mut folder = BuildFolder::open_or_create(&args.out, identity)?;
    if let Some(stage) = &args.from {
        folder.discard_from(stage)?;
    }
    args.check_models(&folder.roles_left(args.until.as_deref())?)?;
    let stop = flag("stopping after the rows under way")?;
    let tokens = LazyTokens::new(&args.tokenizer);
    let options =
        Options { until: args.until.as_deref(), pool: &pool, tokens: &tokens, models: &models, stop: &stop };
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
    for Estimate { stage, rows, is_counted, most_asks, most_tokens, asks } in all {
        let about = if *is_counted { "" } else { "about " };
        let seen = asks.map(|asks| format!(", {} as in the folder", number(asks))).unwrap_or_default();
        say(format_args!(
            "{stage}: {about}{} rows, {} asks at most{seen}, {} tokens at most",
            number(*rows),
            number(*most_asks),
            number(*most_tokens)
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
        Ended::Published(rows) => say(format_args!("wrote {}: {rows} rows", dir.join("data").display())),
    }
}
