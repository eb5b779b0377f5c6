//! At process exit: writes the report, and sets the exit status if unordered memory uses were found.

use std::sync::atomic::{AtomicBool, Ordering};

use super::idle;
use crate::memory::memory_if_idle;
use crate::report::{Report, json, table};
use crate::settings::settings;
use crate::{console, stop};

static STARTED: AtomicBool = AtomicBool::new(false);

/// Registers the exit handler; called at first use of the driver.
pub(super) fn at_exit() {
    extern "C" fn end() {
        if write() > 0 {
            console::exit(stop::FAULT);
        }
    }
    if !STARTED.swap(true, Ordering::SeqCst) {
        // SAFETY: registers a function of this library, which is never unloaded: it is linked, not loaded by name.
        unsafe { libc::atexit(end) };
    }
}

fn write() -> u64 {
    let settings = settings();
    // Another thread may be inside a call at exit; then the report is skipped.
    let Some(mut driver) = idle() else {
        if settings.stats || settings.report.is_some() {
            console::say("the program ended within a call: there is no report");
        }
        return memory_if_idle().map_or(0, |memory| memory.unordered);
    };
    driver.order.finish_all();
    let (devices, unordered) =
        memory_if_idle().map_or_else(Default::default, |m| (m.devices.clone(), m.unordered));
    let report = Report {
        counts: &driver.counts,
        waits: driver.order.counts,
        faults: &driver.faults,
        devices: &devices,
        unordered,
    };
    if unordered > 0 {
        console::say(&format!(
            "{unordered} uses of memory by streams that nothing orders: the exit status is {}",
            stop::FAULT
        ));
    }
    for plan in driver.faults.unmet() {
        console::say(&format!("REHEARSAL_FAIL: {plan} was never called so often, nothing failed for it"));
    }
    if settings.stats {
        console::say(&table(&report));
    }
    if let Some(path) = &settings.report
        && let Err(why) = std::fs::write(path, json(&report))
    {
        console::say(&format!("REHEARSAL_REPORT={}: {why}", path.display()));
    }
    unordered
}
