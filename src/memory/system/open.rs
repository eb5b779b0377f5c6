//! A command line becomes a memory system: CUPMem, a child process, or an address.

use std::path::Path;

use serde_json::Value;

use super::child::ChildProcess;
use super::http::Address;
use super::protocol::{HelloRequest, MemorySystem, ModelAddress};
use super::wire::{self, WireSystem};
use crate::chat::endpoint::{Endpoint, Patience};
use crate::chat::{ChatError, Message, Sampling};
use crate::memory::cupmem::model::{Step, StepModel};
use crate::memory::cupmem::similar::{ByEmbedding, Embeds, Similarity};
use crate::memory::cupmem::system::NAME;
use crate::memory::cupmem::{CupMem, Settings};

/// The system that `command` names, called `name`: `cupmem` or `cupmem:SETTINGS`, `http://...`, or a command line. Nothing is started yet. A
/// process writes to `log`.
///
/// # Errors
/// Why the command line names none.
pub fn open(
    name: &str,
    command: &str,
    hello: HelloRequest,
    log: &Path,
    patience: wire::Patience,
) -> Result<Box<dyn MemorySystem>, String> {
    if let Some(words) = cupmem_settings(command) {
        return Ok(Box::new(cupmem(words, &hello)?));
    }
    if Address::is_one(command) {
        return Ok(Box::new(WireSystem::new(name, Address::new(command), hello, patience)));
    }
    let process = ChildProcess::new(command, log)?;
    Ok(Box::new(WireSystem::new(name, process, hello, patience)))
}

/// The settings behind `cupmem` or `cupmem:SETTINGS`, where that is the command.
fn cupmem_settings(command: &str) -> Option<&str> {
    match command.split_once(':') {
        Some((NAME, words)) => Some(words),
        _ => (command == NAME).then_some(""),
    }
}

/// CUPMem with the models that `hello` names.
fn cupmem(words: &str, hello: &HelloRequest) -> Result<CupMem, String> {
    let settings = Settings { seed: hello.seed, ..Settings::parse(words)? };
    let Some(llm) = &hello.llm else {
        return Err("CUPMem needs a language model; give one with --memory-model".to_owned());
    };
    let similarity = match &hello.embedder {
        Some(embedder) => Some(Box::new(ByEmbedding::new(Addressed::new(embedder)?)) as Box<dyn Similarity>),
        None => None,
    };
    Ok(CupMem::new(settings, Box::new(Addressed::new(llm)?), similarity))
}

/// A model by its name in requests: its address, a proxy's, is another in every process, and no part of the system's identity.
struct Addressed {
    endpoint: Endpoint,
    name: String,
}

impl Addressed {
    fn new(ModelAddress { base_url, key, model, .. }: &ModelAddress) -> Result<Self, String> {
        // A step asks again by itself.
        let patience = Patience { retries: 0, ..Patience::default() };
        let endpoint = Endpoint::with_given_key(&format!("{base_url}#{model}"), key, patience);
        Ok(Addressed { endpoint: endpoint.map_err(|error| error.to_string())?, name: model.clone() })
    }
}

impl StepModel for Addressed {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn complete(
        &mut self,
        step: Step,
        messages: &[Message],
        schema: Option<&Value>,
        sampling: &Sampling,
    ) -> Result<String, ChatError> {
        self.endpoint.complete(step, messages, schema, sampling)
    }
}

impl Embeds for Addressed {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn embed(&mut self, texts: &[&str]) -> Result<Vec<Vec<f32>>, String> {
        Embeds::embed(&mut self.endpoint, texts)
    }
}
