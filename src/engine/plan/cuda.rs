//! Free memory of a CUDA card. Built with the feature `cuda` only.

use candle_core::Device;

/// Bytes that the card's driver says are free.
pub fn available_bytes(device: &Device) -> Option<u64> {
    let (free, _) = device.as_cuda_device().ok()?.cuda_stream().context().mem_get_info().ok()?;
    Some(free as u64)
}
