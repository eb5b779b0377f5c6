//! A build with the feature `cuda`.

use candle_core::{Device, Result};

/// Opens card `ordinal` with a stream of its own.
///
/// Candle's usual device works through the per-thread stream, a handle that means the stream of whichever card the thread
/// last spoke to: with two cards, work of one lands in the other's. A stream of its own keeps all work of a card in one order,
/// so that cudarc need not track by events who uses which memory, which it would with two events a tensor.
pub fn open(ordinal: usize) -> Result<Device> {
    let device = Device::new_cuda_with_stream(ordinal)?;
    // SAFETY: without events nothing orders streams. All memory of this device is taken, used and freed through its one
    // stream, cuBLAS included; what crosses over to another card does so in `transfer::moved`, which waits for both.
    unsafe { device.as_cuda_device()?.disable_event_tracking() };
    // A card that has failed refuses everything, also to give back cuBLAS's handle, and cudarc's destructors panic at that. So
    // what was opened stays open until the process ends and its driver takes everything back.
    std::mem::forget(device.clone());
    Ok(device)
}

/// Bytes that the card's driver says are free.
pub fn available_bytes(device: &Device) -> Option<u64> {
    let (free, _) = device.as_cuda_device().ok()?.cuda_stream().context().mem_get_info().ok()?;
    Some(free as u64)
}
