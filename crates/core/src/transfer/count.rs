//! Test stand-in for a device other than the CPU: its code path, and a count of copies.

use std::cell::Cell;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Copies {
    /// Device to host.
    pub fetches: usize,
    /// Host to device.
    pub uploads: usize,
}

thread_local! {
    static ELSEWHERE: Cell<bool> = const { Cell::new(false) };
    static COPIES: Cell<Copies> = const { Cell::new(Copies { fetches: 0, uploads: 0 }) };
}

pub(super) fn as_elsewhere() -> bool {
    ELSEWHERE.get()
}

/// Runs `work` on the code path of other devices.
pub(crate) fn elsewhere<T>(work: impl FnOnce() -> T) -> T {
    ELSEWHERE.set(true);
    let done = work();
    ELSEWHERE.set(false);
    done
}

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
