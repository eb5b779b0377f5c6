//! One thread that owns a decoder and its cache and takes requests from a queue.
//!
//! What a server stands before: any thread submits a [`Request`] and hears of its [`Event`]s, tokens one by one, while others wait
//! their turn. A request is cancelled by its sink, which returns whether to go on, or by its [`Ticket`], which cancels it when it
//! is dropped. A worker of the pool that computes is held while a request is served and not between requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use ndarray::Array2;

use super::sampling::Sampling;
use super::{Engine, EngineError, Generated, Measurement, Rows, StopReason};
use crate::attention::{Masses, SpanError};
use crate::model::Cache;
use crate::prompt::Span;
use crate::transfer;

/// A prompt to prefill, measure and continue.
#[derive(Debug, Clone)]
pub struct Request {
    /// The prompt.
    pub tokens: Vec<u32>,
    /// Positions at its end whose logits are wanted, at least one.
    pub keep: usize,
    /// Whose attention is measured.
    pub rows: Rows,
    /// Over which spans.
    pub keys: Vec<Span>,
    /// How tokens are chosen; none are where `max_new_tokens` is 0.
    pub sampling: Sampling,
    /// Tokens that end the answer.
    pub stop: Vec<u32>,
}

/// What comes of a request, in order. The last one is [`Event::Done`] or [`Event::Failed`].
#[derive(Debug)]
pub enum Event {
    /// So many more tokens of the prompt are in the cache.
    Prefilled(usize),
    /// A token was generated.
    Token(u32),
    /// All of it.
    Done(Box<Measured>),
    /// Why there is nothing; [`EngineError::Interrupted`] where it was cancelled.
    Failed(RequestError),
}

/// What was asked for.
#[derive(Debug)]
pub struct Measured {
    /// f32 (keep, vocab).
    pub logits: Array2<f32>,
    /// The answer.
    pub generated: Generated,
    /// What the rows pay.
    pub masses: Masses,
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The model could not serve it.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Its spans cannot be measured.
    #[error(transparent)]
    Spans(#[from] SpanError),
    /// It is longer than the cache.
    #[error("{needed} tokens of prompt and answer do not fit the context of {context}; shorten them")]
    TooLong {
        /// Tokens of both.
        needed: usize,
        /// Tokens of the cache.
        context: usize,
    },
    /// The thread is gone.
    #[error("the model's thread has ended; start it again")]
    Gone,
}

impl From<candle_core::Error> for RequestError {
    fn from(error: candle_core::Error) -> Self {
        RequestError::Engine(error.into())
    }
}

/// Hears of a request's events, and says whether to go on.
type Sink = Box<dyn FnMut(Event) -> bool + Send>;

struct Job {
    request: Request,
    sink: Sink,
}

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
        let (queue, jobs) = mpsc::channel::<Job>();
        let serve = move || Owner { engine, cache, context }.serve(&jobs);
        let thread = thread::Builder::new().name("engine".to_owned()).spawn(serve);
        let thread = thread.map_err(candle_core::Error::wrap)?;
        Ok(EngineThread { queue, _thread: Arc::new(Joined(Some(thread))) })
    }

    /// Queues a request; `sink` hears of it on the thread and must not block. Where the thread is gone, it hears that.
    pub fn submit(&self, request: Request, sink: impl FnMut(Event) -> bool + Send + 'static) {
        let job = Job { request, sink: Box::new(sink) };
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
                Event::Prefilled(_) | Event::Token(_) => {}
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

/// What the thread owns.
struct Owner {
    engine: Engine,
    cache: Cache,
    context: usize,
}

impl Owner {
    fn serve(mut self, jobs: &Receiver<Job>) {
        for Job { request, mut sink } in jobs {
            // One that was cancelled while it waited costs nothing.
            let done = match sink(Event::Prefilled(0)) {
                true => rayon::scope(|_| self.answer(&request, &mut sink)),
                false => Err(EngineError::Interrupted.into()),
            };
            sink(match done {
                Ok(measured) => Event::Done(Box::new(measured)),
                Err(error) => Event::Failed(error),
            });
        }
    }

    fn answer(&mut self, request: &Request, sink: &mut Sink) -> Result<Measured, RequestError> {
        let Request { tokens, keep, rows, keys, sampling, stop } = request;
        let needed = tokens.len().saturating_add(sampling.max_new_tokens);
        if needed > self.context {
            return Err(RequestError::TooLong { needed, context: self.context });
        }
        let mut measurement = Measurement::new(rows.clone(), keys.clone(), tokens.len())?;
        // Nothing is left of the request before, so that answers do not depend on it.
        self.cache.truncate(0)?;
        let (engine, cache) = (&self.engine, &mut self.cache);
        let logits =
            measurement.prefill(engine, cache, tokens, *keep, &mut |done| sink(Event::Prefilled(done)))?;
        let generated = match sampling.max_new_tokens {
            0 => Generated { tokens: Vec::new(), thought: 0, stop: StopReason::MaxNewTokens },
            _ => {
                let last = logits.get(logits.dim(0)? - 1)?;
                let how = (sampling, stop.as_slice());
                measurement.decode(engine, cache, &last, how, &mut |token| sink(Event::Token(token)))?
            }
        };
        let masses = measurement.finish(generated.tokens.len())?;
        let shape = logits.dims2()?;
        let logits = Array2::from_shape_vec(shape, transfer::fetch(&logits)?);
        Ok(Measured { logits: logits.map_err(candle_core::Error::wrap)?, generated, masses })
    }
}
