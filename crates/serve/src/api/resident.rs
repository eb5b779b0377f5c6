//! Resident memory of the process. A thread returns freed pages to the system: the allocator keeps them for the next forward pass.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::app::App;

const LOOK: Duration = Duration::from_millis(500);

/// Released request bytes that trigger a trim.
const MUCH: u64 = 32 << 20;
const PAUSE: Duration = Duration::from_secs(2);

/// Free allocator bytes tolerated while idle, besides those of a forward pass.
const SPARE: u64 = 128 << 20;

/// Trims periodically while the server lives.
pub fn keep(app: &Arc<App>) {
    let app = Arc::downgrade(app);
    let _ = thread::Builder::new().name("memory".to_owned()).spawn(move || watch(&app));
}

fn watch(app: &Weak<App>) {
    let (mut last, mut freed, mut quiet, mut busy) = (Instant::now(), 0, false, true);
    loop {
        thread::sleep(LOOK);
        let Some(app) = app.upgrade() else { return };
        let (now, stands) = (app.memory.freed(), app.resident());
        let idle = app.under_way() == 0 && stands.requests == 0;
        busy |= !idle || now > freed;
        let resident = stands.resident.unwrap_or(0);
        let spare = stands.kept + app.memory.plan().activations + SPARE;
        let after_requests = now - freed >= MUCH && last.elapsed() >= PAUSE;
        let left = idle && quiet && busy && resident > spare;
        let too_much = resident > stands.planned && last.elapsed() >= 2 * PAUSE;
        quiet = idle;
        if after_requests || left || too_much {
            drop(app);
            trim();
            (last, freed, busy) = (Instant::now(), now, !idle);
        }
    }
}

/// Returns free pages to the system.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn trim() {
    // SAFETY: it takes a number and the allocator's own locks.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators do so by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn trim() {}
