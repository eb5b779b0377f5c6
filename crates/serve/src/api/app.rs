//! The state that all requests share: the model, its thread, the places in the queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::embedder::ServedEmbedder;
use super::error::ApiError;
use super::guard::{AllowedHost, AllowedOrigin, Guard};
use super::log::LogFormat;
use super::memory::Memory;
use super::metrics::{Metrics, Resident};
use super::model::ServedModel;
use super::score::NeutralCache;
use palimpsest_core::engine::Engine;
use palimpsest_core::engine::memory_plan::resident_bytes;
use palimpsest_core::engine::thread::EngineThread;

/// Completions that are served or wait, unless told otherwise.
pub const DEFAULT_QUEUE: usize = 64;

/// Most tokens of an answer whose request names no limit, unless told otherwise: long for an answer, and some minutes of a small model
/// on two cores where it never ends by itself.
pub const DEFAULT_MAX_ANSWER: usize = 4096;

/// From when on a request is marked as slow, unless told otherwise.
const DEFAULT_SLOW: Duration = Duration::from_secs(60);

/// After which time a stream says something that says nothing: proxies and clients often wait 30 seconds or more.
const DEFAULT_KEEP_ALIVE: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
pub struct ServeOptions {
    pub key: Option<String>,
    pub queue: usize,
    pub max_thinking: usize,
    /// The model's heads that retrieve, each a decoder layer and a head of it, where they are known.
    pub retrieval: Option<Vec<(usize, usize)>>,
    pub max_answer: usize,
    /// Strings that end a chat's answer beside those of its request; `None` for those that the chat template has.
    pub stops: Option<Vec<String>>,
    pub origins: Vec<AllowedOrigin>,
    pub hosts: Vec<AllowedHost>,
    pub log: LogFormat,
    pub slow: Duration,
    pub keep_alive: Duration,
}

impl Default for ServeOptions {
    /// Without a key, and without a log.
    fn default() -> Self {
        ServeOptions {
            key: None,
            queue: DEFAULT_QUEUE,
            max_thinking: palimpsest_core::engine::DEFAULT_MAX_THINKING,
            retrieval: None,
            max_answer: DEFAULT_MAX_ANSWER,
            stops: None,
            origins: Vec::new(),
            hosts: Vec::new(),
            log: LogFormat::Off,
            slow: DEFAULT_SLOW,
            keep_alive: DEFAULT_KEEP_ALIVE,
        }
    }
}

#[derive(Debug)]
pub struct App {
    pub model: ServedModel,
    pub embedder: ServedEmbedder,
    /// The weights of what is served, for vectors: answers are the thread's.
    pub weights: Engine,
    pub engine: EngineThread,
    pub metrics: Arc<Metrics>,
    pub neutral: NeutralCache,
    pub guard: Guard,
    pub memory: Arc<Memory>,
    pub options: ServeOptions,
    places: Arc<Semaphore>,
    most: usize,
    closing: AtomicBool,
    cancelled: Arc<AtomicBool>,
}

impl App {
    pub fn new(
        model: ServedModel,
        embedder: ServedEmbedder,
        weights: Engine,
        engine: EngineThread,
        guard: Guard,
        memory: Memory,
        options: ServeOptions,
    ) -> Self {
        let most = options.queue.clamp(1, Semaphore::MAX_PERMITS);
        App {
            model,
            embedder,
            weights,
            engine,
            guard,
            memory: Arc::new(memory),
            neutral: NeutralCache::default(),
            options,
            metrics: Arc::default(),
            places: Arc::new(Semaphore::new(most)),
            most,
            closing: AtomicBool::new(false),
            cancelled: Arc::new(AtomicBool::new(false)),
        }
    }

    /// A place in the queue, until it is dropped. 429 where there is none, 503 where the server is about to end.
    pub fn admit(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        if self.closing.load(Ordering::Relaxed) {
            return Err(ApiError::closing());
        }
        Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            let most = self.most;
            let message =
                format!("{most} requests are being served or wait, which is all that fit; try again later");
            // About when a place will be free.
            let mean = self.metrics.with(|counts| counts.whole.mean()).unwrap_or(1.0);
            let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, Some("queue_full"), message);
            ApiError { retry_after: Some(mean.ceil().clamp(1.0, 60.0) as u64), ..error }
        })
    }

    /// Completions that are being served or wait.
    pub fn under_way(&self) -> usize {
        self.most - self.places.available_permits().min(self.most)
    }

    pub fn resident(&self) -> Resident {
        let plan = self.memory.plan();
        let (requests, caches) = (self.memory.used(), self.engine.load().taken as u64 * plan.token);
        Resident {
            resident: resident_bytes(),
            planned: plan.planned,
            kept: plan.fixed + caches + requests,
            requests,
            room: plan.requests,
        }
    }

    /// Admits nobody any more.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    /// Ends what is under way.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// True if what is under way is to end.
    pub fn cancelled(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancelled)
    }

    /// Refuses another model than this one, by 404.
    pub fn check_model(&self, name: &str) -> Result<(), ApiError> {
        let embeds = name == self.embedder.name();
        let why =
            if embeds { "embeds texts (/v1/embeddings) and does nothing else" } else { "is not served here" };
        self.check_name(name, format!("{why}; ask for {:?}", self.model.name()))
    }

    /// Refuses a model that embeds nothing here, by 404.
    pub fn check_embedding_model(&self, name: &str) -> Result<(), ApiError> {
        let (embedder, own) = (self.embedder.name(), self.model.name());
        let served = format!("{embedder:?}, which embeds texts, or for {own:?}, the mean of its states");
        self.check_name(name, format!("is not served here; ask for {served}"))
    }

    fn check_name(&self, name: &str, why: String) -> Result<(), ApiError> {
        if name == self.model.name() {
            return Ok(());
        }
        let shown: String = name.chars().take(80).collect();
        let message = format!("the model {shown:?} {why}");
        Err(ApiError::new(StatusCode::NOT_FOUND, Some("model_not_found"), message).of("model"))
    }
}
