//! Devices and dtypes by name. Parsing does not open a device, so memory plans work for devices this machine lacks.

use std::fmt;

use candle_core::{DType, Device, DeviceLocation};

use super::cuda;

/// An unusable device or dtype.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DeviceError(String);

/// A device name; the device may be absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // said by the names
pub enum DeviceName {
    Cpu,
    Cuda(usize),
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
        let unavailable = |feature, error: candle_core::Error| {
            let reason = error.to_string();
            DeviceError(format!(
                "device `{self}` cannot be used: {}; use --device cpu, or a build with the feature `{feature}` on a machine that has \
                 the device",
                reason.lines().next().unwrap_or_default()
            ))
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
            DeviceName::parse(name.trim()).ok_or_else(|| {
                DeviceError(format!(
                    "`{}` is no device; use `cpu`, `cuda`, `cuda:N`, `metal`, or a list such as `cuda:0,cuda:1` to split the layers",
                    name.trim()
                ))
            })
        })
        .collect::<Result<_, _>>()?;
    for (i, &device) in names.iter().enumerate() {
        if std::mem::discriminant(&device) != std::mem::discriminant(&names[0]) {
            return Err(DeviceError(format!(
                "`{list}` mixes {} with {device}; a model runs in one dtype with one family of kernels, so give devices of one kind",
                names[0]
            )));
        }
        if device != DeviceName::Cpu && names[..i].contains(&device) {
            return Err(DeviceError(format!(
                "`{list}` names {device} twice, which would share its memory with itself; name every device once (only `cpu` may be \
                 repeated, to try a split out)"
            )));
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
        _ => Err(DeviceError(format!(
            "`{name}` is no dtype that models run in here; use `f32`, `bf16` or `f16`"
        ))),
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
