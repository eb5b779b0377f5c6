//! The memory systems of a run: started before its identity is known, since what they say of themselves is part of it.

use std::path::Path;

use serde_json::{Map, Value};

use super::condition::Condition;
use super::error::RunError;
use super::header::{MemoryDecoding, MemoryIdentity, Named};
use crate::data::{Case, Probe};
use crate::memory::system::child::ChildProcess;
use crate::memory::system::history::{Progress, SystemRun, Wanted};
use crate::memory::system::http::Address;
use crate::memory::system::protocol::{Capability, HelloRequest, MemorySystem, ModelAddress, PROTOCOL};
use crate::memory::system::record::system_folder;
use crate::memory::system::rows::SearchRow;
use crate::memory::system::wire::{Patience, WireSystem};
use crate::memory::system::{Searches, Show};
use palimpsest_core::digest::sha256;

/// The folder within a system's that it keeps for itself, beside those of the cases.
pub(super) const OWN_FOLDER: &str = ".system";

/// A system as it is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct SystemSpec {
    /// Its name in the run.
    pub name: String,
    /// A command line, or an address.
    pub command: String,
    /// Settings that it gets as they are.
    pub config: Map<String, Value>,
}

/// What the systems of a run are given.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Given {
    /// A language model.
    pub model: Option<ModelAddress>,
    /// An embedder.
    pub embedder: Option<ModelAddress>,
    /// The sampling of their calls.
    pub decoding: MemoryDecoding,
    /// The run's seed.
    pub seed: u64,
}

/// Started systems.
#[derive(Default)]
pub struct MemorySystems {
    /// For the run's identity.
    pub identities: Vec<MemoryIdentity>,
    /// For its conditions.
    pub searches: Vec<Box<dyn Searches>>,
}

impl MemorySystems {
    /// Starts the systems of a run in `out` under `conditions`. `told` hears how far a history is.
    ///
    /// # Errors
    /// A system that cannot be started, by its name, with the remedy.
    pub fn start(
        specs: &[SystemSpec],
        given: &Given,
        (out, conditions): (&Path, &[Condition]),
        told: impl Fn(&str, Progress<'_>) + Clone + Send + 'static,
    ) -> Result<Self, RunError> {
        let mut started = MemorySystems::default();
        for SystemSpec { name, command, config } in specs {
            let failed = |error: String| RunError::GaveUp(format!("--memory {name}: {error}"));
            let folder = system_folder(out, name);
            let own = folder.join(OWN_FOLDER);
            std::fs::create_dir_all(&own).map_err(RunError::io("create", &own))?;
            // An adapter may change its working folder.
            let own = std::path::absolute(&own).map_err(RunError::io("find", &own))?;
            let hello = HelloRequest {
                protocol: PROTOCOL,
                llm: given.model.clone(),
                embedder: given.embedder.clone(),
                folder: own.display().to_string(),
                seed: given.seed,
                config: config.clone(),
            };
            let system: Box<dyn MemorySystem> = match Address::is_one(command) {
                true => Box::new(WireSystem::new(name, Address::new(command), hello, Patience::default())),
                false => {
                    let child = ChildProcess::new(command, &folder.join("log.txt")).map_err(failed)?;
                    Box::new(WireSystem::new(name, child, hello, Patience::default()))
                }
            };
            let run = SystemRun::start(name, system, out).map_err(|error| failed(error.to_string()))?;
            let wanted = wanted(name, conditions);
            if wanted.answer && !run.identity().can(Capability::Answer) {
                return Err(failed(
                    "it gives no answers of its own; leave answer out of --memory-show".to_owned(),
                ));
            }
            let (named, told) = (name.clone(), told.clone());
            let run = run.told(move |progress| told(&named, progress));
            let named = |address: &ModelAddress| Named {
                digest: sha256(format!("{}#{}", address.base_url, address.model)),
                name: address.model.clone(),
            };
            started.identities.push(MemoryIdentity {
                name: name.clone(),
                system: run.identity().clone(),
                config: config.clone(),
                model: given.model.as_ref().map(named),
                embedder: given.embedder.as_ref().map(named),
                decoding: given.decoding,
            });
            started.searches.push(Box::new(Asked { wanted, run }));
        }
        Ok(started)
    }
}

/// The most that any condition shows of a system.
fn wanted(name: &str, conditions: &[Condition]) -> Wanted {
    let mut wanted = Wanted::default();
    for shown in conditions.iter().filter_map(|one| one.memory.as_ref()).filter(|shown| shown.system == name)
    {
        wanted.k = wanted.k.max(shown.k);
        wanted.readback |= shown.show == Show::Perfect;
        wanted.answer |= shown.show == Show::Answer;
    }
    wanted
}

/// A system, and what is wanted of it.
struct Asked {
    run: SystemRun,
    wanted: Wanted,
}

impl Searches for Asked {
    fn name(&self) -> &str {
        self.run.name()
    }

    fn searched(&mut self, case: &Case, probe: &Probe) -> Result<SearchRow, String> {
        self.run.searched(case, probe, self.wanted).map_err(|error| error.to_string())
    }
}
