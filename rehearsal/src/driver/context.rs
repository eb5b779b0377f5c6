//! Devices, contexts, error names. Each device has its primary context only.
#![allow(non_snake_case, reason = "the functions' names are CUDA's")]

use std::ffi::{c_char, c_int, c_uint};

use super::{Answer, CURRENT, Driver, ask_memory, export, give};
use crate::codes::{Refusal, cuda};
use crate::memory::memory;
use crate::settings::settings;

/// Context handle: this plus 16 × device number.
const CONTEXT: usize = 0xC0DE_0000;

pub(super) fn device_of(context: usize) -> Result<usize, Refusal> {
    let device = context.wrapping_sub(CONTEXT) / 16;
    if context >= CONTEXT && context.is_multiple_of(16) && device < settings().devices {
        return Ok(device);
    }
    Err(Refusal::new(cuda::CUDA_ERROR_INVALID_CONTEXT, format!("{context:#x} is no context")))
}

fn checked(device: c_int) -> Result<usize, Refusal> {
    usize::try_from(device).ok().filter(|device| *device < settings().devices).ok_or_else(|| {
        let there = settings().devices;
        Refusal::expected(
            cuda::CUDA_ERROR_INVALID_DEVICE,
            format!("there is no device {device}; REHEARSAL_DEVICES gives {there}"),
        )
    })
}

/// Device attributes of an A100, numbered by `CUdevice_attribute`.
fn attribute(number: c_int) -> Option<c_int> {
    let (major, minor) = settings().compute_cap;
    let shared_most = super::module::shared_most((major, minor));
    Some(match number {
        1 => 1024,        // MAX_THREADS_PER_BLOCK
        2 | 3 => 1024,    // MAX_BLOCK_DIM_X, _Y
        4 => 64,          // MAX_BLOCK_DIM_Z
        5 => 0x7FFF_FFFF, // MAX_GRID_DIM_X
        6 | 7 => 65535,   // MAX_GRID_DIM_Y, _Z
        8 => 49152,       // MAX_SHARED_MEMORY_PER_BLOCK
        9 => 65536,       // TOTAL_CONSTANT_MEMORY
        10 => 32,         // WARP_SIZE
        12 => 65536,      // MAX_REGISTERS_PER_BLOCK
        16 => 108,        // MULTIPROCESSOR_COUNT
        31 => 1,          // CONCURRENT_KERNELS
        39 => 2048,       // MAX_THREADS_PER_MULTIPROCESSOR
        41 => 1,          // UNIFIED_ADDRESSING
        75 => major,      // COMPUTE_CAPABILITY_MAJOR
        76 => minor,      // COMPUTE_CAPABILITY_MINOR
        // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: on Turing a block may use all of it, elsewhere all but 1 KiB.
        81 if major == 7 => shared_most as c_int,
        81 => shared_most as c_int + 1024,
        97 => shared_most as c_int, // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        115 => 1,                   // MEMORY_POOLS_SUPPORTED
        _ => return None,
    })
}

export! {
    fn cuInit(_flags: c_uint) Nothing |_| { Ok(()) }

    /// CUDA version of the driver: that of the headers it was written against.
    fn cuDriverGetVersion(version: *mut c_int) Nothing |_| { give(version, 13000) }

    fn cuDeviceGetCount(count: *mut c_int) Nothing |_| { give(count, settings().devices as c_int) }

    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) Nothing |_| {
        give(device, checked(ordinal)? as c_int)
    }

    fn cuDeviceGetName(name: *mut c_char, room: c_int, device: c_int) Nothing |_| {
        checked(device)?;
        let text = b"Rehearsal (no GPU)";
        let Some(room) = usize::try_from(room).ok().filter(|room| *room > 0 && !name.is_null()) else {
            return Err(Refusal::new(cuda::CUDA_ERROR_INVALID_VALUE, "there is no room for the name"));
        };
        let length = text.len().min(room - 1);
        // SAFETY: the caller vouches for `room` bytes at `name`.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), name, length);
            name.add(length).write(0);
        }
        Ok(())
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) Nothing |_| {
        checked(device)?;
        give(bytes, settings().memory as usize)
    }

    fn cuDeviceGetAttribute(value: *mut c_int, number: c_int, device: c_int) Nothing |_| {
        checked(device)?;
        let found = attribute(number).ok_or_else(|| Refusal::new(
            cuda::CUDA_ERROR_INVALID_VALUE,
            format!("attribute {number} is not known here; add it to rehearsal/src/driver/context.rs"),
        ))?;
        give(value, found)
    }

    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) Nothing |_| {
        let mut bytes = *b"rehearsal card 0";
        bytes[15] += checked(device)? as u8;
        give(uuid, bytes)
    }

    fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) Nothing |driver| {
        let device = checked(device)?;
        give(context, CONTEXT + 16 * device)?;
        driver.retained[device] += 1;
        Ok(())
    }

    /// Releases a primary context. The last release destroys it and frees all memory of the device.
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) Nothing |driver| {
        let device = checked(device)?;
        release(driver, device)
    }

    /// Destroys a non-primary context; there are none here.
    fn cuCtxDestroy_v2(context: usize) Nothing |_| {
        let why = format!("{context:#x} is a primary context, or none; it is released, not destroyed");
        Err(Refusal::new(cuda::CUDA_ERROR_INVALID_CONTEXT, why))
    }

    fn cuCtxSetCurrent(context: usize) Nothing |_| {
        CURRENT.set(if context == 0 { 0 } else { device_of(context)? + 1 });
        Ok(())
    }

    fn cuCtxGetCurrent(context: *mut usize) Nothing |_| {
        give(context, CURRENT.get().checked_sub(1).map_or(0, |device| CONTEXT + 16 * device))
    }

    fn cuCtxGetDevice(device: *mut c_int) Context |driver| { give(device, driver.here as c_int) }

    fn cuCtxSynchronize() Context |driver| {
        driver.order.counts.synchronisations += 1;
        let here = driver.here;
        driver.order.finish_device(here);
        Ok(())
    }

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) Context |driver| {
        let usage = memory().devices[driver.here];
        give(free, (usage.total - usage.held) as usize)?;
        give(total, usage.total as usize)
    }

    /// The default memory pool of a device; its handle is the device number plus 1.
    fn cuDeviceGetMemPool(pool: *mut usize, device: c_int) Nothing |_| {
        give(pool, device as usize + 1)
    }

    /// Peak bytes used in a pool (`USED_MEM_HIGH`); no other attribute is supported.
    fn cuMemPoolGetAttribute(pool: usize, attribute: c_int, value: *mut u64) Nothing |_| {
        match (memory().devices.get(pool.wrapping_sub(1)), attribute) {
            (Some(usage), USED_MEM_HIGH) => give(value, usage.mark),
            _ => Err(no_pool(pool, attribute)),
        }
    }

    /// Resets `USED_MEM_HIGH` to the bytes in use; the value must be 0. The report's peak is unaffected.
    fn cuMemPoolSetAttribute(pool: usize, attribute: c_int, _value: *mut u64) Nothing |_| {
        match (memory().devices.get_mut(pool.wrapping_sub(1)), attribute) {
            (Some(usage), USED_MEM_HIGH) => {
                usage.mark = usage.live;
                Ok(())
            }
            _ => Err(no_pool(pool, attribute)),
        }
    }

    fn cuGetErrorName(error: c_int, name: *mut *const c_char) Nothing |_| {
        let entry = named(error)?;
        give(name, entry.2.as_ptr())
    }

    fn cuGetErrorString(error: c_int, text: *mut *const c_char) Nothing |_| {
        let entry = named(error)?;
        give(text, entry.3.as_ptr())
    }
}

/// `CU_MEMPOOL_ATTR_USED_MEM_HIGH`.
const USED_MEM_HIGH: c_int = 8;

fn no_pool(pool: usize, attribute: c_int) -> Refusal {
    Refusal::new(cuda::CUDA_ERROR_INVALID_VALUE, format!("attribute {attribute} of the memory pool {pool}"))
}

fn named(error: c_int) -> Result<&'static crate::codes::Code, Refusal> {
    cuda::ALL.iter().find(|entry| entry.0 == error).ok_or_else(|| {
        Refusal::new(
            cuda::CUDA_ERROR_INVALID_VALUE,
            format!("{error} is not an error that the rehearsal gives"),
        )
    })
}

fn release(driver: &mut Driver, device: usize) -> Answer {
    let Some(left) = driver.retained[device].checked_sub(1) else {
        return Err(Refusal::new(cuda::CUDA_ERROR_INVALID_CONTEXT, "the context was released before"));
    };
    driver.retained[device] = left;
    if left == 0 {
        driver.order.finish_device(device);
        let op = driver.order.on_host("cuDevicePrimaryCtxRelease_v2");
        ask_memory(|memory| memory.free_all(&op, device));
    }
    Ok(())
}
