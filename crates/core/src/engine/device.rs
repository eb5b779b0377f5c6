//! Devices and dtypes by name. Parsing does not open a device, so memory plans work for devices this machine lacks.

use std::fmt;

use candle_core::{DType, Device, DeviceLocation};

use super::cuda;

/// A device or dtype is unusable.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// Unknown device name.
    #[error(
        "`{name}` is no device; use `cpu`, `cuda`, `cuda:N`, `metal`, or a list such as `cuda:0,cuda:1` to split the layers"
    )]
    UnknownDevice {
        /// Input text.
        name: String,
    },
    /// A device is listed twice.
    #[error(
        "`{list}` names {device} twice, which would share its memory with itself; name every device once (only `cpu` may be repeated, to try a split out)"
    )]
    Twice {
        /// Input text.
        list: String,
        /// The repeated device.
        device: DeviceName,
    },
    /// A list mixes device kinds.
    #[error(
        "`{list}` mixes {first} with {other}; a model runs in one dtype with one family of kernels, so give devices of one kind"
    )]
    Mixed {
        /// Input text.
        list: String,
        /// The first device.
        first: DeviceName,
        /// First device of another kind.
        other: DeviceName,
    },
    /// The device cannot be opened.
    #[error(
        "device `{name}` cannot be used: {reason}; use --device cpu, or a build with the feature `{feature}` on a machine that has the device"
    )]
    Unavailable {
        /// The device.
        name: DeviceName,
        /// Candle's error.
        reason: String,
        /// Required Cargo feature.
        feature: &'static str,
    },
    /// Unknown dtype name.
    #[error("`{name}` is no dtype that models run in here; use `f32`, `bf16` or `f16`")]
    UnknownDtype {
        /// Input text.
        name: String,
    },
}

/// A device name; the device may be absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceName {
    /// The CPU.
    Cpu,
    /// CUDA device by ordinal.
    Cuda(usize),
    /// Metal device by ordinal.
    Metal(usize),
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceName::Cpu => f.write_str("cpu"),
            DeviceName::Cuda(n) => write!(f, "cuda:{n}"),
            DeviceName::Metal(0) => f.write_str("metal"),
            DeviceName::Metal(n) => write!(f, "metal:{n}"),
        }
    }
}

impl DeviceName {
    /// Name of an open device.
    pub fn of(device: &Device) -> Self {
        match device.location() {
            DeviceLocation::Cpu => DeviceName::Cpu,
            DeviceLocation::Cuda { gpu_id } => DeviceName::Cuda(gpu_id),
            DeviceLocation::Metal { gpu_id } => DeviceName::Metal(gpu_id),
        }
    }

    /// Opens the device.
    pub fn open(self) -> Result<Device, DeviceError> {
        let unavailable = |feature, e: candle_core::Error| DeviceError::Unavailable {
            name: self,
            reason: e.to_string().lines().next().unwrap_or_default().to_owned(),
            feature,
        };
        match self {
            DeviceName::Cpu => Ok(Device::Cpu),
            DeviceName::Cuda(n) => cuda::open(n).map_err(|e| unavailable("cuda", e)),
            DeviceName::Metal(n) => Device::new_metal(n).map_err(|e| unavailable("metal", e)),
        }
    }

    /// Default dtype: f32 on the CPU, bf16 elsewhere.
    pub fn default_dtype(self) -> DType {
        match self {
            DeviceName::Cpu => DType::F32,
            _ => DType::BF16,
        }
    }

    fn parse(name: &str) -> Option<Self> {
        let (kind, ordinal) = match name.split_once(':') {
            None => (name, 0),
            // Digits only: `parse` also accepts a sign.
            Some((kind, n)) if !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()) => {
                (kind, n.parse().ok()?)
            }
            Some(_) => return None,
        };
        match kind {
            "cpu" if !name.contains(':') => Some(DeviceName::Cpu),
            "cuda" => Some(DeviceName::Cuda(ordinal)),
            "metal" => Some(DeviceName::Metal(ordinal)),
            _ => None,
        }
    }
}

/// Parses `cpu`, `cuda`, `cuda:N`, `metal`, or a comma-separated list of one kind. Only `cpu` may be repeated.
pub fn parse_device_names(list: &str) -> Result<Vec<DeviceName>, DeviceError> {
    let names: Vec<DeviceName> = list
        .split(',')
        .map(|name| {
            let name = name.trim();
            DeviceName::parse(name).ok_or_else(|| DeviceError::UnknownDevice { name: name.to_owned() })
        })
        .collect::<Result<_, _>>()?;
    for (i, &device) in names.iter().enumerate() {
        if std::mem::discriminant(&device) != std::mem::discriminant(&names[0]) {
            return Err(DeviceError::Mixed { list: list.to_owned(), first: names[0], other: device });
        }
        if device != DeviceName::Cpu && names[..i].contains(&device) {
            return Err(DeviceError::Twice { list: list.to_owned(), device });
        }
    }
    Ok(names)
}

/// Opens a list of devices (see [`parse_device_names`]); at least one.
pub fn parse_devices(list: &str) -> Result<Vec<Device>, DeviceError> {
    parse_device_names(list)?.into_iter().map(DeviceName::open).collect()
}

/// Parses `f32`, `bf16` or `f16`.
pub fn parse_dtype(name: &str) -> Result<DType, DeviceError> {
    match name {
        "f32" => Ok(DType::F32),
        "bf16" => Ok(DType::BF16),
        "f16" => Ok(DType::F16),
        _ => Err(DeviceError::UnknownDtype { name: name.to_owned() }),
    }
}

/// Default dtype of devices of one kind.
pub fn default_dtype(devices: &[Device]) -> DType {
    devices.first().map_or(DType::F32, |device| DeviceName::of(device).default_dtype())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_devices_are_read_in_order_and_what_cannot_be_meant_is_refused_by_name() {
        let read = |list: &str| parse_device_names(list).map_err(|e| e.to_string());
        assert_eq!(read("cpu"), Ok(vec![DeviceName::Cpu]));
        assert_eq!(read("cuda"), Ok(vec![DeviceName::Cuda(0)]));
        assert_eq!(read("cuda:3, cuda:1"), Ok(vec![DeviceName::Cuda(3), DeviceName::Cuda(1)]));
        assert_eq!(read("cpu,cpu,cpu"), Ok(vec![DeviceName::Cpu; 3]));
        assert_eq!(read("metal"), Ok(vec![DeviceName::Metal(0)]));
        for (list, part) in [
            ("", "`` is no device"),
            ("gpu", "`gpu` is no device"),
            ("cuda:0,", "`` is no device"),
            ("cuda:+1", "`cuda:+1` is no device"),
            ("cuda:x", "`cuda:x` is no device"),
            ("cpu:0", "`cpu:0` is no device"),
            ("cuda,cuda:0", "names cuda:0 twice"),
            ("cpu,cuda:1", "mixes cpu with cuda:1"),
        ] {
            assert!(read(list).is_err_and(|e| e.contains(part)), "{list:?}");
        }
    }
}
