//! Counts what a device would be asked to do: kernel launches, copies back to the host and copies to the device.
//!
//! Candle has no hook for operations, but tensors that descend from a variable record what they were made of. While counting,
//! what [`unrecorded`] hands on is a variable; every tensor that is made of it and has a storage of its own is a launch, and
//! one that shares a storage is a view, which launches nothing. Not seen: what is made of weights and uploads alone (masks,
//! tables), integer tensors (comparisons, indices), fills with a constant, what no result depends on, and that some
//! operations are several kernels (a concatenation is one a part, an `index_add` or a padding two).

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use candle_core::{Result, Tensor, Var};

/// What a device was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Counts {
    pub launches: usize,
    pub fetches: usize,
    pub uploads: usize,
    /// Elements of the largest tensor that a launch wrote.
    pub largest: usize,
}

#[derive(Default)]
struct Record {
    counts: Counts,
    /// Tensors that the graph does not lead to from the results.
    ends: Vec<Tensor>,
}

thread_local! {
    static ELSEWHERE: Cell<bool> = const { Cell::new(false) };
    static RECORD: RefCell<Option<Record>> = const { RefCell::new(None) };
}

/// Whether this thread's tensors are treated as though they were not on the CPU.
pub(super) fn as_elsewhere() -> bool {
    ELSEWHERE.get()
}

/// Runs `work` with the kernels that devices other than the CPU are given.
pub(crate) fn elsewhere<T>(work: impl FnOnce() -> T) -> T {
    ELSEWHERE.set(true);
    let done = work();
    ELSEWHERE.set(false);
    done
}

/// Counts what `work`, which returns its results, asks of a device that is not the CPU.
pub(crate) fn counted(work: impl FnOnce() -> Result<Vec<Tensor>>) -> Result<Counts> {
    RECORD.set(Some(Record::default()));
    let results = elsewhere(work);
    let Record { mut counts, ends } = RECORD.take().unwrap_or_default();
    // By storage: its elements, or none where it is a variable's and was launched already.
    let mut storages: HashMap<usize, Option<usize>> = HashMap::new();
    for node in results?.iter().chain(&ends).flat_map(Tensor::sorted_nodes) {
        let (storage, layout) = node.storage_and_layout();
        let elements = storages.entry(std::ptr::from_ref(&*storage).addr()).or_insert(Some(0));
        *elements = match node.is_variable() {
            true => None,
            false => elements.map(|most| most.max(layout.shape().elem_count())),
        };
    }
    let own: Vec<usize> = storages.into_values().flatten().collect();
    counts.launches += own.len();
    counts.largest = counts.largest.max(own.into_iter().max().unwrap_or(0));
    Ok(counts)
}

fn record(note: impl FnOnce(&mut Record)) {
    RECORD.with_borrow_mut(|record| {
        if let Some(record) = record {
            note(record);
        }
    });
}

/// See [`super::unrecorded`].
pub(crate) fn unrecorded(made: Tensor, from: &[&Tensor]) -> Result<Tensor> {
    let recording = RECORD.with_borrow(Option::is_some);
    if !recording {
        return Ok(made);
    }
    record(|record| {
        record.counts.launches += 1;
        record.ends.extend(from.iter().map(|&t| t.clone()));
    });
    Ok(Var::from_tensor(&made)?.into_inner())
}

pub(super) fn fetched(tensors: &[&Tensor]) {
    record(|record| {
        record.counts.fetches += 1;
        record.ends.extend(tensors.iter().map(|&t| t.clone()));
    });
}

pub(super) fn uploaded() {
    record(|record| record.counts.uploads += 1);
}
