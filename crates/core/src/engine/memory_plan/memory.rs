//! Free memory.

use candle_core::Device;

use crate::engine::cuda;

/// Memory that this process may still take on a device, where that can be told: on Linux for the CPU, and on CUDA.
pub fn available_bytes(device: &Device) -> Option<u64> {
    if device.is_cpu() { available_to_the_cpu() } else { cuda::available_bytes(device) }
}

fn available_to_the_cpu() -> Option<u64> {
    let free = proc_bytes("/proc/meminfo", "MemAvailable:")?;
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    // A container's limit, where there is one (cgroup 2).
    let limit = number("/sys/fs/cgroup/memory.max")
        .map(|max| max.saturating_sub(number("/sys/fs/cgroup/memory.current").unwrap_or(0)));
    Some(limit.map_or(free, |limit| limit.min(free)))
}

/// Bytes of the machine's memory, where the system tells it as Linux does.
pub fn total_bytes() -> Option<u64> {
    proc_bytes("/proc/meminfo", "MemTotal:")
}

/// Bytes that this process holds in memory, where the system tells it as Linux does.
pub fn resident_bytes() -> Option<u64> {
    proc_bytes("/proc/self/status", "VmRSS:")
}

/// The most memory that this process has held at once, in bytes, where the system tells it as Linux does.
pub fn peak_resident_bytes() -> Option<u64> {
    proc_bytes("/proc/self/status", "VmHWM:")
}

/// A field of Linux's tables, which are in kibibytes.
fn proc_bytes(file: &str, field: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
