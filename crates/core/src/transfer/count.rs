//! Tests' stand-in for a device other than the CPU: the kernels that it is given, and a count of its copies.

use std::cell::Cell;

/// Copies between the host and a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Copies {
    /// Back to the host.
    pub fetches: usize,
    /// To the device.
    pub uploads: usize,
}

thread_local! {
    static ELSEWHERE: Cell<bool> = const { Cell::new(false) };
    static COPIES: Cell<Copies> = const { Cell::new(Copies { fetches: 0, uploads: 0 }) };
}

/// True while this thread's tensors are treated as though they were not on the CPU.
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

/// The copies of `work` on a device that is not the CPU.
pub(crate) fn counted<T>(work: impl FnOnce() -> T) -> (T, Copies) {
    COPIES.set(Copies::default());
    (elsewhere(work), COPIES.get())
}

pub(super) fn fetched() {
    let copies = COPIES.get();
    COPIES.set(Copies { fetches: copies.fetches + 1, ..copies });
}

pub(super) fn uploaded() {
    let copies = COPIES.get();
    COPIES.set(Copies { uploads: copies.uploads + 1, ..copies });
}
