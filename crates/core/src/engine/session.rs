//! The [`Backend`] trait, and the local implementation.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

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
        let (sender, events) = mpsc::channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let mut sinks: Vec<super::Sink> = Vec::new();
        for (nth, branch) in request.branches.iter().enumerate() {
            for task in 0..branch.tasks.len() {
                let (sender, cancelled) = (sender.clone(), Arc::clone(&cancelled));
                sinks.push(Box::new(move |event| match sender.send((nth, task, event)) {
                    Ok(()) if !cancelled.load(Ordering::Relaxed) => Next::Go,
                    _ => Next::Cancel,
                }));
            }
        }
        self.handle.submit_all(request, sinks);
        loop {
            let more = self.work.turn();
            for (nth, task, event) in events.try_iter() {
                if let Event::Done(measured) = &event {
                    self.usage.1 += measured.generated.tokens.len();
                }
                if !on_event(nth, task, event) {
                    cancelled.store(true, Ordering::Relaxed);
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
