//! `palimpsest memory`: commands on memory systems.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, bail};

use super::memory_check;
use crate::ground::jsonl::read_rows;
use crate::ground::table::columns;
use crate::memory::cupmem::{self, Store, system};
use crate::memory::system::record::{EVENTS, case_folder, last_save};
use crate::memory::system::rows::lives;
use crate::runs::store::RunFolder;

/// List and check memory systems, and show their memories of a history.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List the memory systems that adapters/ drives, what each needs and offers, and when and at which version it was last seen working.
    List,
    Check(memory_check::Args),
    Show(ShowArgs),
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    match &args.action {
        Action::List => list(),
        Action::Check(args) => memory_check::run(args),
        Action::Show(args) => show(args),
    }
}

/// An entry of adapters/systems.toml.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    name: String,
    adapter: String,
    version: String,
    seen: String,
    offers: String,
    needs: String,
}

fn list() -> anyhow::Result<()> {
    let all: BTreeMap<String, Vec<Listed>> = toml::from_str(include_str!("../../adapters/systems.toml"))?;
    let mut rows = vec![["NAME", "ADAPTER", "VERSION", "SEEN", "OFFERS", "NEEDS"].map(str::to_owned)];
    for Listed { name, adapter, version, seen, offers, needs } in all.into_values().flatten() {
        rows.push([name, adapter, version, seen, offers, needs]);
    }
    super::say(format_args!(
        "{}\nAdapters are files of adapters/; a docstring there says how to install the system. VERSION: at which it was driven, of a source its \
         commit. SEEN: the day of the adapter's last change.\nCUPMem is built in: --memory NAME=cupmem. docs/memory.md has what was seen.",
        columns(&rows)
    ))
}

const SHOW_EXAMPLES: &str = "\
Examples:
  palimpsest memory show runs/mem0 sample-t1-01-suitcase
  palimpsest memory show runs/two sample-t1-01-suitcase --memory cup";

/// Show the life of each memory of a case: when it was written, considered, changed and ended, by which session and why.
///
/// For CUPMem also each slot with its states and markers, and every decision with its reasons.
#[derive(Debug, clap::Args)]
#[command(after_help = SHOW_EXAMPLES)]
pub struct ShowArgs {
    /// The run folder
    run: PathBuf,
    /// The case's id
    case: String,
    /// The system, if the run has several
    #[arg(long, value_name = "NAME")]
    memory: Option<String>,
}

fn show(args: &ShowArgs) -> anyhow::Result<()> {
    let ShowArgs { run, case, memory } = args;
    let folder = RunFolder::read(run)?;
    let systems = &folder.header.identity.memory;
    let names: Vec<&str> = systems.iter().map(|system| system.name.as_str()).collect();
    let system = match (memory, systems.as_slice()) {
        (_, []) => bail!("{} has no memory systems; run with --memory", run.display()),
        (None, [only]) => only,
        (None, _) => bail!(
            "{} has several memory systems; name one with --memory: {}",
            run.display(),
            names.join(", ")
        ),
        (Some(name), all) => all.iter().find(|system| system.name == *name).with_context(|| {
            format!("{} has no memory system `{name}`; it has {}", run.display(), names.join(", "))
        })?,
    };
    if !folder.plan.iter().any(|planned| planned.case == *case) {
        let known: Vec<&str> = folder.plan.iter().take(5).map(|planned| planned.case.as_str()).collect();
        bail!("{} has no case `{case}`; its first are {}", run.display(), known.join(", "));
    }
    let folder = case_folder(&system.name, case);
    let (kept, events) = (run.join(&folder), format!("{folder}/{EVENTS}"));
    if !run.join(&events).exists() {
        bail!("{} wrote nothing of {case} yet; the run's command resumes", system.name);
    }
    if system.system.name == system::NAME
        && let Some((_, saved)) = last_save(&kept, usize::MAX)
    {
        let store = Store::load(&saved).map_err(anyhow::Error::msg)?;
        return super::say(cupmem::show(&store).trim_end());
    }
    super::say(lives(&read_rows(run, &events)?).trim_end())
}
