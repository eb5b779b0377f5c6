//! The model that embeds texts, beside the one that answers, and the threads that make vectors of either.
//!
//! It is fetched and opened by the first request for it, on the thread of that request; others go on meanwhile. Vectors are made
//! by a few threads of their own: those that compute answers may all be held, or wait.

use std::sync::{Arc, Mutex, PoisonError};

use axum::http::StatusCode;
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use serde_json::{Value, json};

use super::error::ApiError;
use palimpsest_run::embedder::{EmbedError, Embedder};
use palimpsest_run::models::{EmbedderCard, ModelStore, ModelsError};

/// Bytes of stack of a thread that computes.
const STACK: usize = 8 << 20;

#[derive(Debug, thiserror::Error)]
pub enum EmbedderError {
    #[error(transparent)]
    Fetch(#[from] ModelsError),
    #[error(transparent)]
    Open(#[from] EmbedError),
    #[error("there are no threads for embeddings: {0}")]
    Threads(#[from] ThreadPoolBuildError),
}

impl From<EmbedderError> for ApiError {
    fn from(error: EmbedderError) -> Self {
        let message = format!("the embedder is not to be had: {error}");
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, Some("embedder_unavailable"), message)
    }
}

/// The embedder, once somebody has asked for it.
#[derive(Debug)]
pub struct ServedEmbedder {
    card: EmbedderCard,
    opened: Mutex<Option<Arc<Embedder>>>,
    threads: ThreadPool,
    /// Held while vectors are made: one request after the other.
    turn: Mutex<()>,
}

impl ServedEmbedder {
    /// Of the embedder that is built in, which is not opened yet.
    pub fn new() -> Result<Self, EmbedderError> {
        let count = (rayon::current_num_threads() / 2).max(1);
        let threads = ThreadPoolBuilder::new().num_threads(count).stack_size(STACK);
        let threads = threads.thread_name(|i| format!("embed-{i}")).build()?;
        let card = EmbedderCard::built_in()?;
        Ok(ServedEmbedder { card, opened: Mutex::default(), threads, turn: Mutex::default() })
    }

    /// Makes vectors, when it is their turn.
    pub fn work<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        // A turn that panicked left nothing behind.
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.threads.install(work)
    }

    pub fn name(&self) -> &str {
        &self.card.name
    }

    pub fn dimensions(&self) -> usize {
        self.card.dimensions
    }

    /// Its entry of `/v1/models`.
    pub fn json(&self, created: i64) -> Value {
        let EmbedderCard { name, max_tokens, dimensions, .. } = &self.card;
        json!({
            "id": name, "object": "model", "created": created, "owned_by": "palimpsest",
            "palimpsest": {
                "version": env!("CARGO_PKG_VERSION"), "context": max_tokens, "dtype": "f32", "dimensions": dimensions
            }
        })
    }

    /// The model, fetched and opened where it is not; others who ask for it wait. After an error the next one tries again.
    pub fn open(&self) -> Result<Arc<Embedder>, EmbedderError> {
        // One that was not opened is not there: what a panic leaves is sound.
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(embedder) = &*opened {
            return Ok(Arc::clone(embedder));
        }
        Embedder::built_in()?;
        let embedder = Arc::new(Embedder::open(&ModelStore::open()?.embedder()?)?);
        *opened = Some(Arc::clone(&embedder));
        Ok(embedder)
    }
}
