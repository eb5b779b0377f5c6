//! CUPMem behind the protocol of memory systems.

use std::collections::BTreeMap;
use std::path::Path;

use palimpsest_core::digest::sha256;
use serde_json::json;

use super::asking::{Asker, Fault, Unreachable};
use super::model::StepModel;
use super::prompts;
use super::reading::parse::Query;
use super::reading::{self, Readout, answer};
use super::settings::{Settings, Switch};
use super::similar::{ByWords, Similarity};
use super::store::Store;
use super::writing;
use crate::memory::system::protocol::{
    Capability, FailureKind, Found, Hello, Memory, MemorySystem, ProvenanceClaim, SessionInput, SystemAnswer,
    SystemError, Unit, WriteEvent,
};

/// The system's name.
pub const NAME: &str = "cupmem";
/// Raised when decisions change that neither settings nor wording say.
const VERSION: u32 = 1;

/// CUPMem, with a store a scope.
pub struct CupMem {
    settings: Settings,
    model: Box<dyn StepModel>,
    similarity: Box<dyn Similarity>,
    scopes: BTreeMap<String, Scope>,
}

/// A history's store, and the readouts of the probes put to it: a search and an answer of one probe share theirs.
#[derive(Default)]
struct Scope {
    store: Store,
    readouts: BTreeMap<(String, Option<String>), Readout>,
}

impl CupMem {
    /// With a model. Without an embedder entries are compared by words.
    pub fn new(
        settings: Settings,
        model: Box<dyn StepModel>,
        similarity: Option<Box<dyn Similarity>>,
    ) -> Self {
        let similarity = similarity.unwrap_or_else(|| Box::<ByWords>::default());
        CupMem { settings, model, similarity, scopes: BTreeMap::new() }
    }

    /// A scope's store.
    pub fn store(&self, scope: &str) -> Option<&Store> {
        self.scopes.get(scope).map(|scope| &scope.store)
    }

    /// Everything that its behaviour depends on, in words: settings, wording, similarity.
    fn digest(&self) -> String {
        let parts = json!({
            "version": VERSION,
            "settings": self.settings,
            "prompts": prompts::digest(),
            "similarity": self.similarity.name(),
            "model": self.model.name(),
        });
        sha256(parts.to_string())
    }

    fn known(&self, scope: &str, op: &'static str) -> Result<&Scope, SystemError> {
        self.scopes.get(scope).ok_or_else(|| {
            error(op, FailureKind::Input, format!("there is no scope `{scope}`; write its history first"))
        })
    }

    /// The readout of a probe.
    fn read(&mut self, scope: &str, op: &'static str, query: Query<'_>) -> Result<Readout, SystemError> {
        let key = (query.text.to_owned(), query.as_of.map(str::to_owned));
        if let Some(readout) = self.known(scope, op)?.readouts.get(&key) {
            return Ok(readout.clone());
        }
        let CupMem { settings, model, similarity, scopes } = self;
        let scope = scopes.entry(scope.to_owned()).or_default();
        let mut asker = Asker::new(settings, &mut **model, &mut **similarity);
        let readout = or_error(op, reading::read(&mut asker, &scope.store, query))?;
        scope.readouts.insert(key, readout.clone());
        Ok(readout)
    }
}

fn error(op: &'static str, kind: FailureKind, message: String) -> SystemError {
    SystemError { system: NAME.to_owned(), op, kind, message }
}

fn unreachable(op: &'static str, Unreachable(message): Unreachable) -> SystemError {
    error(op, FailureKind::Transient, message)
}

fn or_error<T>(op: &'static str, read: Result<Result<T, Fault>, Unreachable>) -> Result<T, SystemError> {
    let read = read.map_err(|why| unreachable(op, why))?;
    read.map_err(|fault| {
        let remedy = "give a model that follows JSON schemas";
        error(op, FailureKind::Nonsense, format!("{fault}; {remedy}"))
    })
}

impl MemorySystem for CupMem {
    fn hello(&mut self) -> Result<Hello, SystemError> {
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
            version: format!("{VERSION} {} by {}", self.settings, self.similarity.name()),
            digest: Some(self.digest()),
            packages: BTreeMap::new(),
            unit: Unit::Session,
            provenance: ProvenanceClaim::Exact,
            can,
            scopes: usize::MAX,
        })
    }

    fn reset(&mut self, scope: &str) -> Result<(), SystemError> {
        self.scopes.insert(scope.to_owned(), Scope::default());
        Ok(())
    }

    fn ingest(
        &mut self,
        scope: &str,
        session: &SessionInput,
    ) -> Result<Option<Vec<WriteEvent>>, SystemError> {
        const OP: &str = "ingest";
        let CupMem { settings, model, similarity, scopes } = self;
        let scope = scopes.entry(scope.to_owned()).or_default();
        if scope.store.sessions.iter().any(|record| record.at.session == session.id) {
            let why = format!("{} is written already; reset the scope to write it again", session.id);
            return Err(error(OP, FailureKind::Input, why));
        }
        let mut asker = Asker::new(settings, &mut **model, &mut **similarity);
        let written =
            writing::write(&mut asker, &scope.store, session).map_err(|why| unreachable(OP, why))?;
        scope.store = written.store;
        scope.readouts.clear();
        Ok(Some(written.events))
    }

    fn finish(&mut self, _: &str) -> Result<Option<Vec<WriteEvent>>, SystemError> {
        Ok(Some(Vec::new()))
    }

    fn search(
        &mut self,
        scope: &str,
        query: &str,
        k: usize,
        as_of: Option<&str>,
    ) -> Result<Found, SystemError> {
        const OP: &str = "search";
        let query = Query { text: query, as_of };
        if self.settings.lacks(Switch::StoreOnly) {
            self.known(scope, OP)?;
            let CupMem { settings, model, similarity, scopes } = self;
            let store = &scopes.entry(scope.to_owned()).or_default().store;
            let mut asker = Asker::new(settings, &mut **model, &mut **similarity);
            let memories = reading::plain(&mut asker, store, query, k).map_err(|why| unreachable(OP, why))?;
            return Ok(Found { memories, parts: None });
        }
        let Readout { mut memories, pieces, .. } = self.read(scope, OP, query)?;
        memories.truncate(k);
        Ok(Found { memories, parts: Some(pieces) })
    }

    fn readback(&mut self, scope: &str, sessions: &[String]) -> Result<Vec<Memory>, SystemError> {
        let of = |memory: &Memory| {
            let sources = memory.sources.iter().flatten();
            sources.into_iter().any(|source| sessions.contains(&source.session))
        };
        Ok(self.dump(scope)?.into_iter().filter(of).collect())
    }

    fn dump(&mut self, scope: &str) -> Result<Vec<Memory>, SystemError> {
        Ok(self.known(scope, "dump")?.store.items.iter().map(reading::memory).collect())
    }

    fn fingerprint(&mut self, scope: &str) -> Result<String, SystemError> {
        const OP: &str = "fingerprint";
        let digest = self.known(scope, OP)?.store.fingerprint();
        digest.map_err(|why| error(OP, FailureKind::Fatal, why))
    }

    fn answer(&mut self, scope: &str, query: &str, as_of: Option<&str>) -> Result<SystemAnswer, SystemError> {
        const OP: &str = "answer";
        if self.settings.lacks(Switch::StoreOnly) {
            let why = "cupmem store-only gives its store as plain context and answers nothing itself";
            return Err(error(OP, FailureKind::Unsupported, why.to_owned()));
        }
        let query = Query { text: query, as_of };
        let Readout { memories, pieces, premise_safe } = self.read(scope, OP, query)?;
        let CupMem { settings, model, similarity, .. } = self;
        let mut asker = Asker::new(settings, &mut **model, &mut **similarity);
        let text = or_error(OP, answer::answer(&mut asker, query, &pieces, premise_safe))?;
        Ok(SystemAnswer { text, memories })
    }

    fn save(&mut self, scope: &str, folder: &Path) -> Result<(), SystemError> {
        const OP: &str = "save";
        let saved = self.known(scope, OP)?.store.save(folder);
        saved.map_err(|why| error(OP, FailureKind::Fatal, why))
    }

    fn load(&mut self, scope: &str, folder: &Path) -> Result<(), SystemError> {
        let store = Store::load(folder).map_err(|why| error("load", FailureKind::Fatal, why))?;
        self.scopes.insert(scope.to_owned(), Scope { store, readouts: BTreeMap::new() });
        Ok(())
    }

    fn close(&mut self) {
        self.scopes.clear();
    }
}
