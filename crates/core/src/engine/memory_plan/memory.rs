//! Free memory.

use candle_core::Device;

use crate::engine::cuda;

/// Bytes still available on a device: the CPU on Linux, and CUDA; else `None`.
pub fn available_bytes(device: &Device) -> Option<u64> {
    if device.is_cpu() { available_to_the_cpu() } else { cuda::available_bytes(device) }
}

fn available_to_the_cpu() -> Option<u64> {
    let free = proc_bytes("/proc/meminfo", "MemAvailable:")?;
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    // Container limit (cgroup v2).
    let limit = number("/sys/fs/cgroup/memory.max")
        .map(|max| max.saturating_sub(number("/sys/fs/cgroup/memory.current").unwrap_or(0)));
    Some(limit.map_or(free, |limit| limit.min(free)))
}

/// Total memory in bytes; Linux only.
pub fn total_bytes() -> Option<u64> {
    proc_bytes("/proc/meminfo", "MemTotal:")
}

/// Resident set size of this process in bytes; Linux only.
pub fn resident_bytes() -> Option<u64> {
    proc_bytes("/proc/self/status", "VmRSS:")
}

/// Peak resident set size of this process in bytes; Linux only.
pub fn peak_resident_bytes() -> Option<u64> {
    proc_bytes("/proc/self/status", "VmHWM:")
}

/// A field of a /proc file, converted from KiB to bytes.
fn proc_bytes(file: &str, field: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
