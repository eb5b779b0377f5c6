//! Flags of memory systems, their conditions, and starting the systems.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::{Map, Value};

use super::usage::{WrongValue, positive, wrong};
use crate::chat::endpoint::{self, Endpoint, Keys};
use crate::memory::system::environment::{Environment, Variable};
use crate::memory::system::history::{Progress, SystemRun, Wanted};
use crate::memory::system::protocol::{Capability, HelloRequest, PROTOCOL};
use crate::memory::system::proxy::{Decoding, Models, Proxy, Upstream};
use crate::memory::system::record::system_folder;
use crate::memory::system::wire::Patience;
use crate::memory::system::{MemoryContext, Show, open};
use crate::progress::note;
use crate::runs::condition::Condition;
use crate::runs::error::RunError;
use crate::runs::header::{MemoryIdentity, NameAndDigest};
use crate::runs::store::{OWN_FOLDER, RunStore};
use palimpsest_core::digest::sha256;
use palimpsest_data::benchmarks::Benchmark;
use palimpsest_data::ground::folder;
use palimpsest_data::ground::text_file;

const QUIET: Duration = Duration::from_secs(15);

/// Default number of retrieved memories, as in most papers.
const DEFAULT_K: usize = 20;

/// Memory systems and how their memories are shown.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
#[command(next_help_heading = "Memory systems")]
pub struct MemoryArgs {
    /// Answer from the memories of a system, as a condition memory-NAME (repeatable): a command that speaks the protocol of docs/memory.md
    /// on stdin and stdout, an http:// address that does, or cupmem, with options as in cupmem:code,no-links
    #[arg(long = "memory", value_name = "NAME=COMMAND")]
    pub memory: Vec<NamedSystem>,
    /// The memory systems' language model: an endpoint as `http://host[:port]/v1#model`, or a local model's name or folder. Leave it out for
    /// systems that need none
    #[arg(long, value_name = "MODEL", requires = "memory")]
    pub memory_model: Option<String>,
    /// The memory systems' embedder, named as in --memory-model
    #[arg(long, value_name = "URL#MODEL", requires = "memory")]
    pub memory_embedder: Option<String>,
    /// Most memories shown; further numbers, with commas, are conditions of their own (memory-NAME-k5), cut from the same search [default: 20]
    #[arg(long, value_name = "K,...", value_delimiter = ',', value_parser = positive, requires = "memory")]
    pub memory_k: Vec<usize>,
    /// Form of the memories, with commas: ranked in the run's wording, perfect retrieval (memory-NAME-perfect), the system's native wording
    /// (-native), or the system's own answer (-answer) [default: ranked]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum, requires = "memory")]
    pub memory_show: Vec<Show>,
    /// A JSON file of a system's settings, passed on unchanged (repeatable)
    #[arg(long, value_name = "NAME=FILE", requires = "memory")]
    pub memory_config: Vec<NamedSystem>,
    /// The sampling of memory systems' calls
    #[arg(long, value_enum, default_value_t, requires = "memory")]
    pub memory_decoding: Decoding,
    /// Seconds to wait for a memory system: a number for searches (and for starts and sessions, if it is more than theirs), or each by name
    /// [default: start=120,session=600,search=60]
    #[arg(long, value_name = "SECONDS", value_parser = Patience::parse, requires = "memory")]
    pub memory_timeout: Option<Patience>,
    /// An environment variable for the memory systems (repeatable): NAME with the value it has here, or NAME=VALUE. Keys, tokens and most
    /// others are not passed otherwise (docs/memory.md)
    #[arg(long, value_name = "NAME[=VALUE]", requires = "memory")]
    pub memory_env: Vec<Variable>,
}

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
    pub(super) fn conditions(&self, benchmark: &Benchmark) -> anyhow::Result<Vec<Condition>> {
        let names: Vec<&str> = self.memory.iter().map(|system| system.name.as_str()).collect();
        let twice = |at: usize| names.get(..at).is_some_and(|before| before.contains(&names[at]));
        if let Some(at) = (0..names.len()).find(|&at| twice(at)) {
            return wrong(format!("--memory names `{}` twice; give each a name of its own", names[at]));
        }
        if let Some(other) = self.memory_config.iter().find(|config| !names.contains(&&*config.name)) {
            return wrong(format!(
                "--memory-config is of `{}`, which no --memory names; there is {}",
                other.name,
                names.join(", ")
            ));
        }
        let ks = if self.memory_k.is_empty() { vec![DEFAULT_K] } else { self.memory_k.clone() };
        let shows = if self.memory_show.is_empty() { vec![Show::Ranked] } else { self.memory_show.clone() };
        // A benchmark whose reading depends on the setting uses its default one.
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
                // Perfect retrieval and native answers have no k.
                let count = if matches!(show, Show::Ranked | Show::Native) { ks.len() } else { 1 };
                all.extend(ks.iter().enumerate().take(count).map(|k| of(system, show, k)));
            }
        }
        Ok(all)
    }

    fn config(&self, system: &str) -> anyhow::Result<Map<String, Value>> {
        let mut config = Map::new();
        for NamedSystem { name, value: file } in self.memory_config.iter().filter(|file| file.name == system)
        {
            let read = || -> anyhow::Result<Map<String, Value>> {
                Ok(serde_json::from_str(&text_file::read(file.as_ref())?)?)
            };
            config.extend(
                read().with_context(|| {
                    format!("--memory-config {name}={file} is no file with a JSON object")
                })?,
            );
        }
        Ok(config)
    }

    /// Models of all systems, if any. A local server starts on the first call and is shared.
    fn models(&self, out: &Path, keys: &Keys) -> Result<Option<Models>, String> {
        let log = out.join("memory").join("models.txt");
        let upstream = |model: &String| Upstream::parse(model, &log, keys);
        let embedder = self.memory_embedder.as_ref().map(upstream).transpose()?;
        let llm = match (&self.memory_model, &embedder) {
            (Some(model), Some(embedder)) if self.memory_embedder.as_ref() == Some(model) => embedder.clone(),
            (Some(model), _) => upstream(model)?,
            // With an embedder alone, there is no language model address.
            (None, Some(embedder)) => embedder.clone(),
            (None, None) => return Ok(None),
        };
        Ok(Some(Models { llm, embedder, decoding: self.memory_decoding }))
    }
}

/// Started memory systems. They start before the run's identity is known, which includes their self-description.
#[derive(Default)]
pub struct MemorySystems {
    pub identities: Vec<MemoryIdentity>,
    pub searches: Vec<(SystemRun, Wanted)>,
    /// Names of the variables that the systems got.
    pub environment: Vec<String>,
}

impl MemoryArgs {
    /// `stop` ends ingestion after the current session.
    pub(super) fn start_systems(
        &self,
        (seed, keys): (u64, &Keys),
        folder: &Path,
        conditions: &[Condition],
        stop: &Arc<AtomicBool>,
    ) -> anyhow::Result<MemorySystems> {
        let mut started = MemorySystems::default();
        if self.memory.is_empty() {
            return Ok(started);
        }
        RunStore::check_folder(folder)?;
        let environment =
            Environment::with(&self.memory_env).or_else(|why| wrong(format!("--memory-env: {why}")))?;
        started.environment = environment.names().map(str::to_owned).collect();
        let configs = self.memory.iter().map(|system| self.config(&system.name));
        let configs = configs.collect::<anyhow::Result<Vec<_>>>()?;
        let given = [&self.memory_model, &self.memory_embedder];
        given.into_iter().flatten().for_each(|model| tell_unreachable(model, keys));
        let models = self.models(folder, keys).map_err(|error| gave_up("--memory-model", error))?;
        let told = telling();
        for (system, config) in self.memory.iter().zip(configs) {
            let (identity, run, wanted) =
                self.start_system(seed, system, config, models.clone(), (folder, conditions, &environment))?;
            let (name, told) = (identity.name.clone(), told.clone());
            let run = run.stopped_by(Arc::clone(stop)).told(move |progress| told(&name, progress));
            started.identities.push(identity);
            started.searches.push((run, wanted));
        }
        Ok(started)
    }

    fn start_system(
        &self,
        seed: u64,
        NamedSystem { name, value: command }: &NamedSystem,
        config: Map<String, Value>,
        models: Option<Models>,
        (out, conditions, environment): (&Path, &[Condition], &Environment),
    ) -> Result<(MemoryIdentity, SystemRun, Wanted), RunError> {
        let MemoryArgs { memory_model, memory_embedder, memory_decoding, memory_timeout, .. } = self;
        let failed = |error: String| gave_up(&format!("--memory {name}"), error);
        let folder = system_folder(name);
        let own = format!("{folder}/{OWN_FOLDER}");
        let own = folder::make(out, &own).map_err(RunError::io("create", &out.join(&own)))?;
        // An adapter may change its working directory.
        let own = std::path::absolute(&own).map_err(RunError::io("find", &own))?;
        let proxy = models.map(|models| Proxy::start(name, models, out)).transpose();
        let proxy =
            proxy.map_err(|error| failed(format!("no address for its calls to the model: {error}")))?;
        let hello = HelloRequest {
            protocol: PROTOCOL,
            llm: proxy.as_ref().filter(|_| memory_model.is_some()).map(Proxy::llm),
            embedder: proxy.as_ref().and_then(Proxy::embedder),
            folder: own.display().to_string(),
            seed,
            config: config.clone(),
        };
        let patience = memory_timeout.unwrap_or_default();
        let log = out.join(folder).join("log.txt");
        let system = open(name, command, hello, (&log, environment), patience).map_err(failed)?;
        let run = SystemRun::start(name, system, out).map_err(|error| failed(error.to_string()))?;
        let run = run.watched(proxy);
        let wanted = wanted(name, conditions);
        if wanted.answer && !run.identity().can(Capability::Answer) {
            return Err(failed(
                "it gives no answers of its own; leave answer out of --memory-show".to_owned(),
            ));
        }
        let named = |model: &String| NameAndDigest { digest: sha256(model), name: model.clone() };
        let identity = MemoryIdentity {
            name: name.to_owned(),
            system: run.identity().clone(),
            config,
            model: memory_model.as_ref().map(named),
            embedder: memory_embedder.as_ref().map(named),
            decoding: *memory_decoding,
        };
        Ok((identity, run, wanted))
    }
}

fn gave_up(flag: &str, error: String) -> RunError {
    RunError::GaveUp(format!("{flag}: {error}"))
}

/// Notes an unreachable model address. No error: cached calls still work.
fn tell_unreachable(model: &str, keys: &Keys) {
    // Invalid addresses fail at first use.
    let patience = endpoint::Patience { retries: 0, ..endpoint::Patience::default() };
    let endpoint = endpoint::is_address(model).then(|| Endpoint::from_address(model, keys, patience));
    let Some(Ok(endpoint)) = endpoint else { return };
    if let Err(error) = endpoint.check_reachable() {
        note(format_args!(
            "note: {error}; memory systems get the calls that the run keeps, and sessions that need others end as errors"
        ));
    }
}

/// Union of what the conditions need from a system.
fn wanted(name: &str, conditions: &[Condition]) -> Wanted {
    let mut wanted = Wanted::default();
    let shown = conditions.iter().filter_map(|one| one.memory.as_ref());
    for shown in shown.filter(|shown| shown.system == name) {
        wanted.k = wanted.k.max(shown.k);
        wanted.readback |= shown.show == Show::Perfect;
        wanted.answer |= shown.show == Show::Answer;
    }
    wanted
}

/// Progress lines during ingestion, which takes minutes with a model. One that was begun is ended, since the end of a history may take longest.
fn telling() -> impl Fn(&str, Progress<'_>) + Clone + Send + 'static {
    let told = Arc::new(Mutex::new((Instant::now(), false)));
    move |system, Progress { case, done, sessions }| {
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.0.elapsed() >= QUIET || told.1 && done == sessions {
            *told = (Instant::now(), done < sessions);
            note(format_args!("{system} {case}: {done} of {sessions} sessions sent"));
        }
    }
}
