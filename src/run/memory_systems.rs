//! The memory systems of a run: started before its identity is known, since what they say of themselves is part of it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde_json::{Map, Value};

use super::condition::Condition;
use super::error::RunError;
use super::header::{MemoryIdentity, NameAndDigest};
use crate::chat::endpoint::{self, Endpoint};
use crate::data::{Case, Probe};
use crate::memory::system::history::{Progress, SystemRun, Wanted};
use crate::memory::system::open::open;
use crate::memory::system::protocol::{Capability, HelloRequest, PROTOCOL};
use crate::memory::system::proxy::{Decoding, Models, Proxy, Upstream};
use crate::memory::system::record::system_folder;
use crate::memory::system::rows::SearchRow;
use crate::memory::system::wire::Patience;
use crate::memory::system::{Searches, Show};
use crate::progress::note;
use palimpsest_core::digest::sha256;

/// The folder within a system's that it keeps for itself, beside those of the cases.
pub(super) const OWN_FOLDER: &str = ".system";

/// A system as it is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct SystemSpec {
    pub name: String,
    pub command: String,
    /// Settings that it gets as they are.
    pub config: Map<String, Value>,
}

/// Models and settings that the systems of a run are given.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Given {
    /// A language model: `http://host[:port]/v1#model`, or a model of this machine.
    pub model: Option<String>,
    pub embedder: Option<String>,
    pub decoding: Decoding,
    pub patience: Patience,
    pub seed: u64,
}

/// Started systems.
#[derive(Default)]
pub struct MemorySystems {
    pub identities: Vec<MemoryIdentity>,
    pub searches: Vec<Box<dyn Searches>>,
}

impl MemorySystems {
    /// Starts the systems of a run in `out` under `conditions`. `stop` ends the writing of a history after the session under way; `told` hears how
    /// far one is.
    pub fn start(
        specs: &[SystemSpec],
        given: &Given,
        (out, conditions): (&Path, &[Condition]),
        stop: &Arc<AtomicBool>,
        told: impl Fn(&str, Progress<'_>) + Clone + Send + 'static,
    ) -> Result<Self, RunError> {
        let mut started = MemorySystems::default();
        [&given.model, &given.embedder].into_iter().flatten().for_each(|model| tell_unreachable(model));
        let models =
            models(given, out).map_err(|error| RunError::GaveUp(format!("--memory-model: {error}")))?;
        for SystemSpec { name, command, config } in specs {
            let failed = |error: String| RunError::GaveUp(format!("--memory {name}: {error}"));
            let folder = system_folder(out, name);
            let own = folder.join(OWN_FOLDER);
            std::fs::create_dir_all(&own).map_err(RunError::io("create", &own))?;
            // An adapter may change its working folder.
            let own = std::path::absolute(&own).map_err(RunError::io("find", &own))?;
            let proxy = models.clone().map(|models| Proxy::start(name, models, out)).transpose();
            let proxy =
                proxy.map_err(|error| failed(format!("no address for its calls to the model: {error}")))?;
            let hello = HelloRequest {
                protocol: PROTOCOL,
                llm: proxy.as_ref().filter(|_| given.model.is_some()).map(Proxy::llm),
                embedder: proxy.as_ref().and_then(Proxy::embedder),
                folder: own.display().to_string(),
                seed: given.seed,
                config: config.clone(),
            };
            let system =
                open(name, command, hello, &folder.join("log.txt"), given.patience).map_err(failed)?;
            let mut run = SystemRun::start(name, system, out).map_err(|error| failed(error.to_string()))?;
            if let Some(proxy) = &proxy {
                run = run.watched(proxy.operation());
            }
            let wanted = wanted(name, conditions);
            if wanted.answer && !run.identity().can(Capability::Answer) {
                return Err(failed(
                    "it gives no answers of its own; leave answer out of --memory-show".to_owned(),
                ));
            }
            let (named, told) = (name.clone(), told.clone());
            let run = run.stopped_by(Arc::clone(stop)).told(move |progress| told(&named, progress));
            let named = |model: &String| NameAndDigest { digest: sha256(model), name: model.clone() };
            started.identities.push(MemoryIdentity {
                name: name.clone(),
                system: run.identity().clone(),
                config: config.clone(),
                model: given.model.as_ref().map(named),
                embedder: given.embedder.as_ref().map(named),
                decoding: given.decoding,
            });
            started.searches.push(Box::new(Asked { wanted, run, _proxy: proxy }));
        }
        Ok(started)
    }
}

/// Says so where nobody answers at a model's address. No error: calls that the run keeps are answered all the same.
fn tell_unreachable(model: &str) {
    let is_address = model.starts_with("http://") || model.starts_with("https://");
    // An address that does not parse is refused where it is used.
    let patience = endpoint::Patience { retries: 0, ..endpoint::Patience::default() };
    let Some(Ok(endpoint)) = is_address.then(|| Endpoint::from_address(model, patience)) else { return };
    if let Err(error) = endpoint.check_reachable() {
        note(format_args!(
            "note: {error}; memory systems get the calls that the run keeps, and sessions that need others end as errors"
        ));
    }
}

/// The models of all systems, where they are given any. The server of a local one starts with the first call and serves them all.
fn models(given: &Given, out: &Path) -> Result<Option<Models>, String> {
    let log = out.join("memory").join("models.txt");
    let upstream = |model: &String| Upstream::parse(model, &log);
    let embedder = given.embedder.as_ref().map(upstream).transpose()?;
    let llm = match (&given.model, &embedder) {
        // A model that embeds, too, is served once.
        (Some(model), Some(embedder)) if given.embedder.as_ref() == Some(model) => embedder.clone(),
        (Some(model), _) => upstream(model)?,
        // A system that is given an embedder alone is given no address of a language model either.
        (None, Some(embedder)) => embedder.clone(),
        (None, None) => return Ok(None),
    };
    Ok(Some(Models { llm, embedder: embedder.map(|embedder| (embedder, None)), decoding: given.decoding }))
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
    /// Serves the system's calls as long as it lives.
    _proxy: Option<Proxy>,
}

impl Searches for Asked {
    fn name(&self) -> &str {
        self.run.name()
    }

    fn searched(&mut self, case: &Case, probe: &Probe) -> Result<SearchRow, String> {
        self.run.searched(case, probe, self.wanted).map_err(|error| error.to_string())
    }
}
