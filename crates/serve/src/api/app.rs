//! State shared by all requests: model, engine thread, queue.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::embedder::ServedEmbedder;
use super::engine::ServedEngine;
use super::error::ApiError;
use super::guard::Guard;
use super::keys::{self, Exceeded, Key, Keys};
use super::log::LogFormat;
use super::memory::Memory;
use super::metrics::{Metrics, Resident};
use super::model::ServedModel;
use super::score::NeutralCache;
use palimpsest_core::engine::Engine;
use palimpsest_core::engine::memory_plan::resident_bytes;
use palimpsest_core::engine::thread::Scope;

/// Default limit of running and waiting completions.
pub const DEFAULT_QUEUE: usize = 64;

/// Default token limit of answers without one: bounds endless answers to some minutes with a small model on two cores.
pub const DEFAULT_MAX_ANSWER: usize = 4096;

#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Clients need one of them, if there are any.
    pub keys: Keys,
    /// Clients with different keys reuse each other's cached prompts.
    pub share_prefixes: bool,
    pub queue: usize,
    pub max_thinking: usize,
    /// Retrieval heads as (decoder layer, head), if known.
    pub retrieval: Option<Vec<(usize, usize)>>,
    pub max_answer: usize,
    /// Default stop strings of chats; `None` for the chat template's.
    pub stops: Option<Vec<String>>,
    /// Checked by [`super::allowed_origin`] and [`super::allowed_host`].
    pub origins: Vec<String>,
    pub hosts: Vec<String>,
    pub log: LogFormat,
    /// Requests that take longer are logged as slow.
    pub slow: Duration,
    /// Interval of comments in streams.
    pub keep_alive: Duration,
}

impl Default for ServeOptions {
    fn default() -> Self {
        ServeOptions {
            keys: Keys::default(),
            share_prefixes: false,
            queue: DEFAULT_QUEUE,
            max_thinking: palimpsest_core::engine::DEFAULT_MAX_THINKING,
            retrieval: None,
            max_answer: DEFAULT_MAX_ANSWER,
            stops: None,
            origins: Vec::new(),
            hosts: Vec::new(),
            log: LogFormat::Off,
            slow: Duration::from_secs(60),
            // Proxies and clients often time out after 30 seconds.
            keep_alive: Duration::from_secs(5),
        }
    }
}

#[derive(Debug)]
pub struct App {
    pub model: ServedModel,
    pub embedder: ServedEmbedder,
    /// Model weights, for embeddings; answers use the thread.
    pub weights: Engine,
    pub engine: ServedEngine,
    pub metrics: Arc<Metrics>,
    pub neutral: NeutralCache,
    pub guard: Guard,
    pub memory: Arc<Memory>,
    pub options: ServeOptions,
    /// As many as [`ServeOptions::queue`].
    pub places: Arc<Semaphore>,
    pub closing: AtomicBool,
    /// `/openapi.json`, made when it is first asked for.
    pub description: OnceLock<Bytes>,
}

impl App {
    /// Reserves a place in the queue. 429 if full, 503 if shutting down.
    pub fn admit(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        if self.closing.load(Ordering::Relaxed) {
            return Err(ApiError::closing());
        }
        Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            let most = self.options.queue;
            let message =
                format!("{most} requests are being served or wait, which is all that fit; try again later");
            let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, Some("queue_full"), message);
            error.retry_after(self.mean_seconds())
        })
    }

    /// Counts a request of a key, and reserves its place if its places are limited. 429 beyond its limits.
    pub fn admit_key(&self, key: &Key) -> Result<Option<OwnedSemaphorePermit>, ApiError> {
        key.admit(Instant::now()).map_err(|exceeded| {
            let (code, wait, message) = match exceeded {
                Exceeded::Places { most } => {
                    let message = format!(
                        "{most} requests with this key are under way, which is all that it may have; try again when one has ended"
                    );
                    ("places_full", self.mean_seconds(), message)
                }
                Exceeded::Rate { most, wait } => {
                    let message = format!("this key may send {most} requests a minute; try again in {wait} s");
                    ("rate_limited", wait, message)
                }
            };
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, Some(code), message).retry_after(wait)
        })
    }

    /// Mean seconds of an answer, 1 to 60.
    fn mean_seconds(&self) -> u64 {
        let mean = self.metrics.with(|counts| counts.whole.mean()).unwrap_or(1.0);
        mean.ceil().clamp(1.0, 60.0) as u64
    }

    /// Scope in which a request reuses cached prompts.
    pub fn scope(&self, key: Option<&Key>, salt: Option<&str>) -> Scope {
        keys::scope(key.filter(|_| !self.options.share_prefixes), salt)
    }

    /// Running and waiting completions.
    pub fn under_way(&self) -> usize {
        self.options.queue - self.places.available_permits()
    }

    pub fn resident(&self) -> Resident {
        let plan = self.memory.plan();
        let (requests, caches) = (self.memory.used(), self.engine.thread.load().taken as u64 * plan.token);
        Resident {
            resident: resident_bytes(),
            planned: plan.planned,
            kept: plan.fixed + caches + requests,
            requests,
            room: plan.requests,
        }
    }

    pub fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    pub fn cancel(&self) {
        self.engine.cancel();
    }

    /// 404 for other models.
    pub fn check_model(&self, name: &str) -> Result<(), ApiError> {
        let embeds = name == self.embedder.name();
        let why =
            if embeds { "embeds texts (/v1/embeddings) and does nothing else" } else { "is not served here" };
        self.check_name(name, format_args!("{why}; ask for {:?}", self.model.name()))
    }

    /// 404 for models without embeddings.
    pub fn check_embedding_model(&self, name: &str) -> Result<(), ApiError> {
        let (embedder, own) = (self.embedder.name(), self.model.name());
        let served = format_args!("{embedder:?}, which embeds texts, or for {own:?}, the mean of its states");
        self.check_name(name, format_args!("is not served here; ask for {served}"))
    }

    fn check_name(&self, name: &str, why: fmt::Arguments<'_>) -> Result<(), ApiError> {
        if name == self.model.name() {
            return Ok(());
        }
        let shown: String = name.chars().take(80).collect();
        let message = format!("the model {shown:?} {why}");
        Err(ApiError::new(StatusCode::NOT_FOUND, Some("model_not_found"), message).of("model"))
    }
}
