//! `palimpsest memory check`: protocol conformance of a memory system.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use serde_json::{Map, Value};

use super::{say, wrong};
use crate::chat::endpoint::KeyArgs;
use crate::ground::table::wrapped;
use crate::ground::text_file;
use crate::memory::system::check::{Models, Outcome, Report, check};
use crate::memory::system::environment::{Environment, Variable};
use crate::memory::system::open;
use crate::memory::system::protocol::{HelloRequest, ModelAddress, PROTOCOL};
use crate::memory::system::proxy::{self, Decoding, Proxy, Upstream};
use crate::memory::system::scripted_model::ScriptedModel;
use crate::memory::system::wire::Patience;

const EXAMPLES: &str = "\
Examples:
  palimpsest memory check 'python3 adapters/plain.py'
  palimpsest memory check 'python3 adapters/mem0_v1.py' --memory-model http://127.0.0.1:8000/v1#qwen3-8b
  palimpsest memory check http://127.0.0.1:9000/memory --format json

Exit codes: 0 keeps the protocol, 1 does not. docs/memory.md has the protocol.";

/// Check that a memory system keeps the protocol.
///
/// Plants sentences in short histories and checks: do they come back as text, with their session, in their scope; does the search return at
/// most k; does a long session lose anything; does searching change the store; is a model's invalid JSON reported; is the store the same
/// after a kill? Without --memory-model the system gets a scripted language model and embedder that repeat their input: that checks the
/// protocol, not the quality of memories.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A command that speaks the protocol on stdin and stdout, or an http:// address that does
    command: String,
    /// The system's language model: an endpoint as http://host[:port]/v1#model, or a local model's name or folder [default: a script]
    #[arg(long, value_name = "MODEL")]
    memory_model: Option<String>,
    /// The system's embedder, named as in --memory-model [default: none with --memory-model, else a script]
    #[arg(long, value_name = "URL#MODEL")]
    memory_embedder: Option<String>,
    /// A JSON file of settings, passed on unchanged
    #[arg(long, value_name = "FILE")]
    memory_config: Option<PathBuf>,
    /// Seconds to wait for a reply, as in `run`: a number, or start=N,session=N,search=N [default: start=120,session=600,search=60]
    #[arg(long, value_name = "SECONDS", value_parser = Patience::parse)]
    memory_timeout: Option<Patience>,
    #[command(flatten)]
    keys: KeyArgs,
    /// An environment variable for the system, as in `run` (repeatable)
    #[arg(long, value_name = "NAME[=VALUE]")]
    memory_env: Vec<Variable>,
    /// A table, or JSON
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: Format,
}

#[derive(Debug, Clone, Copy, Default, clap::ValueEnum)]
enum Format {
    /// A table, with remedies
    #[default]
    Text,
    /// JSON
    Json,
}

const WIDTH: usize = 100;

pub fn run(args: &Args) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("no temporary folder for the system's files")?;
    let environment =
        Environment::with(&args.memory_env).or_else(|why| wrong(format!("--memory-env: {why}")))?;
    let config = args.memory_config.as_deref().map(config).transpose()?.unwrap_or_default();
    let scripted = ScriptedModel::start(false).context("the scripted model cannot listen")?;
    let broken = ScriptedModel::start(true).context("the scripted model cannot listen")?;
    let proxy = args.memory_model.as_deref().map(|model| proxy(model, args, folder.path())).transpose()?;
    let models = |models: Models| -> (ModelAddress, Option<ModelAddress>) {
        match (models, &proxy) {
            (Models::Broken, _) => (broken.llm(), Some(broken.embedder())),
            (Models::Usual, Some(proxy)) => (proxy.llm(), proxy.embedder()),
            (Models::Usual, None) => (scripted.llm(), Some(scripted.embedder())),
        }
    };
    let log = folder.path().join("stderr.log");
    let make = |wanted: Models, own: &Path| {
        let (llm, embedder) = models(wanted);
        let hello = HelloRequest {
            protocol: PROTOCOL,
            llm: Some(llm),
            embedder,
            folder: own.display().to_string(),
            seed: 0,
            config: config.clone(),
        };
        let patience = args.memory_timeout.unwrap_or_default();
        open("check", &args.command, hello, (&log, &environment), patience)
    };
    let report = check(&make, folder.path(), &|| broken.chats()).map_err(|why| anyhow!(why))?;
    match args.format {
        Format::Json => {
            let mut shown = serde_json::to_value(&report)?;
            shown["passes"] = report.passes().into();
            say(serde_json::to_string_pretty(&shown)?)?;
        }
        Format::Text => say(text(&report, args.memory_model.is_none()).trim_end())?,
    }
    if report.passes() {
        return Ok(());
    }
    let kept = folder.keep();
    Err(anyhow!(
        "it does not keep the protocol; its log and files are kept in {}; fix the faults in the table, then check again",
        kept.display()
    ))
}

fn config(path: &Path) -> anyhow::Result<Map<String, Value>> {
    let text = text_file::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no JSON object of settings", path.display()))
}

fn proxy(model: &str, args: &Args, folder: &Path) -> anyhow::Result<Proxy> {
    let keys = args.keys.of([model].into_iter().chain(args.memory_embedder.as_deref()))?;
    let upstream =
        |named: &str, log: &str| Upstream::parse(named, &folder.join(log), &keys).map_err(|why| anyhow!(why));
    let embedder =
        args.memory_embedder.as_deref().map(|named| upstream(named, "embedder.log")).transpose()?;
    let models = proxy::Models { llm: upstream(model, "model.log")?, embedder, decoding: Decoding::AsAsked };
    Proxy::start("check", models, folder).context("the proxy before the model cannot listen")
}

fn text(report: &Report, scripted: bool) -> String {
    let mut lines = Vec::new();
    for finding in &report.findings {
        let word = match (finding.outcome, finding.required) {
            (Outcome::No, false) => "no (allowed)",
            (outcome, _) => outcome.word(),
        };
        lines.push(format!("{:<12}  {}", word, finding.check));
        let detail = wrapped(&finding.detail, WIDTH);
        lines.extend(detail.lines().map(|line| format!("{:<14}{line}", "")));
    }
    let verdict = if report.passes() { "It keeps the protocol." } else { "It does not keep the protocol." };
    lines.push(String::new());
    lines.push(verdict.to_owned());
    if scripted {
        let why = "Its models were scripts, so this says nothing about its memories; --memory-model gives it a real model.";
        lines.push(why.to_owned());
    }
    lines.join("\n")
}
