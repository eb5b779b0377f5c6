//! The [`Backend`] trait, and the local implementation.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use super::request::{Event, Measured, Next, Request};
use super::request_error::RequestError;
use super::thread::{EngineLoop, EngineThread, Limits};
use super::{Engine, EngineError};
use crate::attention::LayerKind;
use crate::model::Cache;

/// Outputs by branch and task.
pub type Outputs = Vec<Vec<Result<Measured, RequestError>>>;

/// Event callback: branch index, task index, event. Returns false to cancel.
pub type OnEvent<'a> = &'a mut dyn FnMut(usize, usize, Event) -> bool;

/// Answers requests: a local [`Session`] or a remote server.
pub trait Backend {
    /// Answers a request. If `on_event` returns false, unfinished tasks end with [`EngineError::Interrupted`].
    fn run(&mut self, request: Request, on_event: OnEvent<'_>);

    /// Dtype of the weights, in lower case.
    fn dtype(&self) -> String;

    /// Kind of each decoder layer.
    fn layer_kinds(&self) -> Vec<LayerKind>;

    /// Progress label until the prompt is read.
    fn first_phase(&self) -> &'static str {
        "prefill"
    }

    /// Largest position up to `at` where a prompt can be split with bit-equal results.
    fn border(&self, at: usize) -> usize {
        at
    }
}

/// A local engine with its cache. Serves one request at a time and reuses cached prefixes.
pub struct Session {
    handle: EngineThread,
    work: EngineLoop,
    /// Prefilled tokens at the last `take_usage`, and tokens generated since.
    usage: (u64, usize),
}

#[derive(Default)]
struct Mailbox {
    events: VecDeque<(usize, usize, Event)>,
    cancelled: bool,
}

impl Session {
    /// A session over a cache, which sets the context length and cache format.
    pub fn new(engine: Engine, cache: Cache, limits: Limits) -> Self {
        let (handle, work) = EngineThread::here(engine, cache, limits);
        Session { handle, work, usage: (0, 0) }
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        self.work.engine()
    }

    /// Answers a request and returns all outputs. `on_event` receives non-final events only.
    pub fn answers(
        &mut self,
        request: Request,
        on_event: &mut dyn FnMut(usize, usize, &Event) -> bool,
    ) -> Outputs {
        let gone = || Err(RequestError::Gone);
        let tasks = request.branches.iter().map(|branch| branch.tasks.iter().map(|_| gone()).collect());
        let mut outputs: Outputs = tasks.collect();
        self.run(request, &mut |nth, task, event| {
            let output = outputs.get_mut(nth).and_then(|tasks| tasks.get_mut(task));
            match (event, output) {
                (Event::Done(measured), Some(output)) => *output = Ok(*measured),
                (Event::Failed(error), Some(output)) => *output = Err(error),
                (event, _) => return on_event(nth, task, &event),
            }
            true
        });
        outputs
    }

    /// Answers a request of one task.
    pub fn answer(
        &mut self,
        request: Request,
        on_event: &mut dyn FnMut(&Event) -> bool,
    ) -> Result<Measured, RequestError> {
        let outputs = self.answers(request, &mut |_, _, event| on_event(event));
        outputs.into_iter().flatten().next().unwrap_or(Err(EngineError::EmptyPrompt.into()))
    }

    /// Tokens prefilled and generated since the last call.
    pub fn take_usage(&mut self) -> (usize, usize) {
        let read = self.handle.load().read;
        let (before, generated) = std::mem::replace(&mut self.usage, (read, 0));
        ((read - before) as usize, generated)
    }

    /// Clears the cache.
    pub fn forget(&mut self) {
        self.work.forget();
    }

    /// Splits into a handle and a loop that serve concurrent requests within `limits`.
    pub fn serving(self, limits: Limits) -> (EngineThread, EngineLoop) {
        (self.handle, self.work.limited(limits))
    }
}

impl Backend for Session {
    fn run(&mut self, request: Request, on_event: OnEvent<'_>) {
        let mailbox = Arc::new(Mutex::new(Mailbox::default()));
        let mut sinks: Vec<super::Sink> = Vec::new();
        for (nth, branch) in request.branches.iter().enumerate() {
            for task in 0..branch.tasks.len() {
                let mailbox = Arc::clone(&mailbox);
                sinks.push(Box::new(move |event| {
                    let mut mailbox = mailbox.lock().unwrap_or_else(PoisonError::into_inner);
                    mailbox.events.push_back((nth, task, event));
                    if mailbox.cancelled { Next::Cancel } else { Next::Go }
                }));
            }
        }
        self.handle.submit_all(request, sinks);
        loop {
            let more = self.work.turn();
            let events = {
                let mut mailbox = mailbox.lock().unwrap_or_else(PoisonError::into_inner);
                std::mem::take(&mut mailbox.events)
            };
            for (nth, task, event) in events {
                if let Event::Done(measured) = &event {
                    self.usage.1 += measured.generated.tokens.len();
                }
                if !on_event(nth, task, event) {
                    mailbox.lock().unwrap_or_else(PoisonError::into_inner).cancelled = true;
                }
            }
            if !more {
                break;
            }
        }
    }

    fn dtype(&self) -> String {
        self.engine().decoder().formats().to_string()
    }

    fn layer_kinds(&self) -> Vec<LayerKind> {
        self.engine().decoder().spec().layer_kinds()
    }

    fn border(&self, at: usize) -> usize {
        self.engine().border(at)
    }
}
