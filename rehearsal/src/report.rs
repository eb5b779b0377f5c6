//! Profile counters, as a table (`REHEARSAL_STATS`) and as JSON (`REHEARSAL_REPORT`).

use std::fmt::Write;

use crate::counts::{Count, Counts, Moved, seconds};
use crate::faults::Faults;
use crate::memory::Usage;
use crate::order;

/// Contents of a report.
pub struct Report<'a> {
    /// Launches, products and copies.
    pub counts: &'a Counts,
    /// Synchronisations and events.
    pub waits: order::Counts,
    /// Call counts and injected failures.
    pub faults: &'a Faults,
    /// Memory of each device.
    pub devices: &'a [Usage],
    /// Number of unordered memory uses.
    pub unordered: u64,
}

fn moves(counts: &Counts) -> [(&'static str, Moved); 5] {
    [
        ("to_device", counts.to_device),
        ("to_host", counts.to_host),
        ("on_device", counts.on_device),
        ("between_devices", counts.between),
        ("fills", counts.fills),
    ]
}

/// As a table.
pub fn table(report: &Report) -> String {
    let mut out = String::from("counts\n");
    let mut line = |text: String| {
        let _ = writeln!(out, "  {text}");
    };
    for (device, usage) in report.devices.iter().enumerate() {
        line(format!(
            "device {device}: peak {} of {} bytes ({} asked for), live {}, allocations {}, refused {}",
            usage.held_peak, usage.total, usage.peak, usage.live, usage.allocations, usage.refused
        ));
    }
    for (name, moved) in moves(report.counts) {
        line(format!("{name:<40} {:>8} calls {:>16} bytes", moved.calls, moved.bytes));
    }
    let waits = report.waits;
    line(format!(
        "synchronisations {}, event records {}, event waits {}",
        waits.synchronisations, waits.records, waits.waits
    ));
    for (name, count) in &report.counts.products {
        let billions = count.flops as f64 / 1e9;
        line(format!("{name:<40} {:>8} calls {billions:>12.3} Gflop {:>9.3} s", count.calls, seconds(name)));
    }
    let mut launches: Vec<_> = report.counts.launches.iter().collect();
    launches.sort_by_key(|(_, count)| std::cmp::Reverse(count.calls));
    let all: u64 = launches.iter().map(|(_, count)| count.calls).sum();
    line(format!("{:<40} {all:>8} launches", "all kernels"));
    for (name, count) in launches {
        line(format!("{name:<40} {:>8} launches {:>9.3} s", count.calls, seconds(name)));
    }
    for failure in &report.faults.made {
        line(format!("made to fail: {failure}"));
    }
    out.truncate(out.trim_end().len());
    out
}

/// As JSON.
pub fn json(report: &Report) -> String {
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
    let devices: Vec<_> = report.devices.iter().map(device).collect();
    let copies = moves(report.counts).map(|(name, moved)| {
        (name.to_string(), format!("{{\"calls\": {}, \"bytes\": {}}}", moved.calls, moved.bytes))
    });
    let counted = |(name, count): (&&str, &Count)| {
        let flops = if count.flops > 0 { format!(", \"flops\": {}", count.flops) } else { String::new() };
        let seconds = seconds(name);
        ((*name).to_string(), format!("{{\"calls\": {}{flops}, \"seconds\": {seconds:.6}}}", count.calls))
    };
    let waits = report.waits;
    let all: u64 = report.counts.launches.values().map(|count| count.calls).sum();
    let fields = [
        ("devices", format!("[{}]", devices.join(", "))),
        ("launches", all.to_string()),
        ("kernels", object(report.counts.launches.iter().map(counted).collect())),
        ("products", object(report.counts.products.iter().map(counted).collect())),
        ("copies", object(copies.to_vec())),
        ("synchronisations", waits.synchronisations.to_string()),
        ("event_records", waits.records.to_string()),
        ("event_waits", waits.waits.to_string()),
        ("unordered", report.unordered.to_string()),
        (
            "calls",
            object(
                report.faults.calls.iter().map(|(n, count)| ((*n).to_string(), count.to_string())).collect(),
            ),
        ),
        (
            "failed",
            format!(
                "[{}]",
                report.faults.made.iter().map(|made| quoted(made)).collect::<Vec<_>>().join(", ")
            ),
        ),
    ];
    let fields: Vec<_> = fields.iter().map(|(name, value)| format!("  {}: {value}", quoted(name))).collect();
    format!("{{\n{}\n}}\n", fields.join(",\n"))
}

/// A JSON string. Kernel names come from PTX and need little escaping.
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
