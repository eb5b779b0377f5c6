//! The most memory that a device had given at once, as exactly as it tells.

use candle_core::Device;
use serde::Serialize;

use super::cuda;
use palimpsest_core::engine::memory_plan::available_bytes;
use palimpsest_core::engine::{self, DeviceName};

/// How memory was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// The high-water mark of the driver's pool: exact. The context and cuBLAS's workspaces are not in it.
    Pool,
    /// The least free memory that was seen between chunks, and so at least this much. What else uses the card is in it.
    Sampled,
    /// The most memory that the whole process was seen to hold, with everything that it did before.
    Process,
}

impl How {
    /// In words.
    pub fn in_words(self) -> &'static str {
        match self {
            How::Pool => "by the high-water mark of the driver's pool",
            How::Sampled => "by the free memory seen between chunks: at least",
            How::Process => "resident memory of the whole process at its peak",
        }
    }
}

/// The most that was taken of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Peak {
    /// Which.
    pub device: String,
    /// Bytes.
    pub bytes: u64,
    /// How they were measured.
    pub how: How,
}

/// Watches the memory of devices from the moment that it is made.
#[derive(Debug)]
pub struct Gauge {
    watched: Vec<Watched>,
}

#[derive(Debug)]
struct Watched {
    device: Device,
    /// In use when watching began, where a pool tells.
    used: Option<u64>,
    /// Free when watching began, and the least since.
    free: Option<(u64, u64)>,
}

impl Gauge {
    /// Begins to watch `devices`, each of them once.
    pub fn start(devices: &[Device]) -> Self {
        let mut watched: Vec<Watched> = Vec::new();
        for device in devices {
            if watched.iter().any(|w| w.device.same_device(device)) {
                continue;
            }
            // What earlier work has freed may still wait for the stream.
            let used = device.synchronize().ok().and_then(|()| {
                cuda::forget_most_used(device)?;
                cuda::most_used(device)
            });
            let free = if device.is_cpu() { None } else { available_bytes(device).map(|free| (free, free)) };
            watched.push(Watched { device: device.clone(), used, free });
        }
        Gauge { watched }
    }

    /// Forgets the most that was taken so far, but not what is in use now: what made-up weights are cut from is gone.
    pub fn forget(&mut self) {
        for Watched { device, used, free } in &mut self.watched {
            if device.synchronize().is_ok() && used.is_some() {
                cuda::forget_most_used(device);
            }
            if let (Some((_, least)), Some(now)) = (free.as_mut(), available_bytes(device)) {
                *least = now;
            }
        }
    }

    /// Looks at what is free now.
    pub fn sample(&mut self) {
        for Watched { device, used, free } in &mut self.watched {
            if let (None, Some((_, least)), Some(now)) = (*used, free.as_mut(), available_bytes(device)) {
                *least = now.min(*least);
            }
        }
    }

    /// The most that was taken of each device since; nothing of those that do not tell.
    pub fn peaks(&self) -> Vec<Peak> {
        let peak = |watched: &Watched| {
            let (bytes, how) = match watched {
                Watched { device, .. } if device.is_cpu() => (engine::peak_resident_bytes()?, How::Process),
                Watched { device, used: Some(before), .. } => {
                    (cuda::most_used(device)?.saturating_sub(*before), How::Pool)
                }
                Watched { free: Some((before, least)), .. } => (before.saturating_sub(*least), How::Sampled),
                _ => return None,
            };
            Some(Peak { device: DeviceName::of(&watched.device).to_string(), bytes, how })
        };
        self.watched.iter().filter_map(peak).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn the_process_s_peak_is_told_once_for_the_cpu_however_often_it_is_named() {
        let mut gauge = Gauge::start(&[Device::Cpu, Device::Cpu]);
        let before = gauge.peaks();
        assert_eq!((before.len(), before[0].how, before[0].device.as_str()), (1, How::Process, "cpu"));
        let taken = std::hint::black_box(vec![1u8; 64 << 20]);
        gauge.sample();
        assert!(gauge.peaks()[0].bytes >= 64 << 20);
        drop(taken);
    }
}
