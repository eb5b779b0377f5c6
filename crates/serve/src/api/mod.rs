//! A local model behind OpenAI's API, with attention by span as an extension.
//!
//! Owns HTTP, the shapes of requests and responses, and who may ask. The model and its caches belong to one thread
//! ([`palimpsest_core::engine::thread`]), which serves all requests together; everything else happens beside it, on one thread of
//! connections (`listen`) and a few for tokenising. A body becomes typed structs (`json`, `chat`, `sent`, `tools`, `format`), then
//! tokens and spans (`prompt`), and then a request of the engine's (`ask`); its events become text (`writer`), probabilities
//! (`logprobs`) and masses (`attention_reply`) and ranks of documents (`score`), and these a response or a stream (`answers`). An
//! answer may also be given (`given`). Texts of requests are in no log and in no metric.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use palimpsest_core::engine::LocalModel;
use palimpsest_core::engine::thread::EngineLoop;

mod answers;
mod app;
mod ask;
mod attention_reply;
mod attention_request;
mod body;
mod causes;
mod chat;
mod cite;
mod common;
mod completions;
mod costs;
mod documents;
mod embedder;
mod embeddings;
pub mod error;
mod format;
mod given;
pub mod guard;
mod heads;
mod http;
mod json;
pub mod listen;
mod log;
mod logprobs;
mod memory;
mod metrics;
mod model;
mod nested;
pub mod off_thread;
mod openapi;
pub mod page;
mod pieces;
mod prompt;
mod prompts;
mod resident;
mod schema;
mod score;
mod sent;
mod sentences;
mod text_limit;
mod tokens;
mod tools;
mod writer;

use app::App;
pub use app::{DEFAULT_MAX_ANSWER, DEFAULT_QUEUE, ServeOptions};
pub use body::LONGEST_BODY;
pub use embedder::EmbedderError;
use embedder::ServedEmbedder;
use guard::Guard;
pub use guard::{AllowedHost, AllowedOrigin, NameError};
pub use log::LogFormat;
use memory::Memory;
use model::ServedModel;
pub use score::SCORE_CACHE_BYTES;

/// Tokens of a prompt that are read at a time while nothing is generated.
pub const DEFAULT_CHUNK: usize = 256;

/// Time between two looks at the stop flag.
const LOOK: Duration = Duration::from_millis(50);

/// Most time that requests may go on after that.
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
    #[error(transparent)]
    Embedder(#[from] EmbedderError),
    #[error("the server cannot run: {0}")]
    Io(#[from] io::Error),
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
    pub fn new(
        listener: TcpListener,
        model: LocalModel,
        mut options: ServeOptions,
    ) -> Result<(Self, EngineLoop), ServeError> {
        let address = listener.local_addr()?;
        let (key, origins, hosts) = (options.key.take(), options.origins.clone(), options.hosts.clone());
        let guard =
            Guard::new(address, key.as_deref(), origins, hosts).ok_or(ServeError::NeedsKey { address })?;
        options.stops = Some(options.stops.unwrap_or_else(|| model.template().stop_strings()));
        let limits = model.limits();
        let memory = Memory::new(model.server_memory());
        let embedder = ServedEmbedder::new()?;
        let (session, text) = model.into_parts(options.max_thinking);
        let engine = session.engine().clone();
        let (spec, formats) = (engine.decoder().spec().clone(), engine.decoder().formats());
        let retrieval = options.retrieval.take().map(Into::into);
        let served = ServedModel::new(text, spec, formats, retrieval, memory.longest_text());
        let (thread, work) = session.serving(limits);
        let app = Arc::new(App::new(served, embedder, engine, thread, guard, memory, options));
        // The memory of loading the model.
        resident::trim();
        resident::keep(&app);
        Ok((Server { listener, app }, work))
    }

    /// Fetches and opens the embedder now, not when the first request asks for it.
    pub fn open_embedder(&self) -> Result<(), EmbedderError> {
        self.app.embedder.open().map(drop)
    }

    /// Where it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` is set. Then nobody is admitted any more, and what is under way has ten seconds to end; the rest is
    /// cancelled, and told so.
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
