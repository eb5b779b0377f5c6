//! Counts of launches, products and copies, and the time of kernels and products.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

/// Calls of one kind and their bytes.
#[derive(Clone, Copy, Default)]
pub struct Moved {
    /// Number of calls.
    pub calls: u64,
    /// Total bytes.
    pub bytes: u64,
}

impl Moved {
    /// Counts one call.
    pub fn add(&mut self, bytes: usize) {
        self.calls += 1;
        self.bytes += bytes as u64;
    }
}

/// Launches of a kernel, or products of a dtype.
#[derive(Clone, Copy, Default)]
pub struct Count {
    /// Number of calls.
    pub calls: u64,
    /// Floating-point operations; products only.
    pub flops: u64,
}

/// Counters of the driver. [`crate::order`] and [`crate::memory`] keep their own.
#[derive(Default)]
pub struct Counts {
    /// By kernel.
    pub launches: BTreeMap<&'static str, Count>,
    /// By operand dtype.
    pub products: BTreeMap<&'static str, Count>,
    /// Host to device.
    pub to_device: Moved,
    /// Device to host.
    pub to_host: Moved,
    /// Within a device.
    pub on_device: Moved,
    /// Between devices.
    pub between: Moved,
    /// Memsets.
    pub fills: Moved,
}

static SPENT: LazyLock<Mutex<BTreeMap<&'static str, Duration>>> = LazyLock::new(Mutex::default);

/// Adds to the time of a kernel or product. Says nothing about a real GPU.
pub fn spent(name: &'static str, time: Duration) {
    *SPENT.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default() += time;
}

/// Total seconds of a kernel or product.
pub fn seconds(name: &str) -> f64 {
    SPENT.lock().unwrap_or_else(PoisonError::into_inner).get(name).map_or(0.0, Duration::as_secs_f64)
}
