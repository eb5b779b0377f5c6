//! The next case is cut to its budget and tokenised on a thread of its own while the model answers the one before.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use super::context_budget::{BudgetError, BudgetedCase};
use palimpsest_data::case::Case;

/// Cuts a case to its budget and tokenises its prompts.
pub type Prepare = dyn Fn(&Case) -> Prepared + Send + Sync;

/// A case as its probes are shown it.
pub type Prepared = Result<Vec<BudgetedCase>, BudgetError>;

/// Workers of the next case and, until it is begun, of the one under way.
pub(super) struct Prefetch {
    prepare: Arc<Prepare>,
    workers: Vec<(Arc<Case>, JoinHandle<Prepared>)>,
}

impl Prefetch {
    pub fn new(prepare: Arc<Prepare>) -> Self {
        Prefetch { prepare, workers: Vec::new() }
    }

    pub fn begin(&mut self, next: &Arc<Case>) {
        let (prepare, case) = (Arc::clone(&self.prepare), Arc::clone(next));
        let worker = thread::Builder::new().name("prepare".to_owned());
        // Where there is no thread to be had, the case is prepared when it is its turn.
        if let Ok(worker) = worker.spawn(move || prepare(&case)) {
            self.workers.truncate(1);
            self.workers.push((Arc::clone(next), worker));
        }
    }

    /// Waits for the worker of this very case; prepares it here where none was begun.
    pub fn take(&mut self, case: &Case) -> Prepared {
        let at = self.workers.iter().position(|(other, _)| std::ptr::eq(Arc::as_ptr(other), case));
        let prepared = at.and_then(|at| self.workers.remove(at).1.join().ok());
        prepared.unwrap_or_else(|| (self.prepare)(case))
    }
}
