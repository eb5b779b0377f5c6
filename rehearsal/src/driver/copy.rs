//! Allocations, frees, copies and memsets, on any stream. Follows the manual's section "API synchronization behavior": pageable host
//! memory is staged at once for uploads and waited for on downloads; page-locked memory is accessed when the stream reaches the copy.
#![allow(non_snake_case, reason = "the functions' names are CUDA's")]

use std::ffi::{c_uint, c_void};

use super::{Answer, Driver, ask_memory, export, give};
use crate::codes::{Refusal, cuda};
use crate::memory::{LARGE, Place, memory};
use crate::order::Op;
use crate::settings::settings;

/// Does the host wait for the copy, whatever the memory?
#[derive(Clone, Copy, PartialEq, Eq)]
enum Host {
    Waits,
    GoesOn,
}

export! {
    /// Allocates memory usable on every stream at once.
    fn cuMemAlloc_v2(at: *mut u64, bytes: usize) Context |driver| {
        let op = driver.order.on_host("cuMemAlloc");
        allocate(driver, &op, Place::Device(driver.here), bytes, at)
    }

    /// Allocates in stream order.
    fn cuMemAllocAsync(at: *mut u64, bytes: usize, stream: usize) Context |driver| {
        let op = driver.begin(stream, "cuMemAllocAsync")?;
        allocate(driver, &op, Place::Device(driver.here), bytes, at)
    }

    /// Waits for all work of the device, then frees.
    fn cuMemFree_v2(at: u64) Context |driver| {
        if at == 0 {
            return Ok(());
        }
        let here = driver.here;
        driver.order.finish_device(here);
        let op = driver.order.on_host("cuMemFree");
        free_now(driver, &op, at);
        Ok(())
    }

    /// Frees in stream order.
    fn cuMemFreeAsync(at: u64, stream: usize) Context |driver| {
        let op = driver.begin(stream, "cuMemFreeAsync")?;
        if at == 0 {
            return Err(Refusal::new(cuda::CUDA_ERROR_INVALID_VALUE, "a null pointer is freed on a stream"));
        }
        driver.trace(|| format!("free {at:#x}"));
        ask_memory(|memory| memory.forget("cuMemFreeAsync", at, driver.here));
        let then = op.clone();
        driver.order.submit(&op, move || ask_memory(|memory| memory.free(&then, at)));
        Ok(())
    }

    fn cuMemHostAlloc(at: *mut u64, bytes: usize, _flags: c_uint) Context |driver| {
        let op = driver.order.on_host("cuMemHostAlloc");
        allocate(driver, &op, Place::Host, bytes, at)
    }

    fn cuMemFreeHost(at: u64) Context |driver| {
        let here = driver.here;
        driver.order.finish_device(here);
        let op = driver.order.on_host("cuMemFreeHost");
        free_now(driver, &op, at);
        Ok(())
    }

    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) Context |driver| {
        upload(driver, "cuMemcpyHtoD", to, from, bytes, 0, Host::Waits)
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: usize) Context |driver| {
        upload(driver, "cuMemcpyHtoDAsync", to, from, bytes, stream, Host::GoesOn)
    }

    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) Context |driver| {
        download(driver, "cuMemcpyDtoH", to, from, bytes, 0, Host::Waits)
    }

    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: usize) Context |driver| {
        download(driver, "cuMemcpyDtoHAsync", to, from, bytes, stream, Host::GoesOn)
    }

    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) Context |driver| {
        across(driver, "cuMemcpyDtoD", to, from, bytes, 0)
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) Context |driver| {
        across(driver, "cuMemcpyDtoDAsync", to, from, bytes, stream)
    }

    /// Copy between devices. A stream handle belongs to the current context.
    fn cuMemcpyPeerAsync(to: u64, to_context: usize, from: u64, from_context: usize, bytes: usize,
        stream: usize) Context |driver|
    {
        for (at, context) in [(to, to_context), (from, from_context)] {
            let device = super::context::device_of(context)?;
            if bytes > 0 && Place::of(at) != Some(Place::Device(device)) {
                let why = format!("{at:#x} is no address of device {device}, whose context comes with it");
                return Err(Refusal::new(cuda::CUDA_ERROR_INVALID_VALUE, why));
            }
        }
        across(driver, "cuMemcpyPeerAsync", to, from, bytes, stream)
    }

    fn cuMemsetD8_v2(to: u64, value: u8, bytes: usize) Context |driver| {
        fill(driver, "cuMemsetD8", to, value, bytes, 0)
    }

    fn cuMemsetD8Async(to: u64, value: u8, bytes: usize, stream: usize) Context |driver| {
        fill(driver, "cuMemsetD8Async", to, value, bytes, stream)
    }
}

fn allocate(driver: &mut Driver, op: &Op, place: Place, bytes: usize, to: *mut u64) -> Answer {
    if bytes == 0 {
        return Err(Refusal::new(cuda::CUDA_ERROR_INVALID_VALUE, "an allocation of 0 bytes"));
    }
    let (at, usage) = {
        let mut memory = memory();
        (memory.allocate(op, place, bytes as u64), memory.devices[driver.here])
    };
    let Some(at) = at else {
        let why = format!("{bytes} bytes asked, {} of {} are free", usage.total - usage.held, usage.total);
        return Err(Refusal::expected(cuda::CUDA_ERROR_OUT_OF_MEMORY, why));
    };
    driver.trace(|| format!("{bytes} bytes at {at:#x}"));
    give(to, at)
}

fn free_now(driver: &Driver, op: &Op, at: u64) {
    ask_memory(|memory| {
        memory.forget(op.what, at, driver.here)?;
        memory.free(op, at)
    });
}

/// Without arithmetic, only small copies are made: they may hold indices.
fn moves(bytes: usize) -> bool {
    settings().arithmetic || (bytes as u64) < LARGE
}

/// Device memory is host memory, so all copies are.
fn copy(to: u64, from: u64, bytes: usize) {
    if moves(bytes) {
        // SAFETY: device ranges were checked against live allocations; the caller vouches for the host's. They may overlap.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
    }
}

/// Host address of a copy; a device address is an error, as in CUDA.
fn host_address(at: *const c_void) -> Result<(u64, bool), Refusal> {
    match Place::of(at as u64) {
        None if at.is_null() => {
            Err(Refusal::new(cuda::CUDA_ERROR_INVALID_VALUE, "the host's address is a null pointer"))
        }
        None => Ok((at as u64, false)),
        Some(Place::Host) => Ok((at as u64, true)),
        Some(place) => Err(Refusal::new(
            cuda::CUDA_ERROR_INVALID_VALUE,
            format!("{:#x} is an address of {place}, where one of the host belongs", at as u64),
        )),
    }
}

fn upload(
    driver: &mut Driver,
    what: &'static str,
    to: u64,
    from: *const c_void,
    bytes: usize,
    stream: usize,
    host: Host,
) -> Answer {
    driver.counts.to_device.add(bytes);
    driver.trace(|| format!("{bytes} bytes to {to:#x}"));
    let stream = driver.order.stream(stream, driver.here)?;
    if bytes == 0 {
        return Ok(());
    }
    let (from, page_locked) = host_address(from)?;
    let device = driver.order.device(stream);
    if host == Host::Waits {
        driver.order.finish(stream);
    }
    let op = driver.order.begin(stream, what);
    let then = op.clone();
    if page_locked || !settings().asynchronous {
        driver.order.submit(&op, move || {
            ask_memory(|memory| {
                if page_locked {
                    memory.access(&then, device, from, bytes as u64, false)?;
                }
                memory.access(&then, device, to, bytes as u64, true)
            });
            copy(to, from, bytes);
        });
        if page_locked && host == Host::Waits {
            driver.order.finish(stream);
        }
    } else {
        let staged = if moves(bytes) {
            // SAFETY: the caller vouches for its memory.
            unsafe { std::slice::from_raw_parts(from as *const u8, bytes) }.to_vec()
        } else {
            Vec::new()
        };
        driver.order.submit(&op, move || {
            ask_memory(|memory| memory.access(&then, device, to, bytes as u64, true));
            copy(to, staged.as_ptr() as u64, staged.len());
        });
    }
    Ok(())
}

fn download(
    driver: &mut Driver,
    what: &'static str,
    to: *mut c_void,
    from: u64,
    bytes: usize,
    stream: usize,
    host: Host,
) -> Answer {
    driver.counts.to_host.add(bytes);
    driver.trace(|| format!("{bytes} bytes from {from:#x}"));
    let stream = driver.order.stream(stream, driver.here)?;
    if bytes == 0 {
        return Ok(());
    }
    let (to, page_locked) = host_address(to)?;
    let device = driver.order.device(stream);
    let op = driver.order.begin(stream, what);
    let then = op.clone();
    driver.order.submit(&op, move || {
        ask_memory(|memory| {
            if page_locked {
                memory.access(&then, device, to, bytes as u64, true)?;
            }
            memory.access(&then, device, from, bytes as u64, false)
        });
        // SAFETY: the source was checked, the caller vouches for its own memory. Untouched memory reads as zeros.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
    });
    if !page_locked || host == Host::Waits {
        driver.order.finish(stream);
    }
    Ok(())
}

fn across(
    driver: &mut Driver,
    what: &'static str,
    to: u64,
    from: u64,
    bytes: usize,
    stream: usize,
) -> Answer {
    let counts = &mut driver.counts;
    if Place::of(to) == Place::of(from) {
        counts.on_device.add(bytes)
    } else {
        counts.between.add(bytes)
    }
    driver.trace(|| format!("{bytes} bytes from {from:#x} to {to:#x}"));
    let op = driver.begin(stream, what)?;
    if bytes == 0 {
        return Ok(());
    }
    let then = op.clone();
    driver.order.submit(&op, move || {
        ask_memory(|memory| {
            memory.access_anywhere(&then, from, bytes as u64, false)?;
            memory.access_anywhere(&then, to, bytes as u64, true)
        });
        copy(to, from, bytes);
    });
    Ok(())
}

fn fill(driver: &mut Driver, what: &'static str, to: u64, value: u8, bytes: usize, stream: usize) -> Answer {
    driver.counts.fills.add(bytes);
    driver.trace(|| format!("{bytes} bytes at {to:#x}"));
    let stream = driver.order.stream(stream, driver.here)?;
    if bytes == 0 {
        return Ok(());
    }
    let device = driver.order.device(stream);
    let op = driver.order.begin(stream, what);
    let then = op.clone();
    driver.order.submit(&op, move || {
        ask_memory(|memory| memory.access(&then, device, to, bytes as u64, true));
        if moves(bytes) {
            // SAFETY: the range was checked against live allocations.
            unsafe { std::ptr::write_bytes(to as *mut u8, value, bytes) };
        }
    });
    Ok(())
}
