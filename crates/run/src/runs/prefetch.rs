//! Truncates and tokenises the next case on a worker thread while the model answers the current one.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use super::context_budget::{BudgetError, BudgetedCase};
use palimpsest_data::case::Case;

pub type Prepare = dyn Fn(&Case) -> Prepared + Send + Sync;

pub type Prepared = Result<Vec<BudgetedCase>, BudgetError>;

/// Workers of the next case and, until it starts, of the current one.
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
        if let Ok(worker) = worker.spawn(move || prepare(&case)) {
            self.workers.truncate(1);
            self.workers.push((Arc::clone(next), worker));
        }
    }

    /// Waits for the case's worker; prepares it here if there is none.
    pub fn take(&mut self, case: &Case) -> Prepared {
        let at = self.workers.iter().position(|(other, _)| std::ptr::eq(Arc::as_ptr(other), case));
        let prepared = at.and_then(|at| self.workers.remove(at).1.join().ok());
        prepared.unwrap_or_else(|| (self.prepare)(case))
    }
}
