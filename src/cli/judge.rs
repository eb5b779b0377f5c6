//! `palimpsest judge`: verdicts on the answers of a run.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;

use super::thinking::Thinking;
use crate::chat::Sampling;
use crate::chat::endpoint::{Endpoint, Patience};
use crate::engine;
use crate::engine::{ContextLength, LocalModel, LocalOptions};
use crate::judge::{Judge, run as judge_run};
use crate::prompt::ThinkingMode;
use crate::run::runner::Summary;
use crate::run::store::RunStore;

/// Context of a local judge: a case's notes, three queries and long answers fit many times over, and the cache of a model
/// made for 128K tokens need not.
const JUDGE_CONTEXT: usize = 16_384;

/// Most tokens of an endpoint's verdicts: three short reasons, with room for a model that thinks aloud.
const REPLY_TOKENS: usize = 2048;

const EXAMPLES: &str = "\
Examples:
  palimpsest judge runs/first --judge local:smollm2-135m
  palimpsest judge runs/first --judge http://127.0.0.1:8000/v1#qwen3-8b";

/// Judge the answers of a run.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The run folder.
    dir: PathBuf,
    /// `local:NAME` (a model of `palimpsest model list`, a folder or a .gguf file), or `http://host[:port]/v1#model`.
    ///
    /// A local judge is read by scoring. An endpoint is asked for JSON; its key comes from PALIMPSEST_API_KEY or
    /// OPENAI_API_KEY. Verdicts of several judges can stand in one run.
    #[arg(long)]
    judge: String,
    /// Local judge: cpu, cuda, cuda:N, metal, or several with commas (cuda:0,cuda:1) to split the layers.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Local judge: f32, bf16 or f16 [default: f32 on the CPU, bf16 elsewhere].
    #[arg(long)]
    dtype: Option<String>,
    /// Endpoint: most seconds to wait for one reply.
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    timeout: u64,
    /// Endpoint: attempts after a failed first one.
    #[arg(long, default_value_t = 5)]
    retries: usize,
    #[command(flatten)]
    thinking: Thinking,
}

/// How the judge is run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Setup {
    place: Place,
    timeout: u64,
    retries: usize,
    thinking: Thinking,
}

/// Where a local judge runs, and in what.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    device: String,
    dtype: Option<String>,
}

impl Default for Place {
    /// What an empty command line means.
    fn default() -> Self {
        Place { device: "cpu".to_owned(), dtype: None }
    }
}

impl Default for Setup {
    /// What an empty command line means.
    fn default() -> Self {
        Setup { place: Place::default(), timeout: 600, retries: 5, thinking: Thinking::default() }
    }
}

/// Who is meant by `--judge`.
enum Named<'a> {
    Local(&'a str),
    Endpoint(&'a str),
}

impl<'a> Named<'a> {
    fn parse(text: &'a str) -> anyhow::Result<Self> {
        match text.strip_prefix("local:") {
            Some("") => anyhow::bail!(
                "judge `local:` names no model; give local:NAME, for example local:smollm2-135m"
            ),
            Some(name) => Ok(Named::Local(name)),
            None if text.starts_with("http://") || text.starts_with("https://") => Ok(Named::Endpoint(text)),
            None => anyhow::bail!("judge `{text}` is neither local:NAME nor http://host[:port]/v1#model"),
        }
    }
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let Args { dir, judge, device, dtype, timeout, retries, thinking } = args;
    let setup = Setup { place: Place { device, dtype }, timeout, retries, thinking };
    let summary = judge_folder(&dir, &judge, &setup)?;
    super::conclude(&dir, "verdicts", "verdicts.jsonl", &summary)?;
    if summary.errors == 0 {
        super::say(format_args!("next: palimpsest report {}", dir.display()))?;
    }
    Ok(())
}

/// Judges what is not judged yet.
pub(super) fn judge_folder(dir: &Path, judge: &str, setup: &Setup) -> anyhow::Result<Summary> {
    let Setup { place, timeout, retries, thinking } = setup;
    let wrong = |why: String| super::WrongUsage(why);
    let named = Named::parse(judge).map_err(|e| wrong(e.to_string()))?;
    let is_endpoint = matches!(named, Named::Endpoint(_));
    thinking.check(is_endpoint).map_err(|e| wrong(e.to_string()))?;
    if is_endpoint && *place != Place::default() {
        let why = format!("--device and --dtype are for local judges, and {judge} is an endpoint; drop them");
        return Err(wrong(why).into());
    }
    if !is_endpoint && thinking.thinking == ThinkingMode::On {
        let why =
            format!("{judge} is read by scoring, which leaves no place for a thought; drop --thinking on");
        return Err(wrong(why).into());
    }
    // The folder first: a wrong one should not cost the loading of a model.
    let mut store = RunStore::open(dir)?;
    let rubric = super::benchmark_of(dir, store.header())?.rubric();
    let stop = super::interrupt::flag("call")?;
    Ok(match named {
        Named::Local(name) => {
            let options = LocalOptions {
                devices: engine::parse_devices(&place.device)?,
                dtype: place.dtype.as_deref().map(engine::parse_dtype).transpose()?,
                context: ContextLength::AtMost(JUDGE_CONTEXT),
                thinking: thinking.local(),
                ..LocalOptions::default()
            };
            let mut model = LocalModel::open(name, &options).with_context(|| format!("judge `{judge}`"))?;
            judge_run(&mut store, &mut Judge::Scoring(&mut model), &rubric, &stop, true)?
        }
        Named::Endpoint(address) => {
            let patience = Patience {
                timeout: Duration::from_secs((*timeout).max(1)),
                retries: *retries,
                ..Patience::default()
            };
            let mut model = Endpoint::from_address(address, patience)?.thinking(thinking.endpoint());
            model.check_reachable()?;
            let sampling = Sampling { temperature: 0.0, top_p: 1.0, seed: 0, max_new_tokens: REPLY_TOKENS };
            judge_run(&mut store, &mut Judge::Reply { model: &mut model, sampling }, &rubric, &stop, true)?
        }
    })
}
