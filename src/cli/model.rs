//! `palimpsest model`: list, fetch, describe, extend, plan and try models, and hold other engines' numbers against ours.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Subcommand;

use crate::estimate::{PlanArgs, plan_text};
use crate::ground::table::columns;
use crate::ground::words::counted;
use crate::models::ModelStore;
use crate::models::extend::{YarnScaling, extend};
use crate::models::info::{self, ModelInfo};
use crate::models::manifest::{DEFAULT_MODEL, Manifest, Source};
use crate::progress::grouped;
use palimpsest_core::engine::{EndToken, TextSide};
use palimpsest_core::model::arch;
use palimpsest_core::model::{ModelFiles, ModelKind};

const EXAMPLES: &str = "\
Examples:
  palimpsest model list
  palimpsest model pull smollm2-135m
  palimpsest model pull Qwen/Qwen3-8B@main
  palimpsest model info ./weights.gguf
  palimpsest model extend qwen3-8b --rope-scaling yarn:4:32768 --out ./qwen3-8b-131k
  palimpsest model plan qwen3-8b --context 131072 --card a100-80
  palimpsest model try qwen3-8b --context 32768 --device cuda:0
  palimpsest model parity ./qwen3-8b --against dumped.safetensors";

/// List, fetch, describe, extend, plan and try models, and hold other engines' numbers against ours.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The models that can be named with --model, and whether they are here.
    List,
    /// Fetch a model and verify it: a known one into the model home ($PALIMPSEST_HOME, else the user's cache folder), one of the Hugging
    /// Face hub into the hub's cache ($HF_HOME).
    Pull {
        /// A name from `palimpsest model list`, or owner/name[@revision][:file.gguf] of the hub.
        #[arg(default_value = DEFAULT_MODEL)]
        name: String,
        /// Fetch it again even if it is here.
        #[arg(long)]
        force: bool,
    },
    /// Describe a model from its headers: architecture, sizes, types, template, licence. Fetches nothing.
    Info {
        /// A model's name, owner/name of the Hugging Face hub, a .gguf file, or a folder in Hugging Face layout.
        #[arg(default_value = DEFAULT_MODEL)]
        model: String,
    },
    /// Make a model folder for longer contexts: links to the model's files, and a config.json with the scaling of rotary frequencies that
    /// its makers advise. All commands take the folder; a run's identity has its config's digest.
    Extend {
        /// A model that is here: a name, owner/name of the Hugging Face hub, or a folder in Hugging Face layout.
        model: String,
        /// yarn:FACTOR:TOKENS, with the training context in tokens: yarn:4:32768 for Qwen2.5 and Qwen3 gives 131,072.
        #[arg(long, value_name = "SCALING")]
        rope_scaling: YarnScaling,
        /// The folder to make.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    Plan(PlanArgs),
    #[command(name = "try")]
    Trial(super::trial::Args),
    Parity(super::model_parity::Args),
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let store = ModelStore::open()?;
    let text = match args.command {
        Command::List => list(&store)?,
        Command::Pull { name, force } => {
            let known = store.manifest_of(&name)?.map(|manifest| arch::check_known(&manifest.architecture));
            if let Some(Err(unknown)) = known {
                crate::progress::note(format_args!("note: {name} can be fetched but not run: {unknown}"));
            }
            let files = store.pull(&name, force)?;
            format!("{name} is here and verified: {}\n", files.path().display())
        }
        Command::Info { model } => {
            let files = here(&store, &model)?;
            let described = info::describe(&files)?;
            info_text(&files, store.manifest_of(&model)?.as_ref(), &described)
        }
        Command::Extend { model, rope_scaling, out } => {
            let files = here(&store, &model)?;
            let ModelKind::Folder(folder) = &files.kind else {
                bail!(
                    "{model} is a GGUF file, which states its scaling itself; convert the folder that `palimpsest model extend` makes, or \
                     use that folder"
                );
            };
            extend(folder, &out, rope_scaling)?;
            let (_, extended, _) =
                crate::models::description(out.to_str().context("the folder's name is no text")?)?;
            format!(
                "{} takes {} tokens; give it as --model to run, trace and serve\n",
                out.display(),
                grouped(extended.spec.max_positions as u64)
            )
        }
        Command::Plan(args) => plan_text(&args)?,
        Command::Trial(args) => super::trial::text(&args)?,
        Command::Parity(args) => return super::model_parity::run(&args),
    };
    super::write_out(text.as_bytes())
}

fn here(store: &ModelStore, model: &str) -> anyhow::Result<ModelFiles> {
    store
        .locate(model)?
        .with_context(|| format!("{model} is not here yet; fetch it with `palimpsest model pull {model}`"))
}

fn list(store: &ModelStore) -> anyhow::Result<String> {
    let manifests = store.manifests()?;
    let header =
        ["NAME", "HERE", "RUNS", "ARCHITECTURE", "CONTEXT", "LICENCE", "FROM", "TITLE"].map(str::to_string);
    let mut rows = vec![header];
    for manifest in &manifests {
        // A changed file must not hide the other models.
        let here = match store.cached(manifest) {
            Ok(Some(_)) => "yes",
            Ok(None) => "no",
            Err(error) => {
                crate::progress::note(format_args!("warning: {error}"));
                "CHANGED"
            }
        };
        let runs = if arch::check_known(&manifest.architecture).is_ok() { "yes" } else { "no" };
        let context = grouped(manifest.context_length as u64);
        let Manifest { name, architecture, licence, title, .. } = manifest;
        rows.push(
            [name, here, runs, architecture, &context, licence, &kinds(manifest), title].map(str::to_owned),
        );
    }
    Ok(format!(
        "{}\nRUNS: whether this version runs the architecture. {DEFAULT_MODEL} is the default. Model home: {}\n",
        columns(&rows),
        store.home().display()
    ))
}

fn kinds(manifest: &Manifest) -> String {
    let kind = |source: &Source| match source {
        Source::Hub(_) if manifest.gated => "hub (needs HF_TOKEN)",
        Source::Hub(_) => "hub",
        Source::Pip(_) => "pip",
        Source::Path(_) => "path",
    };
    let mut kinds: Vec<&str> = manifest.sources.iter().map(kind).collect();
    kinds.dedup();
    kinds.join(", ")
}

fn info_text(files: &ModelFiles, manifest: Option<&Manifest>, info: &ModelInfo) -> String {
    let stated = |value: Option<String>| value.unwrap_or_else(|| "not stated".to_string());
    let number = |value: Option<u64>| stated(value.map(grouped));
    let mut rows: Vec<[String; 2]> = Vec::new();
    let mut row = |name: &str, value: String| rows.push([name.to_string(), value]);
    row("name", files.name.clone());
    if let Some(manifest) = manifest {
        row("title", manifest.title.clone());
    }
    row("path", files.path().display().to_string());
    row("architecture", stated(info.architecture.clone()));
    row("parameters", parameters(info.parameters));
    row("layers", number(info.layers));
    row("hidden size", number(info.hidden));
    let [heads, kv_heads, head_dim] = [info.heads, info.kv_heads, info.head_dim].map(number);
    row("heads", format!("{heads} query, {kv_heads} key/value, of {head_dim}"));
    row("vocabulary", number(info.vocab));
    row("context", format!("{} tokens", number(info.context)));
    if let Some(window) = info.window {
        row("sliding window", format!("{} tokens", grouped(window)));
    }
    let theta = info.rope_theta.map_or("base not stated".to_string(), |theta| format!("base {theta}"));
    row("rope", info.rope_scaling.as_ref().map_or(theta.clone(), |scaling| format!("{theta}; {scaling}")));
    for (place, (dtype, tensors, elements)) in info.dtypes.iter().enumerate() {
        let share = 100.0 * *elements as f64 / info.parameters.max(1) as f64;
        let name = if place == 0 { "tensors" } else { "" };
        row(name, format!("{tensors} {dtype} ({share:.1}% of the parameters)"));
    }
    row("weights", format!("{:.1} MB in {}", info.file_bytes as f64 / 1e6, counted(info.files, "file")));
    if !info.left.is_empty() {
        row("unused files", info.left.join(", "));
    }
    row("answers end at", ends_text(files));
    row("chat template", if info.chat_template { "yes" } else { "no (a plain layout is used)" }.to_string());
    let licence = manifest.map(|manifest| manifest.licence.clone()).or_else(|| info.licence.clone());
    row("licence", stated(licence));
    columns(&rows)
}

fn ends_text(files: &ModelFiles) -> String {
    let side = match TextSide::open(files) {
        Ok(side) => side,
        Err(error) => return format!("unknown: {error}"),
    };
    let one = |EndToken { id, text, stated }: &EndToken| match stated.as_slice() {
        [] => format!("{text} ({id}, by its name)"),
        stated => format!("{text} ({id}, {})", stated.join(", ")),
    };
    match side.ends.as_slice() {
        [] => "no token; answers end at their limit or at stop strings".to_string(),
        ends => ends.iter().map(one).collect::<Vec<_>>().join("; "),
    }
}

/// `134.5M (134,515,008)`; only the number below a million.
fn parameters(number: u64) -> String {
    let exact = grouped(number);
    match number {
        0..1_000_000 => exact,
        1_000_000..1_000_000_000 => format!("{:.1}M ({exact})", number as f64 / 1e6),
        _ => format!("{:.2}B ({exact})", number as f64 / 1e9),
    }
}
