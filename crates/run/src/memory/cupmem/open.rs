//! Opens CUPMem from a command line: `cupmem`, or `cupmem:paper,no-links`.
//!
//! CUPMem is built in but reaches its models by address, like every system. Similarity uses the given embedder; the built-in
//! all-MiniLM-L6-v2 with `"embedder": "built-in"` in its configuration; otherwise BM25.

use serde_json::Value;

use super::settings::Settings;
use super::similar::{ByEmbedding, Similarity};
use super::system::{CupMem, NAME};
use crate::chat::endpoint::{Endpoint, Key, Patience};
use crate::embedder::Embedder;
use crate::memory::system::protocol::{HelloRequest, ModelAddress};
use crate::models::ModelStore;

/// The settings part of a CUPMem command line; `None` for another system.
pub fn words(command: &str) -> Option<&str> {
    let words = command.trim().strip_prefix(NAME)?;
    if words.is_empty() { Some(words) } else { words.strip_prefix(':') }
}

pub fn open(name: &str, words: &str, request: &HelloRequest) -> Result<CupMem, String> {
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
            let endpoint = endpoint(address)?;
            let embed = move |texts: &[&str]| endpoint.embeddings(texts).map_err(|error| error.to_string());
            Some(Box::new(ByEmbedding::new(&address.model, Box::new(embed))))
        }
        None if built_in => {
            let embedder = embedder()?;
            let embed =
                move |texts: &[&str]| embedder.embed(texts, |_| {}).map_err(|error| error.to_string());
            Some(Box::new(ByEmbedding::new("all-MiniLM-L6-v2", Box::new(embed))))
        }
        None => None,
    };
    Ok(CupMem::new(settings, Box::new(endpoint(model)?), similarity).called(name))
}

fn endpoint(ModelAddress { base_url, key, model, .. }: &ModelAddress) -> Result<Endpoint, String> {
    // The history driver retries transient errors.
    let patience = Patience { retries: 0, ..Patience::default() };
    let key = Key::new("the key of the memory system", key).map_err(|error| error.to_string())?;
    let endpoint = Endpoint::new(&format!("{base_url}#{model}"), Some(key), patience);
    endpoint.map_err(|error| error.to_string())
}

fn embedder() -> Result<Embedder, String> {
    Embedder::built_in().map_err(|error| error.to_string())?;
    let files = ModelStore::open().and_then(|store| store.embedder()).map_err(|error| error.to_string())?;
    Embedder::open(&files).map_err(|error| error.to_string())
}
