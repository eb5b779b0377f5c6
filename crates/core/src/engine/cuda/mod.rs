//! CUDA cards: opening one, its name, and the free memory that its driver tells.
//!
//! Called by the list of devices and by the plan of memory. Builds without the feature `cuda` have the same functions, which
//! say that there is no card, so that callers need no `cfg`.

#[cfg(not(feature = "cuda"))]
mod disabled;
#[cfg(feature = "cuda")]
mod enabled;

#[cfg(not(feature = "cuda"))]
pub(super) use disabled::{available_bytes, open, uuid};
#[cfg(feature = "cuda")]
pub(super) use enabled::{available_bytes, open, uuid};

/// The UUID of a card as NVML writes it, from its bytes.
#[cfg(any(test, feature = "cuda"))]
fn card_uuid(bytes: [u8; 16]) -> String {
    let mut text = "GPU".to_owned();
    for (at, byte) in bytes.iter().enumerate() {
        // 8-4-4-4-12
        if matches!(at, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::card_uuid;

    #[test]
    fn a_uuid_is_written_as_the_driver_writes_it() {
        let bytes = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255];
        assert_eq!(card_uuid(bytes), "GPU-00010203-0405-0607-0809-0a0b0c0d0eff");
    }
}
