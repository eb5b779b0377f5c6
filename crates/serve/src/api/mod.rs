//! OpenAI-compatible server with attention by span as an extension.
//!
//! Owns HTTP, request and response formats, and access control. One engine thread ([`palimpsest_core::engine::thread`]) owns the model and
//! batches all requests; connections have one thread, tokenising a few. Path of a request: JSON (`json`, `chat`, `sent`, `tools`,
//! `format`), tokens and spans (`prompt`) or a given answer (`given`), engine request (`ask`), text (`writer`), `logprobs`, masses
//! (`attention_reply`), evictions (`evict`) and document scores (`score`), response (`answers`). `listen` accepts connections, `places`
//! limits their number and `socket` their time. Request texts are never logged.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Semaphore;

use palimpsest_core::engine::LocalModel;
use palimpsest_core::engine::thread::EngineLoop;

mod answers;
mod app;
mod ask;
mod attention_reply;
mod attention_request;
pub(crate) mod body;
mod causes;
mod chat;
mod cite;
mod common;
mod completions;
mod costs;
mod embedder;
mod embeddings;
mod engine;
pub mod error;
mod evict;
mod format;
mod given;
pub mod guard;
mod http;
mod json;
pub mod keys;
pub mod listen;
mod log;
mod logprobs;
mod memory;
mod metrics;
mod model;
pub mod off_thread;
mod openapi;
pub mod page;
mod pieces;
mod places;
mod prompt;
mod prompts;
mod resident;
#[cfg(test)]
mod schema_tests;
mod score;
mod sent;
mod socket;
#[cfg(unix)]
mod socket_file;
mod tokens;
mod tools;
mod writer;

use app::App;
pub use app::{DEFAULT_MAX_ANSWER, DEFAULT_QUEUE, ServeOptions};
pub use body::LONGEST_BODY;
pub use embedder::EmbedderError;
use embedder::ServedEmbedder;
use engine::ServedEngine;
use guard::Guard;
pub use guard::{allowed_host, allowed_origin};
pub use keys::{Keys, KeysError};
use listen::{Address, Listener};
pub use log::LogFormat;
use memory::Memory;
use model::ServedModel;
use score::NeutralCache;
pub use score::SCORE_CACHE_BYTES;

/// Prefill chunk size while nothing is generated.
pub const DEFAULT_CHUNK: usize = 256;

/// Grace period for running requests after a stop.
const GRACE: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(
        "{address} can be reached from other machines, so the server needs a key; give --api-key-file FILE or \
         --keys FILE, or set PALIMPSEST_API_KEY, or leave --host at 127.0.0.1"
    )]
    NeedsKey { address: Address },
    #[error(transparent)]
    Embedder(#[from] EmbedderError),
    #[error("the server cannot run: {0}")]
    Io(#[from] io::Error),
}

#[derive(Debug)]
pub struct Server {
    listener: Listener,
    app: Arc<App>,
}

impl Server {
    /// The caller runs the model's loop on its own thread while the server lives.
    pub fn new(
        listener: impl Into<Listener>,
        model: LocalModel,
        mut options: ServeOptions,
    ) -> Result<(Self, EngineLoop), ServeError> {
        let listener = listener.into();
        let address = listener.address()?;
        let (keys, origins, hosts) = (options.keys.clone(), options.origins.clone(), options.hosts.clone());
        let guard = Guard::new(&address, keys, origins, hosts).ok_or(ServeError::NeedsKey { address })?;
        options.stops = Some(options.stops.unwrap_or_else(|| model.template().stop_strings()));
        options.queue = options.queue.clamp(1, Semaphore::MAX_PERMITS);
        let limits = model.limits();
        let memory = Memory::new(model.server_memory());
        let embedder = ServedEmbedder::new()?;
        let (session, text) = model.into_parts(options.max_thinking);
        let weights = session.engine().clone();
        let (spec, formats) = (weights.decoder().spec().clone(), weights.decoder().formats());
        let retrieval = options.retrieval.take().map(Into::into);
        let model = ServedModel::new(text, spec, formats, retrieval, memory.longest_text());
        let (thread, work) = session.serving(limits);
        let app = Arc::new(App {
            model,
            embedder,
            weights,
            engine: ServedEngine::new(thread),
            metrics: Arc::default(),
            neutral: NeutralCache::default(),
            guard,
            memory: Arc::new(memory),
            places: Arc::new(Semaphore::new(options.queue)),
            closing: AtomicBool::new(false),
            description: OnceLock::new(),
            options,
        });
        resident::trim();
        resident::keep(&app);
        Ok((Server { listener, app }, work))
    }

    pub fn open_embedder(&self) -> Result<(), EmbedderError> {
        self.app.embedder.open().map(drop)
    }

    /// Address of a TCP listener.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` is set. Then refuses new requests and cancels those that exceed a grace period of ten seconds.
    pub fn run(self, stop: Arc<AtomicBool>) -> io::Result<()> {
        let Server { listener, app } = self;
        let router = http::router(Arc::clone(&app));
        listen::run(listener, router, &stop, async {
            app.close();
            tokio::time::sleep(GRACE).await;
            app.cancel();
            // Lets cancelled requests send their errors.
            tokio::time::sleep(GRACE / 2).await;
        })
    }
}
