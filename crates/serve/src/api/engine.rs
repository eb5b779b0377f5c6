//! The engine thread, with requests that no client hears of.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc;

use super::error::ApiError;
use palimpsest_core::engine::thread::{Caller, EngineThread, Scope};
use palimpsest_core::engine::{Event, Next, Request, Sink};

#[derive(Debug)]
pub struct ServedEngine {
    pub thread: EngineThread,
    cancelled: Arc<AtomicBool>,
}

impl ServedEngine {
    pub fn new(thread: EngineThread) -> Self {
        ServedEngine { thread, cancelled: Arc::default() }
    }

    /// Cancels all requests.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    pub fn cancelled(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancelled)
    }

    /// Results of a request's tasks, in order, each made of its events by `hear`. Dropping the future cancels the request.
    pub async fn results<T, H>(
        &self,
        scope: Scope,
        request: Request,
        hear: impl Fn() -> H,
    ) -> Result<Vec<T>, ApiError>
    where
        T: Send + 'static,
        H: FnMut(Event) -> Option<Result<T, ApiError>> + Send + 'static,
    {
        let count = request.branches.len();
        let (told, mut heard) = mpsc::unbounded_channel();
        let sink = |nth: usize| -> Sink {
            let (told, cancelled, mut hear) = (told.clone(), self.cancelled(), hear());
            Box::new(move |event| {
                let result = match event {
                    Event::Failed(error) => Some(Err(error.into())),
                    event => hear(event),
                };
                let Some(result) = result else {
                    return Next::from(!told.is_closed() && !cancelled.load(Ordering::Relaxed));
                };
                let _ = told.send((nth, result));
                Next::Cancel
            })
        };
        self.thread.submit_of(Caller::within(scope), request, (0..count).map(sink).collect());
        drop(told);
        let mut results = BTreeMap::new();
        while results.len() < count {
            let (nth, result) = heard.recv().await.ok_or_else(ApiError::left)?;
            results.insert(nth, result?);
        }
        Ok(results.into_values().collect())
    }
}
