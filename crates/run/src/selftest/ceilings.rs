//! Rates that a device reaches in a copy and in a large matrix product, beside which the kernels' rates are told.

use std::time::{Duration, Instant};

use candle_core::{DType, Device, Result, Tensor};
use serde::Serialize;

use super::machine::DeviceFacts;

/// Bytes of the copied tensor, and rows and columns of the product: on a card, and on the CPU or a device that only pretends.
const CARD: (usize, usize) = (1 << 30, 8192);
const SMALL: (usize, usize) = (1 << 24, 512);
/// The best of as many runs as fit into this time.
const FOR: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ceilings {
    pub dtype: &'static str,
    /// Operations per second of a square product.
    pub product: f64,
    /// Bytes per second, read and written, of a copy within the device.
    pub copy: f64,
}

impl Ceilings {
    /// `None` if the device cannot do it, for example for lack of memory.
    pub fn of(device: &Device, facts: &DeviceFacts, dtype: DType) -> Option<Self> {
        let (bytes, n) = if device.is_cpu() || facts.pretends() { SMALL } else { CARD };
        let measure = || -> Result<Self> {
            let elements = bytes / dtype.size_in_bytes();
            let copied = Tensor::ones(elements, dtype, device)?;
            let copy = best(device, || copied.copy())?;
            drop(copied);
            let factor = Tensor::ones((n, n), dtype, device)?;
            let product = best(device, || factor.matmul(&factor))?;
            drop(factor);
            // The driver's pool gives back what is free.
            device.synchronize()?;
            Ok(Ceilings {
                dtype: dtype.as_str(),
                product: 2.0 * (n as f64).powi(3) / product,
                copy: 2.0 * bytes as f64 / copy,
            })
        };
        measure().inspect_err(|error| tracing::warn!(%error, "no rates of this device were measured")).ok()
    }
}

/// Seconds of the fastest run, after one that does not count.
fn best(device: &Device, run: impl Fn() -> Result<Tensor>) -> Result<f64> {
    let timed = || -> Result<f64> {
        device.synchronize()?;
        let start = Instant::now();
        let made = run()?;
        device.synchronize()?;
        let seconds = start.elapsed().as_secs_f64();
        drop(made);
        Ok(seconds)
    };
    timed()?;
    let (start, mut least) = (Instant::now(), timed()?);
    while start.elapsed() < FOR {
        least = least.min(timed()?);
    }
    Ok(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_in_operations_and_bytes_a_second() {
        let facts = DeviceFacts::of(&Device::Cpu);
        let found = Ceilings::of(&Device::Cpu, &facts, DType::F32);
        // From a thousandth of a slow CPU to beyond any: a wrong unit is a factor of a thousand and more.
        assert!(found.is_some_and(|c| (1e7..1e15).contains(&c.product) && (1e6..1e14).contains(&c.copy)));
    }
}
