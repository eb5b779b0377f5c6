//! A local model behind OpenAI's API, with attention by span as an extension.
//!
//! Owns HTTP, the shapes of requests and responses, and who may ask. The model and its caches belong to one thread
//! ([`crate::engine::thread`]), which serves all requests together; everything else happens beside it, on one thread of
//! connections (`listen`) and a few for tokenising. A request is read field by field (`fields`, `sent`, `tools`,
//! `format`), becomes tokens and spans (`prompt`) and
//! then a request of the engine's; its events become text (`writer`), probabilities (`logprobs`) and masses
//! (`attention_reply`), and these a response or a stream (`answers`). Texts of requests are in no log and in no metric.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::engine::LocalModel;
use crate::engine::thread::{EngineLoop, EngineThread};

mod answers;
mod app;
mod attention_reply;
mod attention_request;
mod chat;
mod common;
mod completions;
mod embedder;
mod embeddings;
mod error;
mod fields;
mod format;
mod guard;
mod http;
mod listen;
mod logprobs;
mod metrics;
mod model;
mod openapi;
mod page;
mod prompt;
mod sent;
mod tokens;
mod tools;
mod writer;

use app::App;
pub use embedder::EmbedderError;
use embedder::ServedEmbedder;
use guard::Guard;
pub use http::LONGEST_BODY;
use model::ServedModel;

/// Tokens of a prompt that are read at a time while nothing is generated.
pub const DEFAULT_CHUNK: usize = 256;

/// Completions that are served or wait, unless told otherwise.
pub const DEFAULT_QUEUE: usize = 64;

/// How often it is looked whether to stop.
const LOOK: Duration = Duration::from_millis(50);

/// How long what is under way may go on after that.
const GRACE: Duration = Duration::from_secs(10);

/// Why a server cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Others could use it.
    #[error(
        "{address} can be reached from other machines, so the server needs a key; give --api-key-file FILE or set \
         PALIMPSEST_API_KEY, or leave --host at 127.0.0.1"
    )]
    NeedsKey {
        /// Where it would listen.
        address: SocketAddr,
    },
    /// There is no embedder.
    #[error(transparent)]
    Embedder(#[from] EmbedderError),
    /// The system refuses.
    #[error("the server cannot run: {0}")]
    Io(#[from] io::Error),
}

/// How a server is run.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// What clients must send, where they must.
    pub key: Option<String>,
    /// Most completions that are served or wait.
    pub queue: usize,
    /// Most tokens of a thought.
    pub max_thinking: usize,
}

/// A server whose address is taken and whose model is open.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    app: Arc<App>,
}

impl Server {
    /// A server at `listener`. The work of the model is the caller's: it runs the loop on a thread of its own, for as long as the
    /// server is there.
    ///
    /// # Errors
    /// [`ServeError::NeedsKey`], and what the system says.
    pub fn new(
        listener: TcpListener,
        model: LocalModel,
        options: ServeOptions,
    ) -> Result<(Self, EngineLoop), ServeError> {
        let address = listener.local_addr()?;
        let ServeOptions { key, queue, max_thinking } = options;
        let guard = Guard::new(address, key.as_deref()).ok_or(ServeError::NeedsKey { address })?;
        let limits = model.limits();
        let embedder = ServedEmbedder::new()?;
        let (engine, cache, text) = model.into_parts(max_thinking);
        let (spec, dtype) = (engine.decoder().spec().clone(), engine.decoder().dtype());
        let served = ServedModel::new(text, spec, dtype, common::now());
        let weights = engine.clone();
        let (thread, work) = EngineThread::here(engine, cache, limits);
        Ok((
            Server { listener, app: Arc::new(App::new(served, embedder, weights, thread, guard, queue)) },
            work,
        ))
    }

    /// Fetches and opens the embedder now, not when the first request asks for it.
    ///
    /// # Errors
    /// [`EmbedderError`].
    pub fn open_embedder(&self) -> Result<(), EmbedderError> {
        self.app.embedder.open().map(drop)
    }

    /// Where it listens.
    ///
    /// # Errors
    /// What the system says.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` is set. Then nobody is admitted any more, and what is under way has ten seconds to end; the rest is
    /// cancelled, and told so.
    ///
    /// # Errors
    /// What the system says.
    pub fn run(self, stop: Arc<AtomicBool>) -> io::Result<()> {
        let Server { listener, app } = self;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let served = runtime.block_on(async {
            listener.set_nonblocking(true)?;
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let serving = listen::serve(listener, http::router(Arc::clone(&app)), asked(Arc::clone(&stop)));
            let ended = async {
                asked(stop).await;
                app.close();
                tokio::time::sleep(GRACE).await;
                app.cancel();
                // For those that are told so to hear it.
                tokio::time::sleep(GRACE / 2).await;
            };
            tokio::select! {
                () = serving => Ok(()),
                () = ended => Ok(()),
            }
        });
        runtime.shutdown_background();
        served
    }
}

/// Waits until `stop` is set.
async fn asked(stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(LOOK).await;
    }
}
