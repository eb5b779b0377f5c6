//! What all requests share: the model, its thread, the places in the queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::embedder::ServedEmbedder;
use super::error::ApiError;
use super::guard::Guard;
use super::metrics::Metrics;
use super::model::ServedModel;
use crate::engine::Engine;
use crate::engine::thread::EngineThread;

/// A server's state.
#[derive(Debug)]
pub struct App {
    /// What is served.
    pub model: ServedModel,
    /// The embedder beside it.
    pub embedder: ServedEmbedder,
    /// The weights of what is served, for vectors: answers are the thread's.
    pub weights: Engine,
    /// Who computes.
    pub engine: EngineThread,
    /// What was served.
    pub metrics: Metrics,
    /// Who may ask.
    pub guard: Guard,
    places: Arc<Semaphore>,
    most: usize,
    closing: AtomicBool,
    cancelled: Arc<AtomicBool>,
}

impl App {
    /// With room for `most` completions, served or waiting.
    pub fn new(
        model: ServedModel,
        embedder: ServedEmbedder,
        weights: Engine,
        engine: EngineThread,
        guard: Guard,
        most: usize,
    ) -> Self {
        let most = most.clamp(1, Semaphore::MAX_PERMITS);
        App {
            model,
            embedder,
            weights,
            engine,
            guard,
            metrics: Metrics::default(),
            places: Arc::new(Semaphore::new(most)),
            most,
            closing: AtomicBool::new(false),
            cancelled: Arc::new(AtomicBool::new(false)),
        }
    }

    /// A place in the queue, until it is dropped.
    ///
    /// # Errors
    /// 429 where there is none, 503 where the server is about to end.
    pub fn admit(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        if self.closing.load(Ordering::Relaxed) {
            return Err(ApiError::closing());
        }
        Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            let most = self.most;
            let message =
                format!("{most} requests are being served or wait, which is all that fit; try again later");
            // About when a place will be free.
            let seconds = self.metrics.mean_seconds().ceil().clamp(1.0, 60.0) as u64;
            let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, Some("queue_full"), message);
            ApiError { retry_after: Some(seconds), ..error }
        })
    }

    /// Completions that are being served or wait.
    pub fn under_way(&self) -> usize {
        self.most - self.places.available_permits().min(self.most)
    }

    /// Admits nobody any more.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    /// Ends what is under way.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether what is under way is to end.
    pub fn cancelled(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancelled)
    }

    /// Refuses another model than this one.
    ///
    /// # Errors
    /// 404.
    pub fn check_model(&self, name: &str) -> Result<(), ApiError> {
        if name == self.model.name() {
            return Ok(());
        }
        let (shown, own) = (name.chars().take(80).collect::<String>(), self.model.name());
        let message = match name == self.embedder.name() {
            true => format!(
                "the model {shown:?} embeds texts (/v1/embeddings) and does nothing else; ask for {own:?}"
            ),
            false => format!("the model {shown:?} is not served here; ask for {own:?}"),
        };
        let error = ApiError::new(StatusCode::NOT_FOUND, Some("model_not_found"), message);
        Err(ApiError { param: Some("model".to_owned()), ..error })
    }
}
