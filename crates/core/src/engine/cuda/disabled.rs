//! Stub without the feature `cuda`.

use candle_core::{Device, Result};

/// Always fails: CUDA is not compiled in.
pub fn open(ordinal: usize) -> Result<Device> {
    Device::new_cuda(ordinal)
}

/// Always `None`.
pub fn available_bytes(_device: &Device) -> Option<u64> {
    None
}
