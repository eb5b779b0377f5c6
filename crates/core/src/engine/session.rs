//! The trait of whatever answers requests, and the model on this machine behind it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use super::request::{Event, Measured, Next, Request};
use super::request_error::RequestError;
use super::thread::{EngineLoop, EngineThread, Limits};
use super::{Engine, EngineError};
use crate::attention::LayerKind;
use crate::model::Cache;

/// The outputs of a request: by branch, by task.
pub type Outputs = Vec<Vec<Result<Measured, RequestError>>>;

/// Hears of the events of each task, by the numbers of its branch and of it, the last one included; says whether to go on.
pub type OnEvent<'a> = &'a mut dyn FnMut(usize, usize, Event) -> bool;

/// A model that answers requests: a [`Session`] on this machine, or a server at an address.
pub trait Backend {
    /// Answers a request. Tasks that have not ended when `on_event` says no end as [`EngineError::Interrupted`].
    fn run(&mut self, request: Request, on_event: OnEvent<'_>);

    /// The dtype of the weights, in lower case.
    fn dtype(&self) -> String;

    /// The kind of each decoder layer.
    fn layer_kinds(&self) -> Vec<LayerKind>;

    /// The phase that a begun task is in until its prompt is read.
    fn first_phase(&self) -> &'static str {
        "prefill"
    }

    /// The last position up to `at` at which a prompt may be cut in two without a change of its bits.
    fn border(&self, at: usize) -> usize {
        at
    }
}

/// An engine with its cache. One request after the other; what a request's prefix left in the cache is found by the next.
pub struct Session {
    handle: EngineThread,
    work: EngineLoop,
    /// Tokens that were read when usage was asked for last, and those generated since.
    usage: (u64, usize),
}

/// Events of tasks on their way to the caller, and whether it wants more.
#[derive(Default)]
struct Mailbox {
    events: VecDeque<(usize, usize, Event)>,
    cancelled: bool,
}

impl Session {
    /// Of a cache, which says how long a context is and how layers remember, and how much is generated together.
    pub fn new(engine: Engine, cache: Cache, limits: Limits) -> Self {
        let (handle, work) = EngineThread::here(engine, cache, limits);
        Session { handle, work, usage: (0, 0) }
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        self.work.engine()
    }

    /// Answers a request of few tasks and returns all of their outputs. `on_event` hears of the events before the last of each.
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

    /// Tokens that were computed of prompts and that were generated since this was asked last.
    pub fn take_usage(&mut self) -> (usize, usize) {
        let read = self.handle.load().read;
        let (before, generated) = std::mem::replace(&mut self.usage, (read, 0));
        ((read - before) as usize, generated)
    }

    /// Drops what the cache holds.
    pub fn forget(&mut self) {
        self.work.forget();
    }

    /// The loop and a handle on it, for a caller that serves many at once within these limits.
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
