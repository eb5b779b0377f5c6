//! The hardware that a model runs on, for energy counters.

use candle_core::Device;

use super::cuda;

/// The hardware of this machine that a model runs on, beside the processor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hardware {
    /// Each device once, by the UUID of an NVIDIA card; `None` for one that has none.
    pub accelerators: Vec<Option<String>>,
}

impl Hardware {
    /// That of a model whose layers lie on these devices.
    pub fn of(devices: &[Device]) -> Self {
        let mut accelerators: Vec<Option<String>> = Vec::new();
        for device in devices.iter().filter(|device| !device.is_cpu()) {
            let uuid = cuda::uuid(device);
            if uuid.is_none() || !accelerators.contains(&uuid) {
                accelerators.push(uuid);
            }
        }
        Hardware { accelerators }
    }
}
