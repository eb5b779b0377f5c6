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
    /// Creates a stream.
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

    /// The host waits for a stream.
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

    /// Creates an event.
    fn cuEventCreate(event: *mut usize, flags: c_uint) Context |driver| {
        let here = driver.here;
        give(event, driver.order.create_event(here, flags & DISABLE_TIMING == 0))
    }

    /// Destroys an event.
    fn cuEventDestroy_v2(event: usize) Context |driver| { driver.order.destroy_event(event) }

    /// Records an event.
    fn cuEventRecord(event: usize, stream: usize) Context |driver| {
        let stream = driver.order.stream(stream, driver.here)?;
        driver.order.record(event, stream)
    }

    /// The host waits for an event.
    fn cuEventSynchronize(event: usize) Context |driver| {
        driver.order.counts.synchronisations += 1;
        driver.order.finish_event(event)
    }

    /// Has the event completed?
    fn cuEventQuery(event: usize) Context |driver| {
        if driver.order.query(event)? {
            return Ok(());
        }
        Err(Refusal::expected(cuda::CUDA_ERROR_NOT_READY, "the event's work is still to run"))
    }

    /// Milliseconds between two events.
    fn cuEventElapsedTime(milliseconds: *mut f32, start: usize, end: usize) Context |driver| {
        give(milliseconds, driver.order.elapsed(start, end)?)
    }

    /// Milliseconds between two events.
    fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: usize, end: usize) Context |driver| {
        give(milliseconds, driver.order.elapsed(start, end)?)
    }
}
