//! Without CUDA there is no card to describe.

use candle_core::Device;

use super::Card;

/// Nothing: no device of this build is a card.
pub fn card(_device: &Device) -> Option<Card> {
    None
}

/// Nothing, as [`card`].
pub fn most_used(_device: &Device) -> Option<u64> {
    None
}

/// Nothing to forget.
pub fn forget_most_used(_device: &Device) -> Option<()> {
    None
}
