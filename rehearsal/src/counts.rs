//! Counts of launches, products and copies, and the time that kernels and products took.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

/// Calls of one kind with the bytes they moved.
#[derive(Clone, Copy, Default)]
pub struct Moved {
    /// Calls.
    pub calls: u64,
    /// Bytes of all of them.
    pub bytes: u64,
}

impl Moved {
    /// Counts one call.
    pub fn add(&mut self, bytes: usize) {
        self.calls += 1;
        self.bytes += bytes as u64;
    }
}

/// Launches of a kernel, or products of a type.
#[derive(Clone, Copy, Default)]
pub struct Count {
    /// How many.
    pub calls: u64,
    /// Floating-point operations, of products.
    pub flops: u64,
}

/// What the driver counts besides calls by name and what [`crate::order`] and [`crate::memory`] count.
#[derive(Default)]
pub struct Counts {
    /// By kernel.
    pub launches: BTreeMap<&'static str, Count>,
    /// By type of the operands.
    pub products: BTreeMap<&'static str, Count>,
    /// Copies from the host.
    pub to_device: Moved,
    /// Copies to the host.
    pub to_host: Moved,
    /// Copies on a card.
    pub on_device: Moved,
    /// Copies between cards.
    pub between: Moved,
    /// Fills.
    pub fills: Moved,
}

static SPENT: LazyLock<Mutex<BTreeMap<&'static str, Duration>>> = LazyLock::new(Mutex::default);

/// Counts the time that a kernel or a product took here; it says nothing about a card.
pub fn spent(name: &'static str, time: Duration) {
    *SPENT.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default() += time;
}

/// The seconds that it took.
pub fn seconds(name: &str) -> f64 {
    SPENT.lock().unwrap_or_else(PoisonError::into_inner).get(name).map_or(0.0, Duration::as_secs_f64)
}
