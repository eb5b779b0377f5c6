//! What a profiler would count, told at exit: as a table on stderr (`REHEARSAL_STATS`) and as JSON in a file
//! (`REHEARSAL_REPORT`). The driver's calls count; this module only prints, and gives a program in which
//! unordered streams were found its exit status.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use crate::driver::{Driver, driver_if_idle};
use crate::memory::{Usage, memory_if_idle};
use crate::settings::settings;
use crate::stop;

/// Calls of one kind with the bytes they moved.
#[derive(Clone, Copy, Default)]
pub struct Moved {
    /// Calls.
    pub calls: u64,
    /// Bytes of all of them.
    pub bytes: u64,
}

impl Moved {
    /// Counts one call.
    pub fn add(&mut self, bytes: usize) {
        self.calls += 1;
        self.bytes += bytes as u64;
    }
}

/// Launches of a kernel, or products of a type.
#[derive(Clone, Copy, Default)]
pub struct Count {
    /// How many.
    pub calls: u64,
    /// Floating-point operations, of products.
    pub flops: u64,
}

/// What the driver counts besides calls by name and what [`crate::order`] and [`crate::memory`] count.
#[derive(Default)]
pub struct Counts {
    /// By kernel.
    pub launches: BTreeMap<&'static str, Count>,
    /// By type of the operands.
    pub products: BTreeMap<&'static str, Count>,
    /// Copies from the host.
    pub to_device: Moved,
    /// Copies to the host.
    pub to_host: Moved,
    /// Copies on a card.
    pub on_device: Moved,
    /// Copies between cards.
    pub between: Moved,
    /// Fills.
    pub fills: Moved,
}

static SPENT: LazyLock<Mutex<BTreeMap<&'static str, Duration>>> = LazyLock::new(Mutex::default);

/// Counts the time that a kernel or a product took here; it says nothing about a card.
pub fn spent(name: &'static str, time: Duration) {
    *SPENT.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default() += time;
}

fn seconds(name: &str) -> f64 {
    SPENT.lock().unwrap_or_else(PoisonError::into_inner).get(name).map_or(0.0, Duration::as_secs_f64)
}

static STARTED: AtomicBool = AtomicBool::new(false);

/// Has the report written at exit; called when the driver is first used.
pub fn at_exit() {
    extern "C" fn end() {
        if write() > 0 {
            stop::exit(stop::FAULT);
        }
    }
    if !STARTED.swap(true, Ordering::SeqCst) {
        // SAFETY: registers a function of this library, which is never unloaded: it is linked, not loaded by
        // name.
        unsafe { libc::atexit(end) };
    }
}

/// Writes the report; gives the number of unordered uses.
fn write() -> u64 {
    let settings = settings();
    // A program may end while another of its threads is in a call; then there is less to tell.
    let Some(mut driver) = driver_if_idle() else {
        if settings.stats || settings.report.is_some() {
            stop::say("the program ended within a call: there is no report");
        }
        return memory_if_idle().map_or(0, |memory| memory.unordered);
    };
    // What is still queued is checked too.
    driver.order.finish_all();
    let (devices, unordered) =
        memory_if_idle().map_or_else(Default::default, |m| (m.devices.clone(), m.unordered));
    if unordered > 0 {
        stop::say(&format!(
            "{unordered} uses of memory by streams that nothing orders: the exit status is {}",
            stop::FAULT
        ));
    }
    for plan in driver.faults.unmet() {
        stop::say(&format!("REHEARSAL_FAIL: {plan} was never called so often, nothing failed for it"));
    }
    if settings.stats {
        stop::say(&table(&driver, &devices));
    }
    if let Some(path) = &settings.report
        && let Err(why) = std::fs::write(path, json(&driver, &devices, unordered))
    {
        stop::say(&format!("REHEARSAL_REPORT={}: {why}", path.display()));
    }
    unordered
}

fn moves(driver: &Driver) -> [(&'static str, Moved); 5] {
    let counts = &driver.counts;
    [
        ("to_device", counts.to_device),
        ("to_host", counts.to_host),
        ("on_device", counts.on_device),
        ("between_devices", counts.between),
        ("fills", counts.fills),
    ]
}

fn table(driver: &Driver, devices: &[Usage]) -> String {
    let mut out = String::from("counts\n");
    let mut line = |text: String| {
        let _ = writeln!(out, "  {text}");
    };
    for (device, usage) in devices.iter().enumerate() {
        line(format!(
            "device {device}: peak {} of {} bytes ({} asked for), live {}, allocations {}, refused {}",
            usage.held_peak, usage.total, usage.peak, usage.live, usage.allocations, usage.refused
        ));
    }
    for (name, moved) in moves(driver) {
        line(format!("{name:<40} {:>8} calls {:>16} bytes", moved.calls, moved.bytes));
    }
    let waits = driver.order.counts;
    line(format!(
        "synchronisations {}, event records {}, event waits {}",
        waits.synchronisations, waits.records, waits.waits
    ));
    for (name, count) in &driver.counts.products {
        let billions = count.flops as f64 / 1e9;
        line(format!("{name:<40} {:>8} calls {billions:>12.3} Gflop {:>9.3} s", count.calls, seconds(name)));
    }
    let mut launches: Vec<_> = driver.counts.launches.iter().collect();
    launches.sort_by_key(|(_, count)| std::cmp::Reverse(count.calls));
    let all: u64 = launches.iter().map(|(_, count)| count.calls).sum();
    line(format!("{:<40} {all:>8} launches", "all kernels"));
    for (name, count) in launches {
        line(format!("{name:<40} {:>8} launches {:>9.3} s", count.calls, seconds(name)));
    }
    for failure in &driver.faults.made {
        line(format!("made to fail: {failure}"));
    }
    out.truncate(out.trim_end().len());
    out
}

fn json(driver: &Driver, devices: &[Usage], unordered: u64) -> String {
    let object = |fields: Vec<(String, String)>| {
        let fields: Vec<_> =
            fields.iter().map(|(name, value)| format!("{}: {value}", quoted(name))).collect();
        format!("{{{}}}", fields.join(", "))
    };
    let device = |usage: &Usage| {
        object(
            [
                ("total_bytes", usage.total),
                ("peak_bytes", usage.held_peak),
                ("peak_asked_bytes", usage.peak),
                ("live_bytes", usage.live),
                ("allocations", usage.allocations),
                ("refused", usage.refused),
                ("freed_while_another_device_was_current", usage.freed_elsewhere),
            ]
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .to_vec(),
        )
    };
    let devices: Vec<_> = devices.iter().map(device).collect();
    let copies = moves(driver).map(|(name, moved)| {
        (name.to_string(), format!("{{\"calls\": {}, \"bytes\": {}}}", moved.calls, moved.bytes))
    });
    let counted = |(name, count): (&&str, &Count)| {
        let flops = if count.flops > 0 { format!(", \"flops\": {}", count.flops) } else { String::new() };
        let seconds = seconds(name);
        ((*name).to_string(), format!("{{\"calls\": {}{flops}, \"seconds\": {seconds:.6}}}", count.calls))
    };
    let waits = driver.order.counts;
    let all: u64 = driver.counts.launches.values().map(|count| count.calls).sum();
    let fields = [
        ("devices", format!("[{}]", devices.join(", "))),
        ("launches", all.to_string()),
        ("kernels", object(driver.counts.launches.iter().map(counted).collect())),
        ("products", object(driver.counts.products.iter().map(counted).collect())),
        ("copies", object(copies.to_vec())),
        ("synchronisations", waits.synchronisations.to_string()),
        ("event_records", waits.records.to_string()),
        ("event_waits", waits.waits.to_string()),
        ("unordered", unordered.to_string()),
        (
            "calls",
            object(
                driver.faults.calls.iter().map(|(n, count)| ((*n).to_string(), count.to_string())).collect(),
            ),
        ),
        (
            "failed",
            format!(
                "[{}]",
                driver.faults.made.iter().map(|made| quoted(made)).collect::<Vec<_>>().join(", ")
            ),
        ),
    ];
    let fields: Vec<_> = fields.iter().map(|(name, value)| format!("  {}: {value}", quoted(name))).collect();
    format!("{{\n{}\n}}\n", fields.join(",\n"))
}

/// A JSON string. Kernels' names come from PTX and need little.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if (c as u32) < 32 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
