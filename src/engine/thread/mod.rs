//! One thread that owns a decoder and its cache and takes requests from a queue.
//!
//! What a server stands before: any thread submits a [`Request`] and hears of its [`Event`]s, tokens one by one, while others wait
//! their turn. A request is cancelled by its sink, which says what is wanted next, or by its [`Ticket`], which cancels it when it
//! is dropped. A worker of the pool that computes is held while a request is served and not between requests. The cache is kept
//! from one request to the next as far as both begin alike.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use super::Engine;
use crate::model::Cache;

mod owner;
mod request;

pub use owner::EngineLoop;
use request::Job;
pub use request::{Chosen, Event, Measured, Next, Request, RequestError};

/// A handle on the thread. When the last one is dropped, what is queued is served and the thread ends.
#[derive(Debug, Clone)]
pub struct EngineThread {
    // Dropped before the wait for the thread, which ends when nobody can ask any more.
    queue: Sender<Job>,
    _thread: Arc<Joined>,
}

/// Waits for the thread when it is dropped.
#[derive(Debug)]
struct Joined(Option<JoinHandle<()>>);

impl Drop for Joined {
    fn drop(&mut self) {
        // The last handle may be held by a sink, on the thread itself.
        let other = self.0.take().filter(|thread| thread.thread().id() != thread::current().id());
        // A panic has been printed, and whoever waits for an answer hears that the thread is gone.
        let _ = other.map(JoinHandle::join);
    }
}

impl EngineThread {
    /// Starts the thread with a decoder and a cache of its own, of `context` tokens.
    ///
    /// # Errors
    /// Those of making a cache, or of a system without threads.
    pub fn start(engine: Engine, context: usize) -> Result<Self, RequestError> {
        let cache = engine.decoder().cache(context)?;
        Self::start_with(engine, cache)
    }

    /// The same with a cache that is at hand.
    ///
    /// # Errors
    /// Those of a system without threads.
    pub fn start_with(engine: Engine, cache: Cache) -> Result<Self, RequestError> {
        let (handle, work) = Self::here(engine, cache);
        let thread = thread::Builder::new().name("engine".to_owned()).spawn(move || work.run());
        let thread = thread.map_err(candle_core::Error::wrap)?;
        Ok(EngineThread { _thread: Arc::new(Joined(Some(thread))), ..handle })
    }

    /// A handle on work that the caller's own thread is to do.
    pub fn here(engine: Engine, cache: Cache) -> (Self, EngineLoop) {
        let (queue, jobs) = mpsc::channel::<Job>();
        (EngineThread { queue, _thread: Arc::new(Joined(None)) }, EngineLoop::new(engine, cache, jobs))
    }

    /// Queues a request; `sink` hears of it on the thread and must not block. It says what is wanted next: [`Next`], or whether
    /// to go on. Where the thread is gone, it hears that.
    pub fn submit<N: Into<Next>>(&self, request: Request, mut sink: impl FnMut(Event) -> N + Send + 'static) {
        let job = Job { request, sink: Box::new(move |event| sink(event).into()) };
        if let Err(refused) = self.queue.send(job) {
            let Job { mut sink, .. } = refused.0;
            sink(Event::Failed(RequestError::Gone));
        }
    }

    /// Queues a request whose events are fetched from a ticket.
    pub fn ask(&self, request: Request) -> Ticket {
        let (events, heard) = mpsc::channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&cancelled);
        self.submit(request, move |event| events.send(event).is_ok() && !flag.load(Ordering::Relaxed));
        Ticket { events: heard, cancelled }
    }
}

/// A queued request. Dropping it cancels the request.
#[derive(Debug)]
pub struct Ticket {
    events: Receiver<Event>,
    cancelled: Arc<AtomicBool>,
}

impl Ticket {
    /// Waits for the next event; `None` after the last one.
    pub fn next_event(&self) -> Option<Event> {
        self.events.recv().ok()
    }

    /// Ends the request at its next chunk or token, or before it begins.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// What the last event says.
    pub fn wait(self) -> Result<Measured, RequestError> {
        while let Some(event) = self.next_event() {
            match event {
                Event::Prefilled(_) | Event::Scored(_) | Event::Token(_) => {}
                Event::Done(measured) => return Ok(*measured),
                Event::Failed(error) => return Err(error),
            }
        }
        Err(RequestError::Gone)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.cancel();
    }
}
