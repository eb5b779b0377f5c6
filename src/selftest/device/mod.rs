//! The devices under test: what their drivers tell of them, and the most memory that was in use at once.
//!
//! Only a CUDA driver tells more than what is free; builds without the feature `cuda` have the same functions, which tell nothing.

use candle_core::Device;
use serde::Serialize;

use palimpsest_core::engine::memory_plan::{available_bytes, gigabytes};
use palimpsest_core::engine::{self, DeviceName};

#[cfg(not(feature = "cuda"))]
mod absent;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
use absent as driver;
#[cfg(feature = "cuda")]
use cuda as driver;

/// A device, as far as it tells.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DeviceFacts {
    pub device: String,
    pub card: Option<String>,
    /// Bytes of memory.
    pub memory: Option<u64>,
    pub memory_free: Option<u64>,
    pub compute_capability: Option<(i32, i32)>,
    pub driver: Option<String>,
    /// The newest CUDA that the driver supports, major and minor.
    pub cuda: Option<(i32, i32)>,
    /// True if memory comes from the driver's pool, which keeps a high-water mark.
    pub pool: Option<bool>,
}

impl DeviceFacts {
    /// Of an open device.
    pub fn of(device: &Device) -> Self {
        let untold = || DeviceFacts { memory_free: available_bytes(device), ..DeviceFacts::default() };
        let told = driver::facts(device).unwrap_or_else(untold);
        DeviceFacts { device: DeviceName::of(device).to_string(), ..told }
    }

    /// In a line; empty for the CPU, which the host's line describes.
    pub fn text(&self) -> String {
        let DeviceFacts { device, card: Some(card), .. } = self else {
            return match self.device.as_str() {
                "cpu" => String::new(),
                other => format!("{other}: it does not tell its name and memory\n"),
            };
        };
        let mut text = format!("{device}: {card}");
        if let (Some(memory), Some(free)) = (self.memory, self.memory_free) {
            text += &format!("; {} of memory, {} free", gigabytes(memory), gigabytes(free));
        }
        if let Some((major, minor)) = self.compute_capability {
            text += &format!("; compute capability {major}.{minor}");
        }
        if let Some(driver) = &self.driver {
            text += &format!("; driver {driver}");
        }
        if let Some((major, minor)) = self.cuda {
            text += &format!(" for CUDA up to {major}.{minor}");
        }
        text + "\n"
    }
}

/// The version in the text of NVIDIA's kernel module: the first word that is numbers with points between.
#[cfg(any(test, feature = "cuda"))]
fn module_version(text: &str) -> Option<String> {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_version = |word: &&str| word.contains('.') && word.split('.').all(is_number);
    text.lines().next()?.split_whitespace().find(is_version).map(ToOwned::to_owned)
}

/// The method of measuring memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// The high-water mark of the driver's pool: exact. The context and cuBLAS's workspaces are not in it.
    Pool,
    /// The most memory that the whole process was seen to hold, with everything that it did before.
    Process,
}

impl How {
    /// In words.
    pub fn in_words(self) -> &'static str {
        match self {
            How::Pool => "by the high-water mark of the driver's pool",
            How::Process => "resident memory of the whole process at its peak",
        }
    }
}

/// The most that was taken of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Peak {
    pub device: String,
    /// Bytes.
    pub bytes: u64,
    pub how: How,
}

/// Watches the memory of devices from the moment that it is made: of the CPU, and of cards whose memory comes from a pool.
#[derive(Debug)]
pub struct Gauge {
    /// Each device once, with the bytes that were in use before.
    watched: Vec<(Device, u64)>,
}

impl Gauge {
    /// Begins to watch `devices`.
    pub fn start(devices: &[Device]) -> Self {
        let mut watched: Vec<(Device, u64)> = Vec::new();
        for device in devices {
            if watched.iter().any(|(same, _)| same.same_device(device)) {
                continue;
            }
            let before = if device.is_cpu() { Some(0) } else { reset(device) };
            watched.extend(before.map(|before| (device.clone(), before)));
        }
        Gauge { watched }
    }

    /// Forgets the most that was taken so far, but not what is in use now: what made-up weights are cut from is gone.
    pub fn forget(&self) {
        for (device, _) in self.watched.iter().filter(|(device, _)| !device.is_cpu()) {
            let _ = reset(device);
        }
    }

    /// The most that was taken of each device since.
    pub fn peaks(&self) -> Vec<Peak> {
        let peak = |(device, before): &(Device, u64)| {
            let (bytes, how) = match device {
                Device::Cpu => (engine::peak_resident_bytes()?, How::Process),
                card => (driver::most_used(card)?.saturating_sub(*before), How::Pool),
            };
            Some(Peak { device: DeviceName::of(device).to_string(), bytes, how })
        };
        self.watched.iter().filter_map(peak).collect()
    }
}

/// Sets a card's high-water mark to what is in use, and returns that. What earlier work has freed may still wait for the stream.
fn reset(device: &Device) -> Option<u64> {
    device.synchronize().ok()?;
    driver::forget_most_used(device)?;
    driver::most_used(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_s_version_is_found_in_either_form_of_its_line() {
        let closed =
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Mon Feb 19 19:12:34 UTC 2024\nGCC";
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\n";
        assert_eq!(module_version(closed).as_deref(), Some("535.161.08"));
        assert_eq!(module_version(open).as_deref(), Some("550.54.15"));
        assert_eq!(module_version("no version"), None);
        assert_eq!(module_version(""), None);
    }

    #[test]
    fn the_cpu_has_no_line_of_its_own() {
        let cpu = DeviceFacts::of(&Device::Cpu);
        assert_eq!((cpu.device.as_str(), cpu.card.as_ref(), cpu.text().as_str()), ("cpu", None, ""));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_process_s_peak_is_told_once_for_the_cpu_however_often_it_is_named() {
        let gauge = Gauge::start(&[Device::Cpu, Device::Cpu]);
        let before = gauge.peaks();
        assert_eq!((before.len(), before[0].how, before[0].device.as_str()), (1, How::Process, "cpu"));
        let taken = std::hint::black_box(vec![1u8; 64 << 20]);
        assert!(gauge.peaks()[0].bytes >= 64 << 20);
        drop(taken);
    }
}
