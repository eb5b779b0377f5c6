//! Devices and dtypes by name.

use candle_core::{DType, Device};

/// Why a device or dtype could not be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The name is none of ours.
    #[error("`{name}` is no device; use `cpu`, `cuda`, `cuda:N` or `metal`")]
    UnknownDevice {
        /// What was typed.
        name: String,
    },
    /// The device cannot be opened.
    #[error(
        "device `{name}` cannot be used: {reason}; use --device cpu, or a build with the feature `{feature}` on a machine that has the device"
    )]
    Unavailable {
        /// What was typed.
        name: String,
        /// What Candle said.
        reason: String,
        /// The Cargo feature that it needs.
        feature: &'static str,
    },
    /// The dtype is none of ours.
    #[error("`{name}` is no dtype for activations; use `f32`, `bf16` or `f16`")]
    UnknownDtype {
        /// What was typed.
        name: String,
    },
}

/// Opens `cpu`, `cuda`, `cuda:N` or `metal`.
pub fn parse_device(name: &str) -> Result<Device, DeviceError> {
    let unavailable = |feature, e: candle_core::Error| DeviceError::Unavailable {
        name: name.to_owned(),
        reason: e.to_string().lines().next().unwrap_or_default().to_owned(),
        feature,
    };
    let (kind, ordinal) = name.split_once(':').unwrap_or((name, "0"));
    let ordinal: usize = ordinal.parse().map_err(|_| DeviceError::UnknownDevice { name: name.to_owned() })?;
    match kind {
        "cpu" if !name.contains(':') => Ok(Device::Cpu),
        "cuda" => Device::new_cuda(ordinal).map_err(|e| unavailable("cuda", e)),
        "metal" => Device::new_metal(ordinal).map_err(|e| unavailable("metal", e)),
        _ => Err(DeviceError::UnknownDevice { name: name.to_owned() }),
    }
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

/// The dtype that a device runs in unless told otherwise: f32 on the CPU, bf16 elsewhere.
pub fn default_dtype(device: &Device) -> DType {
    if device.is_cpu() { DType::F32 } else { DType::BF16 }
}
