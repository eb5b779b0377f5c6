//! One thread that owns a decoder and its caches and serves many requests at once.
//!
//! Any thread can submit a [`Request`] and receives its [`Event`]s. `shelf` caches common prefixes, `reading` prefills in chunks,
//! `speaking` decodes all answers in batches, and `owner` schedules.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Sender};

use super::Engine;
use super::memory_plan::Branches;
use super::request::{Event, Next, Request, Sink};
use super::request_error::RequestError;
use crate::attention::SPLIT_K;
use crate::model::Cache;

mod caller;
mod evicting;
mod load;
mod owner;
mod pending;
mod reading;
mod shelf;
mod speaking;

use caller::next_number;
pub use caller::{Caller, Scope};
use load::Gauges;
pub use load::Load;
pub use owner::EngineLoop;
use reading::{Queued, RequestId};

/// Limits of an engine thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum answers decoded together.
    pub parallel: usize,
    /// Token budget of the cache: cached prompts plus tokens reserved for running answers. At least one request's maximum.
    pub tokens: usize,
    /// Maximum cached prompts.
    pub prompts: usize,
}

impl Limits {
    /// Tokens a request may need beyond its context.
    pub const BESIDE: usize = 3 * SPLIT_K;

    /// Defaults: 4 answers, a budget of about 4 contexts.
    pub fn of_context(context: usize) -> Self {
        Limits { parallel: 4, tokens: (context + Self::BESIDE).saturating_mul(4), prompts: 16 }
    }

    /// Limits for one request at a time, whose branches decode together.
    pub fn of_branches(context: usize, branches: Branches) -> Self {
        let parallel = branches.count.max(1);
        let beside = if branches.count > 1 { branches.tokens.saturating_mul(branches.count) } else { 0 };
        Limits { parallel, tokens: context.saturating_add(Self::BESIDE).saturating_add(beside), prompts: 1 }
    }

    /// Raises the limits to serve at least one request.
    fn fitting(self, context: usize) -> Self {
        let parallel = self.parallel.max(1);
        let tokens = self.tokens.max(context.saturating_add(Self::BESIDE));
        Limits { parallel, tokens, prompts: self.prompts.max(parallel) }
    }
}

/// A handle to the engine thread. After the last one is dropped, the loop serves queued requests and ends.
#[derive(Debug, Clone)]
pub struct EngineThread {
    queue: Sender<Queued>,
    gauges: Arc<Gauges>,
}

impl EngineThread {
    /// A handle, and the loop for the caller to run on a thread of its choice.
    pub fn here(engine: Engine, cache: Cache, limits: Limits) -> (Self, EngineLoop) {
        let (queue, queued) = mpsc::channel::<Queued>();
        let gauges = Arc::new(Gauges::default());
        let work = EngineLoop::new(engine, cache, limits, queued, Arc::clone(&gauges));
        (EngineThread { queue, gauges }, work)
    }

    /// Current load.
    pub fn load(&self) -> Load {
        self.gauges.load()
    }

    /// Queues a request of one task. `sink` runs on the engine thread, must not block, and returns [`Next`], or true to continue.
    pub fn submit<N: Into<Next>>(&self, request: Request, mut sink: impl FnMut(Event) -> N + Send + 'static) {
        self.submit_all(request, vec![Box::new(move |event| sink(event).into())]);
    }

    /// Queues a request with one sink per task, branch by branch.
    pub fn submit_all(&self, request: Request, sinks: Vec<Sink>) {
        self.submit_of(Caller::new(), request, sinks);
    }

    /// [`Self::submit_all`] for a caller with several requests. The caller with the fewest running requests is served first.
    pub fn submit_of(&self, caller: Caller, request: Request, sinks: Vec<Sink>) {
        let id = RequestId { request: next_number(), caller };
        let queued = Queued::new(id, request, sinks);
        let count = queued.tasks();
        self.gauges.queued.fetch_add(count, Ordering::Relaxed);
        if let Err(refused) = self.queue.send(queued) {
            self.gauges.queued.fetch_sub(count, Ordering::Relaxed);
            refused.0.end(&RequestError::Gone);
        }
    }
}
