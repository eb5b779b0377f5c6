//! The embedding model beside the served one, and the threads that compute embeddings.
//!
//! Fetched and opened by the first request, on its own thread. Embeddings have their own thread pool, since the compute threads may be busy
//! with answers.

use std::sync::{Arc, Mutex, PoisonError};

use axum::http::StatusCode;
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use serde_json::{Value, json};

use super::error::ApiError;
use palimpsest_run::embedder::{EmbedError, Embedder};
use palimpsest_run::models::{EmbedderCard, ModelStore};

const STACK: usize = 8 << 20;

#[derive(Debug, thiserror::Error)]
pub enum EmbedderError {
    #[error(transparent)]
    Fetch(#[from] anyhow::Error),
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

#[derive(Debug)]
pub struct ServedEmbedder {
    card: EmbedderCard,
    opened: Mutex<Option<Arc<Embedder>>>,
    threads: ThreadPool,
    turn: Mutex<()>,
}

impl ServedEmbedder {
    pub fn new() -> Result<Self, EmbedderError> {
        let count = (rayon::current_num_threads() / 2).max(1);
        let threads = ThreadPoolBuilder::new().num_threads(count).stack_size(STACK);
        let threads = threads.thread_name(|i| format!("embed-{i}")).build()?;
        let card = EmbedderCard::built_in()?;
        Ok(ServedEmbedder { card, opened: Mutex::default(), threads, turn: Mutex::default() })
    }

    /// Runs `work` on the pool, one request at a time.
    pub fn work<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.threads.install(work)
    }

    pub fn name(&self) -> &str {
        &self.card.name
    }

    pub fn dimensions(&self) -> usize {
        self.card.dimensions
    }

    pub fn json(&self, created: i64) -> Value {
        let EmbedderCard { name, max_tokens, dimensions, .. } = &self.card;
        json!({
            "id": name, "object": "model", "created": created, "owned_by": "palimpsest",
            "palimpsest": {
                "version": env!("CARGO_PKG_VERSION"), "context": max_tokens, "dtype": "f32", "dimensions": dimensions
            }
        })
    }

    /// Fetches and opens the model on first use; concurrent callers wait. Errors are retried by the next call.
    pub fn open(&self) -> Result<Arc<Embedder>, EmbedderError> {
        // The state is valid after a panic: unopened models are not stored.
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(embedder) = &*opened {
            return Ok(Arc::clone(embedder));
        }
        Embedder::built_in()?;
        let store = ModelStore::open()?;
        let files = store.embedder()?;
        let embedder = Arc::new(Embedder::open(&files)?);
        *opened = Some(Arc::clone(&embedder));
        Ok(embedder)
    }
}
