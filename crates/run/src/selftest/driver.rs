//! Facts of a card from the CUDA driver, through Candle's bindings.

use std::ffi::c_void;
use std::sync::Arc;

use candle_core::Device;
use candle_core::cuda_backend::cudarc::driver::sys::CUmemPool_attribute;
use candle_core::cuda_backend::cudarc::driver::{CudaContext, result, sys};

use super::{DeviceFacts, module_version};

fn context(device: &Device) -> Option<Arc<CudaContext>> {
    Some(Arc::clone(device.as_cuda_device().ok()?.cuda_stream().context()))
}

pub(super) fn facts(device: &Device) -> Option<DeviceFacts> {
    let context = context(device)?;
    let (free, total) = context.mem_get_info().ok()?;
    let module = std::fs::read_to_string("/proc/driver/nvidia/version").ok();
    Some(DeviceFacts {
        device: String::new(),
        card: Some(context.name().ok()?),
        memory: Some(total as u64),
        memory_free: Some(free as u64),
        compute_capability: Some(context.compute_capability().ok()?),
        driver: module.as_deref().and_then(module_version),
        cuda: newest_cuda(),
        pool: Some(context.has_async_alloc()),
    })
}

fn newest_cuda() -> Option<(i32, i32)> {
    let mut version = 0;
    // SAFETY: the driver writes one int to where it is told.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result().ok()?;
    Some((version / 1000, version % 1000 / 10))
}

/// The device's memory pool, if any.
fn pool(context: &CudaContext) -> Option<sys::CUmemoryPool> {
    if !context.has_async_alloc() {
        return None;
    }
    context.bind_to_thread().ok()?;
    // SAFETY: the device is the one that the context was made for, and it has pools.
    unsafe { result::device::get_mem_pool(context.cu_device()) }.ok()
}

/// Peak bytes since [`forget_most_used`]: the pool's high-water mark. Excludes the context, loaded kernels and cuBLAS workspaces.
pub(super) fn most_used(device: &Device) -> Option<u64> {
    let pool = pool(context(device)?.as_ref())?;
    let mut bytes = 0u64;
    let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH;
    // SAFETY: the pool is the device's own, and this attribute is a u64.
    unsafe { result::mem_pool::get_attribute(pool, attribute, (&raw mut bytes).cast::<c_void>()) }.ok()?;
    Some(bytes)
}

/// Resets the high-water mark to current usage.
pub(super) fn forget_most_used(device: &Device) -> Option<()> {
    let pool = pool(context(device)?.as_ref())?;
    let mut zero = 0u64;
    let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH;
    // SAFETY: the pool is the device's own, this attribute is a u64, and 0 is the one value that it may be set to.
    unsafe { result::mem_pool::set_attribute(pool, attribute, (&raw mut zero).cast::<c_void>()) }.ok()
}
