//! CUDA devices.

use candle_core::{Device, Result};

/// Opens device `ordinal` with its own stream.
///
/// Candle's default uses the per-thread stream, which follows the device the thread last used: with two devices work lands on the wrong
/// one. A single stream orders all work of a device, so cudarc's event tracking (two events per tensor) is unnecessary.
pub fn open(ordinal: usize) -> Result<Device> {
    #[cfg(feature = "dynamic-loading")]
    if let Some((library, of)) = missing() {
        candle_core::bail!("{library} is not on this machine, or not where the loader looks: install {of}")
    }
    let device = Device::new_cuda_with_stream(ordinal)?;
    // SAFETY: without events nothing orders streams. All memory of this device is allocated, used and freed on its one stream, cuBLAS
    // included; copies to another device go through `transfer::moved`, which synchronises both.
    unsafe { device.as_cuda_device()?.disable_event_tracking() };
    // After a device failure even freeing the cuBLAS handle fails, and cudarc's destructors panic. Leak the device instead.
    std::mem::forget(device.clone());
    Ok(device)
}

/// The first library that is missing, and what has it. cudarc, which loads them at their first use (`scripts/cuda.toml`), would panic.
#[cfg(feature = "dynamic-loading")]
fn missing() -> Option<(&'static str, &'static str)> {
    use candle_core::cuda_backend::cudarc::{cublas, curand, driver};
    // SAFETY: runs the libraries' initialisers, as their first use would.
    unsafe {
        if !driver::sys::is_culib_present() {
            return Some(("libcuda.so.1", "NVIDIA's driver"));
        }
        if !cublas::sys::is_culib_present() {
            return Some((
                "libcublas.so",
                "the CUDA toolkit's libraries, or name their folder in LD_LIBRARY_PATH",
            ));
        }
        if !curand::sys::is_culib_present() {
            return Some((
                "libcurand.so",
                "the CUDA toolkit's libraries, or name their folder in LD_LIBRARY_PATH",
            ));
        }
    }
    None
}

/// Free bytes reported by the driver.
pub fn available_bytes(device: &Device) -> Option<u64> {
    let (free, _) = device.as_cuda_device().ok()?.cuda_stream().context().mem_get_info().ok()?;
    Some(free as u64)
}
