//! The flags of memory systems, and the conditions that they come to.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::{Map, Value};

use super::{RunSpec, WrongUsage, WrongValue, positive};
use crate::benchmarks::Benchmark;
use crate::ground::text_file;
use crate::memory::system::history::Progress;
use crate::memory::system::proxy::Decoding;
use crate::memory::system::wire::Patience;
use crate::memory::system::{MemoryContext, Show};
use crate::progress::note;
use crate::run::condition::Condition;
use crate::run::memory_systems::{Given, MemorySystems, SystemSpec};
use crate::run::store::RunStore;

/// Between two lines on how far a history is.
const QUIET: Duration = Duration::from_secs(15);

/// Memories that a search is for, unless told otherwise: what most of the papers' systems were asked for.
const DEFAULT_K: usize = 20;

/// Memory systems and how their memories are shown.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
#[command(next_help_heading = "Memory systems")]
pub struct MemoryArgs {
    /// Answer from the memories of a system, as a condition memory-NAME (repeatable): a command that speaks the protocol of docs/memory.md
    /// on stdin and stdout, an http:// address that does, or cupmem, with options as in cupmem:code,no-links
    #[arg(long = "memory", value_name = "NAME=COMMAND")]
    pub memory: Vec<NamedSystem>,
    /// The language model that memory systems are given: an endpoint as `http://host[:port]/v1#model`, or a local model's name or folder.
    /// Leave it out for systems that need none
    #[arg(long, value_name = "MODEL", requires = "memory")]
    pub memory_model: Option<String>,
    /// The embedder that memory systems are given, as --memory-model names a model
    #[arg(long, value_name = "URL#MODEL", requires = "memory")]
    pub memory_embedder: Option<String>,
    /// Most memories shown; further numbers, with commas, are conditions of their own (memory-NAME-k5) cut from the same search [default: 20]
    #[arg(long, value_name = "K,...", value_delimiter = ',', value_parser = positive, requires = "memory")]
    pub memory_k: Vec<usize>,
    /// What is shown, with commas: ranked memories in the run's wording, perfect retrieval (memory-NAME-perfect), the system's native wording
    /// (-native), or the system's own answer (-answer) [default: ranked]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum, requires = "memory")]
    pub memory_show: Vec<Show>,
    /// Settings of a system, which it gets as they are: a JSON file (repeatable)
    #[arg(long, value_name = "NAME=FILE", requires = "memory")]
    pub memory_config: Vec<NamedSystem>,
    /// The sampling of memory systems' calls
    #[arg(long, value_enum, default_value_t, requires = "memory")]
    pub memory_decoding: Decoding,
    /// Seconds to wait for a memory system: a number, of searches (and where it is more than theirs of starts and sessions, too), or each
    /// by name [default: start=120,session=600,search=60]
    #[arg(long, value_name = "SECONDS", value_parser = Patience::parse, requires = "memory")]
    pub memory_timeout: Option<Patience>,
}

/// A system's name and its command, or its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedSystem {
    pub name: String,
    pub value: String,
}

impl std::str::FromStr for NamedSystem {
    type Err = WrongValue;

    fn from_str(text: &str) -> Result<Self, WrongValue> {
        let (name, value) = text.split_once('=').unwrap_or_default();
        let word = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric());
        if !name.split('-').all(word) || value.trim().is_empty() {
            return Err(WrongValue(format!(
                "`{text}` is not NAME=VALUE with a name of letters, digits and single hyphens; for example plain='python3 adapters/plain.py'"
            )));
        }
        Ok(NamedSystem { name: name.to_owned(), value: value.trim().to_owned() })
    }
}

impl MemoryArgs {
    /// The conditions of these systems, in the order of the command line.
    pub(super) fn conditions(&self, benchmark: &Benchmark) -> anyhow::Result<Vec<Condition>> {
        let names: Vec<&str> = self.memory.iter().map(|system| system.name.as_str()).collect();
        let twice = |at: usize| names.get(..at).is_some_and(|before| before.contains(&names[at]));
        if let Some(at) = (0..names.len()).find(|&at| twice(at)) {
            return Err(WrongUsage(format!(
                "--memory names `{}` twice; give each a name of its own",
                names[at]
            ))
            .into());
        }
        if let Some(other) = self.memory_config.iter().find(|config| !names.contains(&&*config.name)) {
            let why = format!(
                "--memory-config is of `{}`, which no --memory names; there is {}",
                other.name,
                names.join(", ")
            );
            return Err(WrongUsage(why).into());
        }
        let ks = if self.memory_k.is_empty() { vec![DEFAULT_K] } else { self.memory_k.clone() };
        let shows = if self.memory_show.is_empty() { vec![Show::Ranked] } else { self.memory_show.clone() };
        // The questions of a benchmark that reads answers by their setting stand in its usual order.
        let setting = benchmark.default_settings.first().filter(|_| !benchmark.readings.is_empty());
        let of = |system: &str, show: Show, (nth, &k): (usize, &usize)| Condition {
            name: match nth {
                0 => format!("memory-{system}{}", show.suffix()),
                _ => format!("memory-{system}{}-k{k}", show.suffix()),
            },
            setting: setting.map(|setting| (*setting).to_owned()),
            memory: Some(MemoryContext { system: system.to_owned(), k, show }),
            ..Condition::PLAIN
        };
        let mut all = Vec::new();
        for system in names {
            for &show in &shows {
                // Perfect retrieval and a system's own answer know no k.
                let count = if matches!(show, Show::Ranked | Show::Native) { ks.len() } else { 1 };
                all.extend(ks.iter().enumerate().take(count).map(|k| of(system, show, k)));
            }
        }
        Ok(all)
    }
}

impl RunSpec {
    /// Starts the memory systems of the command line.
    pub(super) fn start_systems(
        &self,
        folder: &Path,
        conditions: &[Condition],
        stop: &Arc<AtomicBool>,
    ) -> anyhow::Result<MemorySystems> {
        let MemoryArgs { memory, memory_model, memory_embedder, memory_config, memory_decoding, .. } =
            &self.memory;
        if memory.is_empty() {
            return Ok(MemorySystems::default());
        }
        RunStore::check_folder(folder)?;
        let mut specs = Vec::new();
        for NamedSystem { name, value } in memory {
            let mut config = Map::new();
            for NamedSystem { value: file, .. } in memory_config.iter().filter(|config| config.name == *name)
            {
                let read = || -> anyhow::Result<Map<String, Value>> {
                    Ok(serde_json::from_str(&text_file::read(file.as_ref())?)?)
                };
                let read = read().with_context(|| {
                    format!("--memory-config {name}={file} is no file with a JSON object")
                })?;
                config.extend(read);
            }
            specs.push(SystemSpec { name: name.clone(), command: value.clone(), config });
        }
        let given = Given {
            model: memory_model.clone(),
            embedder: memory_embedder.clone(),
            decoding: *memory_decoding,
            patience: self.memory.memory_timeout.unwrap_or_default(),
            seed: self.seed,
        };
        Ok(MemorySystems::start(&specs, &given, (folder, conditions), stop, telling())?)
    }
}

/// A line now and then while a history is written, which takes minutes with a model.
fn telling() -> impl Fn(&str, Progress<'_>) + Clone + Send + 'static {
    let told = Arc::new(Mutex::new(Instant::now()));
    move |system, Progress { case, done, sessions }| {
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.elapsed() >= QUIET {
            *told = Instant::now();
            note(format_args!("{system} {case}: {done} of {sessions} sessions written"));
        }
    }
}
