//! CUPMem as an implementation of the memory-system protocol, opened from a command line: `cupmem`, or `cupmem:paper,no-links`.
//!
//! CUPMem is built in but reaches its models by address, like every system. Similarity uses the given embedder; the built-in
//! all-MiniLM-L6-v2 with `"embedder": "built-in"` in its configuration; otherwise BM25. The system's identity says which.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use palimpsest_core::digest::sha256;
use serde_json::{Value, json};

use super::asking::{Asker, Complete, Stop};
use super::prompts;
use super::reading::{self, Query, Readout};
use super::settings::{Settings, Switch};
use super::store::Store;
use super::writing;
use crate::chat::ChatModel;
use crate::chat::endpoint::{Endpoint, Key, Patience};
use crate::memory::similar::{ByEmbedding, ByWords, Similarity};
use crate::memory::system::protocol::{
    Capability, FailureKind, Found, Hello, HelloRequest, Memory, MemorySystem, ModelAddress, ProvenanceClaim,
    SessionInput, SystemAnswer, SystemError, SystemResult, Unit, WriteEvent,
};

pub const NAME: &str = "cupmem";
/// Raise when behaviour changes outside settings and prompts. 2: the code's variant follows the order and rules of the public code.
fn version(settings: &Settings) -> u32 {
    if settings.is_code() { 2 } else { 1 }
}

/// The settings part of a CUPMem command line; `None` for another system.
pub fn words(command: &str) -> Option<&str> {
    let words = command.trim().strip_prefix(NAME)?;
    if words.is_empty() { Some(words) } else { words.strip_prefix(':') }
}

/// `call` limits each call to a model.
pub fn open(name: &str, words: &str, request: &HelloRequest, call: Duration) -> Result<CupMem, String> {
    let mut settings = Settings::parse(words)?;
    settings.seed = request.seed;
    let mut built_in = false;
    for (key, value) in &request.config {
        let most = value.as_u64().and_then(|most| usize::try_from(most).ok()).filter(|most| *most > 0);
        match (key.as_str(), most, value) {
            ("max_new_tokens", Some(most), _) => settings.max_new_tokens = most,
            ("embedder", _, Value::String(which)) if which == "built-in" => built_in = true,
            _ => {
                return Err(format!(
                    "cupmem has no setting \"{key}\": {value}; there is \"max_new_tokens\", a number, and \"embedder\": \
                     \"built-in\""
                ));
            }
        }
    }
    let model = request.llm.as_ref().ok_or("cupmem needs a language model; give --memory-model")?;
    let similarity: Option<Box<dyn Similarity>> = match &request.embedder {
        Some(address) => {
            let endpoint = endpoint(address, call)?;
            let embed = move |texts: &[&str]| endpoint.embeddings(texts).map_err(|error| error.to_string());
            Some(Box::new(ByEmbedding::new(&address.model, Box::new(embed))))
        }
        None if built_in => Some(Box::new(ByEmbedding::built_in(false).map_err(|error| error.to_string())?)),
        None => None,
    };
    let mut endpoint = endpoint(model, call)?;
    let complete: Complete = Box::new(move |step, messages, schema, sampling| {
        let step = step.to_string();
        // The schema is named after the step.
        endpoint.hold_to(schema.map(|schema| (step.as_str(), schema)));
        endpoint.reply(messages, sampling).map(|reply| reply.text)
    });
    // The model's address may change between runs.
    Ok(CupMem::new(settings, &model.model, complete, similarity).called(name))
}

fn endpoint(
    ModelAddress { base_url, key, model, .. }: &ModelAddress,
    timeout: Duration,
) -> Result<Endpoint, String> {
    // The history driver retries transient errors.
    let patience = Patience { timeout, retries: 0, ..Patience::default() };
    let key = Key::new("the key of the memory system", key).map_err(|error| error.to_string())?;
    let endpoint = Endpoint::new(&format!("{base_url}#{model}"), Some(key), patience);
    endpoint.map_err(|error| error.to_string())
}

pub struct CupMem {
    name: String,
    settings: Settings,
    model: String,
    complete: Complete,
    similarity: Box<dyn Similarity>,
    scopes: BTreeMap<String, Scope>,
}

/// A store and its readouts; search and answer of one probe share a readout.
#[derive(Default)]
struct Scope {
    store: Store,
    readouts: BTreeMap<(String, Option<String>), Readout>,
}

impl CupMem {
    /// Without an embedder, similarity is BM25.
    pub fn new(
        settings: Settings,
        model: &str,
        complete: Complete,
        similarity: Option<Box<dyn Similarity>>,
    ) -> Self {
        let similarity = similarity.unwrap_or_else(|| Box::<ByWords>::default());
        let (name, model) = (NAME.to_owned(), model.to_owned());
        CupMem { name, settings, model, complete, similarity, scopes: BTreeMap::new() }
    }

    #[must_use]
    pub fn called(self, name: &str) -> Self {
        CupMem { name: name.to_owned(), ..self }
    }

    pub fn store(&self, scope: &str) -> Option<&Store> {
        self.scopes.get(scope).map(|scope| &scope.store)
    }

    /// Covers settings, wording and similarity.
    fn digest(&self) -> String {
        let parts = json!({
            "version": version(&self.settings),
            "settings": self.settings,
            "prompts": prompts::digest(),
            "similarity": self.similarity.name(),
            "model": self.model,
        });
        sha256(parts.to_string())
    }

    fn error(&self, op: &'static str, kind: FailureKind, message: String) -> SystemError {
        SystemError { system: self.name.clone(), op, kind, message }
    }

    fn known(&self, scope: &str, op: &'static str) -> SystemResult<&Scope> {
        self.scopes.get(scope).ok_or_else(|| {
            let why = format!("there is no scope `{scope}`; write its history first");
            self.error(op, FailureKind::Input, why)
        })
    }

    fn asking<T>(
        &mut self,
        scope: &str,
        op: &'static str,
        ask: impl FnOnce(&mut Asker<'_>, &mut Scope) -> Result<T, Stop>,
    ) -> SystemResult<T> {
        let scope = self.scopes.entry(scope.to_owned()).or_default();
        let (settings, complete, similarity) = (&self.settings, &mut self.complete, &mut *self.similarity);
        ask(&mut Asker { settings, complete, similarity }, scope).map_err(|stop| match stop {
            Stop::Unreachable(why) => self.error(op, FailureKind::Transient, why),
            fault @ Stop::Fault { .. } => {
                let message = format!("{fault}; give a model that follows JSON schemas");
                self.error(op, FailureKind::Nonsense, message)
            }
        })
    }

    fn read(&mut self, scope: &str, op: &'static str, query: Query<'_>) -> SystemResult<Readout> {
        let key = (query.text.to_owned(), query.as_of.map(str::to_owned));
        if let Some(readout) = self.known(scope, op)?.readouts.get(&key) {
            return Ok(readout.clone());
        }
        self.asking(scope, op, |asker, scope| {
            let readout = reading::read(asker, &scope.store, query)?;
            scope.readouts.insert(key, readout.clone());
            Ok(readout)
        })
    }
}

impl MemorySystem for CupMem {
    fn hello(&mut self) -> SystemResult<Hello> {
        let mut can = vec![
            Capability::Dump,
            Capability::Readback,
            Capability::Fingerprint,
            Capability::Save,
            Capability::LookedAt,
        ];
        can.extend((!self.settings.lacks(Switch::StoreOnly)).then_some(Capability::Answer));
        Ok(Hello {
            name: NAME.to_owned(),
            version: format!("{} {} by {}", version(&self.settings), self.settings, self.similarity.name()),
            digest: Some(self.digest()),
            packages: BTreeMap::new(),
            unit: Unit::Session,
            provenance: ProvenanceClaim::Exact,
            can,
            scopes: usize::MAX,
        })
    }

    fn reset(&mut self, scope: &str) -> SystemResult<()> {
        self.scopes.insert(scope.to_owned(), Scope::default());
        Ok(())
    }

    fn ingest(&mut self, scope: &str, session: &SessionInput) -> SystemResult<Option<Vec<WriteEvent>>> {
        const OP: &str = "ingest";
        let written = |scope: &Scope| scope.store.sessions.iter().any(|r| r.at.session == session.id);
        if self.scopes.get(scope).is_some_and(written) {
            let why = format!("{} is written already; reset the scope to write it again", session.id);
            return Err(self.error(OP, FailureKind::Input, why));
        }
        self.asking(scope, OP, |asker, scope| {
            let (store, events) = writing::write(asker, &scope.store, session)?;
            scope.store = store;
            scope.readouts.clear();
            Ok(Some(events))
        })
    }

    fn finish(&mut self, _: &str) -> SystemResult<Option<Vec<WriteEvent>>> {
        Ok(Some(Vec::new()))
    }

    fn search(&mut self, scope: &str, query: &str, k: usize, as_of: Option<&str>) -> SystemResult<Found> {
        const OP: &str = "search";
        let query = Query { text: query, as_of };
        if self.settings.lacks(Switch::StoreOnly) {
            self.known(scope, OP)?;
            let found = self.asking(scope, OP, |asker, scope| reading::plain(asker, &scope.store, query, k));
            return Ok(Found { memories: found?, parts: None });
        }
        let Readout { mut memories, pieces, .. } = self.read(scope, OP, query)?;
        memories.truncate(k);
        Ok(Found { memories, parts: Some(pieces) })
    }

    fn readback(&mut self, scope: &str, sessions: &[String]) -> SystemResult<Vec<Memory>> {
        let mut memories = self.dump(scope)?;
        memories.retain(|memory| {
            memory.sources.iter().flatten().any(|source| sessions.contains(&source.session))
        });
        Ok(memories)
    }

    fn dump(&mut self, scope: &str) -> SystemResult<Vec<Memory>> {
        Ok(self.known(scope, "dump")?.store.items.iter().map(reading::memory).collect())
    }

    fn fingerprint(&mut self, scope: &str) -> SystemResult<String> {
        Ok(self.known(scope, "fingerprint")?.store.fingerprint())
    }

    fn answer(&mut self, scope: &str, query: &str, as_of: Option<&str>) -> SystemResult<SystemAnswer> {
        const OP: &str = "answer";
        if self.settings.lacks(Switch::StoreOnly) {
            let why = "cupmem store-only gives its store as plain context and answers nothing itself";
            return Err(self.error(OP, FailureKind::Unsupported, why.to_owned()));
        }
        let query = Query { text: query, as_of };
        let readout = self.read(scope, OP, query)?;
        let text = self.asking(scope, OP, |asker, _| reading::answer(asker, query, &readout))?;
        Ok(SystemAnswer { text, memories: readout.memories })
    }

    fn save(&mut self, scope: &str, folder: &Path) -> SystemResult<()> {
        const OP: &str = "save";
        let saved = self.known(scope, OP)?.store.save(folder);
        saved.map_err(|why| self.error(OP, FailureKind::Fatal, why))
    }

    fn load(&mut self, scope: &str, folder: &Path) -> SystemResult<()> {
        let store = Store::load(folder).map_err(|why| self.error("load", FailureKind::Fatal, why))?;
        self.scopes.insert(scope.to_owned(), Scope { store, readouts: BTreeMap::new() });
        Ok(())
    }

    fn close(&mut self) {
        self.scopes.clear();
    }
}
