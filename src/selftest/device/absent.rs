//! A build without the feature `cuda`: no device is a card.

use candle_core::Device;

use super::DeviceFacts;

pub(super) fn facts(_device: &Device) -> Option<DeviceFacts> {
    None
}

pub(super) fn most_used(_device: &Device) -> Option<u64> {
    None
}

pub(super) fn forget_most_used(_device: &Device) -> Option<()> {
    None
}
