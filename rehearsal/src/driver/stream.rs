//! Streams and events, as [`crate::order`] keeps them.
#![allow(non_snake_case, reason = "the functions' names are CUDA's")]

use std::ffi::{c_int, c_uint};

use super::{export, give};
use crate::codes::{Refusal, cuda};

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: c_uint = 2;

export! {
    fn cuStreamCreate(stream: *mut usize, flags: c_uint) Context |driver| {
        let here = driver.here;
        give(stream, driver.order.create_stream(here, flags & NON_BLOCKING != 0))
    }

    /// Creates a stream; priorities are ignored.
    fn cuStreamCreateWithPriority(stream: *mut usize, flags: c_uint, _priority: c_int) Context |driver| {
        let here = driver.here;
        give(stream, driver.order.create_stream(here, flags & NON_BLOCKING != 0))
    }

    /// Destroys a stream; queued work still runs.
    fn cuStreamDestroy_v2(stream: usize) Context |driver| {
        let here = driver.here;
        driver.order.destroy_stream(stream, here)
    }

    fn cuStreamSynchronize(stream: usize) Context |driver| {
        driver.order.counts.synchronisations += 1;
        let stream = driver.order.stream(stream, driver.here)?;
        driver.order.finish(stream);
        Ok(())
    }

    /// A stream waits for an event of any device.
    fn cuStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) Context |driver| {
        let stream = driver.order.stream(stream, driver.here)?;
        driver.order.wait(stream, event)
    }

    /// Graph capture status: always none.
    fn cuStreamIsCapturing(stream: usize, status: *mut c_int) Context |driver| {
        driver.order.stream(stream, driver.here)?;
        give(status, 0)
    }

    fn cuEventCreate(event: *mut usize, flags: c_uint) Context |driver| {
        let here = driver.here;
        give(event, driver.order.create_event(here, flags & DISABLE_TIMING == 0))
    }

    fn cuEventDestroy_v2(event: usize) Context |driver| { driver.order.destroy_event(event) }

    fn cuEventRecord(event: usize, stream: usize) Context |driver| {
        let stream = driver.order.stream(stream, driver.here)?;
        driver.order.record(event, stream)
    }

    fn cuEventSynchronize(event: usize) Context |driver| {
        driver.order.counts.synchronisations += 1;
        driver.order.finish_event(event)
    }

    fn cuEventQuery(event: usize) Context |driver| {
        if driver.order.query(event)? {
            return Ok(());
        }
        Err(Refusal::expected(cuda::CUDA_ERROR_NOT_READY, "the event's work is still to run"))
    }

    fn cuEventElapsedTime(milliseconds: *mut f32, start: usize, end: usize) Context |driver| {
        give(milliseconds, driver.order.elapsed(start, end)?)
    }

    fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: usize, end: usize) Context |driver| {
        give(milliseconds, driver.order.elapsed(start, end)?)
    }
}
